"""Stochastic average gradient converges to an optimum that SGD does not reach."""

from __future__ import annotations

import pytest
import torch

from everypair.torch.training.sag import SAG

from .convex import RIDGE, Problem

N_PASSES = 20


@pytest.fixture(scope="module")
def problem():
    return Problem()


def gaps(problem, optimizer_of, rate_at=None, n_passes=N_PASSES):
    """Return the difference to the optimal value after each pass."""
    generator = torch.Generator().manual_seed(1)
    w = torch.zeros(problem.X.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = optimizer_of([w])
    n_batches, step, gaps = len(problem.parts), 0, []
    for _ in range(n_passes):
        for i in torch.randperm(n_batches, generator=generator).tolist():
            if rate_at is not None:
                optimizer.param_groups[0]["lr"] = rate_at(step)
            optimizer.zero_grad()
            problem.loss(w, i).backward()
            optimizer.step(**({"index": i} if isinstance(optimizer, SAG) else {}))
            step += 1
        gaps.append(problem.gap(w))
    return gaps


def test_converges_faster_than_sgd_per_pass(problem):
    sag = gaps(problem, lambda w: SAG(w, len(problem.parts), lr=0.02, weight_decay=RIDGE))
    assert sag[-1] < 1e-8
    best_of_sgd = min(
        gaps(
            problem,
            lambda w: torch.optim.SGD(w, lr=0.1, weight_decay=RIDGE),
            lambda step, rate=rate, decay=decay: rate / (1 + decay * step),
        )[-1]
        for rate in (0.01, 0.03, 0.1)
        for decay in (0.0, 0.01, 0.1)
    )
    assert sag[-1] < best_of_sgd / 100
    passes_of_sag = next(i for i, gap in enumerate(sag) if gap < best_of_sgd)
    assert passes_of_sag <= N_PASSES // 2


def test_a_step_is_the_average_of_the_stored_gradients():
    w = torch.ones(2, requires_grad=True)
    optimizer = SAG([w], n_batches=3, lr=0.5, weight_decay=0.3)
    position, stored = torch.ones(2), {}
    for index, grad in [(0, 1.0), (2, 4.0), (0, -2.0), (1, 3.0)]:
        w.grad = torch.full((2,), grad)
        optimizer.step(index=index)
        stored[index] = grad
        position -= 0.5 * (sum(stored.values()) / len(stored) + 0.3 * position)
        torch.testing.assert_close(w.detach(), position)


def test_rounding_errors_do_not_accumulate():
    w = torch.zeros(1, requires_grad=True)
    optimizer = SAG([w], n_batches=4, lr=0.0)
    generator = torch.Generator().manual_seed(0)
    for step in range(4000):
        w.grad = 10.0 ** torch.randint(-3, 6, (1,), generator=generator)
        optimizer.step(index=step % 4)
    state = optimizer.state[w]
    assert torch.equal(state["total"], state["gradients"].sum(0))


def test_a_parameter_without_a_gradient_counts_as_gradient_zero():
    w, idle = torch.zeros(1, requires_grad=True), torch.ones(1, requires_grad=True)
    optimizer = SAG([w, idle], n_batches=2, lr=1.0)
    w.grad = torch.ones(1)
    optimizer.step(index=0)
    w.grad = None
    optimizer.step(index=1)
    assert w.item() == -1.5
    assert idle.item() == 1.0
    assert idle not in optimizer.state

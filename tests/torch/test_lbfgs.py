"""torch.optim.LBFGS on the full batch, as the docs show it, reaches the optimum."""

from __future__ import annotations

import pytest
import torch

from everypair.torch._module import PairLoss
from everypair.torch.training.large_batch import large_batch_backward

from .convex import RIDGE, Problem


@pytest.fixture(scope="module")
def problem():
    return Problem(n_batches=1)


def descend(problem, backward):
    """Minimise the problem as in the docs; return the weights and the number of evaluations."""
    model = torch.nn.Linear(problem.X.shape[1], 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    n_evaluations = 0
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=100, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure():
        nonlocal n_evaluations
        n_evaluations += 1
        optimizer.zero_grad()
        ridge = RIDGE / 2 * model.weight.square().sum()
        ridge.backward()
        return backward(model) + ridge.detach()

    optimizer.step(closure)
    return model.weight.detach().reshape(-1), n_evaluations


def at_once(problem):
    def backward(model):
        value = PairLoss()(model(problem.X), problem.labels)
        value.backward()
        return value.detach()

    return backward


def in_chunks(problem):
    return lambda model: large_batch_backward(
        model, PairLoss(), problem.X, problem.labels, chunk=300
    )


@pytest.mark.parametrize("method", [at_once, in_chunks])
def test_lbfgs_reaches_the_optimum(problem, method):
    w, n_evaluations = descend(problem, method(problem))
    assert problem.gap(w) < 1e-12
    assert n_evaluations < 100
    torch.testing.assert_close(w, torch.from_numpy(problem.optimum.x), rtol=0, atol=1e-5)

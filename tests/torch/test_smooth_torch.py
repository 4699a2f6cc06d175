"""Smooth surrogates on tensors: derivatives of both orders, operators and defaults."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import everypair as ep
from everypair import surrogates
from everypair.torch import PairLoss, _arrays, pair_derivatives, pair_loss
from everypair.torch._dispatch import forced
from everypair.torch._options import decoded, encoded

from ..strategies import MIXED
from ..test_smooth import FITTED, NAMES, hostile_batches

ALL = [*map(surrogates.get, NAMES), MIXED]
for_every_surrogate = pytest.mark.parametrize("surrogate", ALL, ids=lambda s: s.name)


def batch(n=12):
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=n), requires_grad=True)
    return scores, torch.tensor(np.arange(n) % 3 == 0), torch.tensor(rng.integers(0, 2, n))


@pytest.mark.parametrize("backend", ["cpu", "operations"])
@for_every_surrogate
def test_derivatives_are_those_of_finite_differences(surrogate, backend):
    scores, labels, groups = batch()

    def loss(x):
        return pair_loss(x, labels, surrogate=surrogate, groups=groups)

    with forced(backend):
        assert gradcheck(loss, scores)
        assert gradgradcheck(loss, scores)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_torch_operations_are_right_in_every_entry(name, dtype):
    tolerance, smallest = (1e-6, 1e-37) if dtype is np.float32 else (1e-12, 1e-290)
    for scores, labels, weights, groups in hostile_batches(dtype):
        if name == "exponential" and np.ptp(scores) > 60.0:
            continue
        data = {"weights": weights, "groups": groups}
        tensors = {key: torch.tensor(array) for key, array in data.items()}
        expected = ep.naive.pair_loss_and_grad(scores.astype(float), labels, surrogate=name, **data)
        with forced("operations"):
            found = pair_derivatives(
                torch.tensor(scores), torch.tensor(labels), surrogate=name, **tensors
            )
        seen = np.abs(expected[1]) > smallest
        ratio = found.grad.numpy()[seen] / expected[1][seen]
        assert np.abs(ratio - 1.0).max(initial=0.0) <= tolerance
        assert found.value.item() == pytest.approx(expected[0], rel=tolerance)


@for_every_surrogate
def test_operators_take_terms_as_text(surrogate):
    terms = surrogate.at_margin(0.25)
    assert decoded(encoded(terms)) == terms


@for_every_surrogate
def test_tasks_are_independent(surrogate):
    scores, labels, _ = batch()
    columns = torch.stack([scores, scores.flip(0), 2 * scores], 1)
    for backend in ("cpu", "operations"):
        with forced(backend):
            together = pair_loss(
                columns, labels[:, None].expand(-1, 3), surrogate=surrogate, reduction="none"
            )
        alone = [pair_loss(column, labels, surrogate=surrogate) for column in columns.t()]
        torch.testing.assert_close(together, torch.stack(alone), rtol=1e-12, atol=0.0)


def test_the_module_has_the_margin_of_the_surrogate():
    assert PairLoss(surrogate="logistic").margin == 0.0
    assert PairLoss().margin == 1.0
    scores, labels, _ = batch()
    pair_loss(scores, labels, surrogate="logistic").backward()
    by_hand = torch.nn.functional.softplus(scores[~labels] - scores[labels][:, None]).mean()
    (expected,) = torch.autograd.grad(by_hand, scores)
    torch.testing.assert_close(scores.grad, expected, rtol=1e-12, atol=0.0)


def test_a_third_derivative_raises():
    scores, labels, _ = batch()
    loss = pair_loss(scores, labels, surrogate="logistic")
    (grad,) = torch.autograd.grad(loss, scores, create_graph=True)
    (hvp,) = torch.autograd.grad(grad, scores, torch.ones_like(grad), create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated three times"):
        torch.autograd.grad(hvp.sum(), scores)


@pytest.mark.filterwarnings("error:.*lru_cache")
def test_the_loss_compiles_to_one_graph():
    torch._dynamo.reset()
    scores, labels, _ = batch()
    criterion = PairLoss(surrogate=MIXED)
    compiled = torch.compile(
        lambda x: criterion(2 * x, labels), backend="aot_eager", fullgraph=True
    )
    (got,) = torch.autograd.grad(compiled(scores), scores)
    (expected,) = torch.autograd.grad(criterion(2 * scores, labels), scores)
    torch.testing.assert_close(got, expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", FITTED)
def test_float32_arithmetic_is_enough(name, monkeypatch):
    # As on devices without float64.
    monkeypatch.setattr(_arrays, "_work_dtype", lambda _: torch.float32)
    for scores, labels, _, groups in hostile_batches(np.float32):
        with forced("operations"):
            found = pair_derivatives(
                torch.tensor(scores),
                torch.tensor(labels),
                surrogate=name,
                groups=torch.tensor(groups),
            )
        wide = scores.astype(float)
        value, grad = ep.naive.pair_loss_and_grad(wide, labels, surrogate=name, groups=groups)
        seen = np.abs(grad) > 1e-35
        assert np.abs(found.grad.numpy()[seen] / grad[seen] - 1.0).max(initial=0.0) <= 1e-6
        assert found.value.item() == pytest.approx(value, rel=1e-6)

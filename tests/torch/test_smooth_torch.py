"""Smooth surrogates on tensors: accuracy in every entry, operators and defaults."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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
    scores = torch.tensor(np.random.default_rng(0).normal(size=n), requires_grad=True)
    return scores, torch.arange(n) % 3 == 0


def assert_right_in_every_entry(name, dtype, tolerance, smallest, weighted=True):
    for scores, labels, weights, groups in hostile_batches(dtype):
        if name == "exponential" and np.ptp(scores) > 60.0:
            continue
        data = {"weights": weights, "groups": groups} if weighted else {"groups": groups}
        value, grad = ep.naive.pair_loss_and_grad(
            scores.astype(float), labels, surrogate=name, **data
        )
        tensors = {key: torch.tensor(array) for key, array in data.items()}
        with forced("operations"):
            found = pair_derivatives(
                torch.tensor(scores), torch.tensor(labels), surrogate=name, **tensors
            )
        seen = np.abs(grad) > smallest
        ratio = found.grad.numpy()[seen] / grad[seen]
        assert np.abs(ratio - 1.0).max(initial=0.0) <= tolerance
        assert found.value.item() == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_torch_operations_are_right_in_every_entry(name):
    assert_right_in_every_entry(name, np.float32, 1e-6, 1e-37)
    assert_right_in_every_entry(name, np.float64, 1e-12, 1e-290)


@pytest.mark.parametrize("name", FITTED)
def test_float32_arithmetic_is_enough(name, monkeypatch):
    # As on devices without float64.
    monkeypatch.setattr(_arrays, "_work_dtype", lambda _: torch.float32)
    assert_right_in_every_entry(name, np.float32, 1e-6, 1e-35, weighted=False)


@for_every_surrogate
def test_operators_take_terms_as_text(surrogate):
    terms = surrogate.at_margin(0.25)
    assert decoded(encoded(terms)) == terms


def test_the_module_has_the_margin_of_the_surrogate():
    assert PairLoss(surrogate="logistic").margin == 0.0
    assert PairLoss().margin == 1.0
    scores, labels = batch()
    pair_loss(scores, labels, surrogate="logistic").backward()
    by_hand = torch.nn.functional.softplus(scores[~labels] - scores[labels][:, None]).mean()
    (expected,) = torch.autograd.grad(by_hand, scores)
    torch.testing.assert_close(scores.grad, expected, rtol=1e-12, atol=0.0)


def test_a_third_derivative_raises():
    scores, labels = batch()
    loss = pair_loss(scores, labels, surrogate="logistic")
    (grad,) = torch.autograd.grad(loss, scores, create_graph=True)
    (hvp,) = torch.autograd.grad(grad, scores, torch.ones_like(grad), create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated three times"):
        torch.autograd.grad(hvp.sum(), scores)

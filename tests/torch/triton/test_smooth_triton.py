"""Smooth surrogates by Triton kernels: every entry of the gradient against the double sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import everypair as ep
from everypair import surrogates
from everypair.surrogates import Surrogate, Term
from everypair.torch import pair_derivatives, pair_loss
from everypair.torch._dispatch import choose_backend, forced
from everypair.torch.triton.smooth.terms import expansion, takes

from .device import tensor
from .sizes import small_blocks

NAMES = ("logistic", "sigmoid", "squared_softplus")
TANH = surrogates.fit(np.tanh, rate=2.0, below=(-1, 0, 0), above=(1, 0, 0))


@pytest.fixture(autouse=True)
def on_triton():
    with forced("triton"), small_blocks(CHUNK=4, CHUNKS=8):
        yield


def hostile_batches(dtype):
    """Yield scores with offsets and spreads from 1e-6 to 1e6 temperatures, ties included."""
    rng = np.random.default_rng(0)
    for n, scale, offset in (
        (50, 1.0, 0.0),
        (24, 1.0, 1e6),
        (24, 1e-6, 0.0),
        (24, 1e6, 0.0),
        (40, 30.0, -5.0),
    ):
        scores = rng.normal(size=n) * scale + offset
        scores[n // 2 :] = scores[n // 2 :].round(1)
        yield scores.astype(dtype), np.arange(n) % 3 == 0, rng.random(n)


def relative_error(found, expected, dtype):
    """Return the largest relative error of the entries that the type can hold."""
    seen = np.abs(expected) > (1e-37 if dtype is np.float32 else 1e-290)
    return np.abs(found.cpu().numpy()[seen] / expected[seen] - 1.0).max(initial=0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_of_the_gradient_is_right(name, dtype):
    tolerance = 1e-6 if dtype is np.float32 else 1e-12
    for k, (scores, labels, weights) in enumerate(hostile_batches(dtype)):
        knobs = {"surrogate": name, "margin": 0.3 * (k % 2), "reduction": "sum"}
        weights = weights if k % 3 else None
        leaf = tensor(scores).requires_grad_()
        loss = pair_loss(leaf, tensor(labels), weights=tensor(weights), **knobs)
        loss.backward()
        value, grad = ep.naive.pair_loss_and_grad(
            scores.astype(float), labels, weights=weights, **knobs
        )
        assert relative_error(leaf.grad, grad, dtype) <= tolerance
        assert loss.item() == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(
    ("surrogate", "margin", "weighted"), [("logistic", 0.0, False), ("sigmoid", 0.3, True)]
)
def test_blocks_of_nearly_equal_scores(surrogate, margin, weighted):
    # Blocks of 32 rows: the lower ones span more than `plan.WIDTH`, the upper ones less.
    rng = np.random.default_rng(4)
    scores = np.r_[rng.normal(size=50), 3.0 + 1e-4 * rng.normal(size=80)].astype(np.float32)
    labels, weights = rng.random(130) < 0.4, rng.random(130) if weighted else None
    knobs = {"surrogate": surrogate, "margin": margin, "reduction": "sum"}
    leaf = tensor(scores).requires_grad_()
    loss = pair_loss(leaf, tensor(labels), weights=tensor(weights), **knobs)
    loss.backward()
    knobs["weights"] = weights
    value, grad = ep.naive.pair_loss_and_grad(scores.astype(float), labels, **knobs)
    assert relative_error(leaf.grad, grad, np.float32) <= 2e-7
    assert loss.item() == pytest.approx(value, rel=2e-7)


def test_which_surrogates_have_an_expansion_at_0():
    value, slope, curvature, third = expansion(surrogates.logistic(0.5).at_margin(0.0))
    # log(1 + exp(2 d)) / 1 at d = 0, up to the error of its fit.
    assert (value, slope, curvature) == pytest.approx((np.log(2.0), 1.0, 1.0), rel=1e-6)
    assert abs(third) <= 1e-4
    assert expansion(surrogates.get("sigmoid").at_margin(0.3))[3] == pytest.approx(-0.125, rel=1e-5)
    assert expansion(surrogates.get("squared_softplus").at_margin(0.0)) is None


@pytest.mark.parametrize("surrogate", [*NAMES, TANH], ids=str)
def test_second_derivatives(surrogate):
    rng = np.random.default_rng(1)
    scores, vector = rng.normal(size=40), rng.normal(size=40)
    labels, weights = np.arange(40) % 2 == 0, rng.random(40)
    knobs = {"surrogate": surrogate, "margin": 0.25}
    leaf = tensor(scores).requires_grad_()
    data = tensor(labels), tensor(weights)
    loss = pair_loss(leaf, data[0], weights=data[1], **knobs)
    (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
    (hvp,) = torch.autograd.grad(grad, leaf, tensor(vector))
    found = pair_derivatives(tensor(scores), data[0], weights=data[1], **knobs)
    knobs["weights"] = weights
    value, slope, hess = ep.naive.pair_derivatives(scores, labels, **knobs)
    expected = ep.naive.pair_hvp(scores, labels, vector, **knobs)
    close = {"rtol": 1e-11, "atol": 1e-13}
    np.testing.assert_allclose(loss.item(), value, **close)
    np.testing.assert_allclose(found.grad.cpu(), slope, **close)
    np.testing.assert_allclose(found.hess.cpu(), hess, **close)
    np.testing.assert_allclose(hvp.cpu(), expected, **close)


@pytest.mark.parametrize("name", NAMES)
def test_finite_scores_never_give_nan(name):
    large, largest = [1e300, -1e300, 0.0, 1.0], [1.7e308, -1.7e308, -1.7e308, 1.7e308]
    for scores, labels in (
        (large, [1, 0, 1, 0]),
        (large, [0, 1, 1, 0]),
        (largest, [1, 0, 1, 0]),
        (largest, [1, 1, 1, 1]),
    ):
        data = tensor(np.array(scores)), tensor(labels)
        found = pair_derivatives(*data, surrogate=name, reduction="sum")
        assert not any(part.isnan().any() for part in found)


def test_other_surrogates_are_left_to_torch_operations():
    laplace = surrogates.fit(lambda t: np.exp(-abs(t)), name="laplace")
    other_knot = Surrogate("other", (*surrogates.logistic().terms, Term(0.0, 1.0, 0.0, knot=1.0)))
    for surrogate in (laplace, other_knot, surrogates.exponential()):
        terms = surrogate.at_margin(0.5)
        assert not takes(terms)
        assert choose_backend(torch.zeros(3), terms=terms) == "operations"
    for surrogate in (*map(surrogates.get, NAMES), surrogates.logistic(0.01), TANH):
        assert takes(surrogate.at_margin(0.5))

"""Ordered and survival pairs by Triton kernels, level by level."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import everypair as ep
from everypair import surrogates
from everypair.arrays import levels
from everypair.torch import pair_derivatives, pair_loss
from everypair.torch._dispatch import choose_backend, forced
from everypair.torch.triton.common.launch import INTERPRETED
from everypair.torch.triton.ordered import takes

from ...laws import ORDERED_LAWS, examples_over
from ..backends import TorchBackend
from .device import DEVICE, tensor
from .sizes import small_blocks

SIZES = {"BLOCK": 16, "ROWS": 32}
# Partial losses have binary labels. Some batches take minutes in the interpreter.
SLOW = ("repetition", "adding_a_constant", "scaling")
LEFT_OUT = ("partial", *SLOW) if INTERPRETED else ("partial",)
globals().update(
    {name: law for name, law in ORDERED_LAWS.items() if not any(word in name for word in LEFT_OUT)}
)


@pytest.fixture(scope="module")
def backend():
    with small_blocks(**SIZES), examples_over(40 if INTERPRETED else 10):
        yield TorchBackend("torch triton", DEVICE)


@pytest.fixture
def only_kernels(monkeypatch):
    """Make torch operations fail, so that the kernels have to compute everything."""
    monkeypatch.setattr(levels, "evaluate", None)
    with small_blocks(**SIZES), forced("triton"):
        yield


def table(n=40, grades=9, dtype=np.float64):
    rng = np.random.default_rng(n + grades)
    scores = rng.normal(size=n).round(1).astype(dtype)
    return scores, rng.integers(0, grades, n) / 2.0, rng


def assert_right(found, expected, dtype):
    tolerance = 1e-6 if dtype is np.float32 else 1e-12
    for ours, theirs in zip(found, expected, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours.cpu(), theirs, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("grades", [2, 5, 10**6])
@pytest.mark.parametrize("surrogate", ["squared_hinge", "linear_hinge"])
def test_derivatives_equal_the_double_sum(only_kernels, surrogate, grades, dtype):
    scores, targets, rng = table(grades=grades, dtype=dtype)
    knobs = {"pairs": "ordered", "surrogate": surrogate}
    rows = {}
    if (surrogate == "squared_hinge") == (dtype is np.float32):
        rows = {"groups": rng.integers(0, 3, scores.size), "weights": rng.random(scores.size)}
    tensors = {name: tensor(array) for name, array in rows.items()}
    found = pair_derivatives(tensor(scores), tensor(targets), **knobs, **tensors)
    expected = ep.naive.pair_derivatives(scores.astype(float), targets, **knobs, **rows)
    assert_right(found, expected, dtype)


def test_hessian_times_vector_of_float32_scores(only_kernels):
    scores, targets, rng = table(dtype=np.float32)
    vector = rng.normal(size=scores.size).astype(np.float32)
    leaf = tensor(scores).requires_grad_()
    loss = pair_loss(leaf, tensor(targets), pairs="ordered")
    (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
    (hvp,) = torch.autograd.grad(grad, leaf, tensor(vector))
    expected = ep.naive.pair_hvp(scores.astype(float), targets, vector, pairs="ordered")
    np.testing.assert_allclose(hvp.cpu(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_an_offset_of_all_scores(only_kernels, offset):
    scores, targets, _ = table()
    scores = scores / 8 + offset
    knobs = {"pairs": "ordered", "margin": 0.125}
    found = pair_derivatives(tensor(scores), tensor(targets), **knobs)
    assert_right(found, ep.naive.pair_derivatives(scores, targets, **knobs), np.float64)


def test_which_terms_the_kernels_take():
    scores, wide = torch.zeros(3), torch.zeros(3, dtype=torch.float64)
    hinge = surrogates.SQUARED_HINGE.at_margin(1.0)
    assert takes(scores, hinge, scores)
    assert takes(wide, hinge, None)
    assert not takes(wide, hinge, wide)
    for name in ("huber_hinge", "square", "logistic"):
        terms = surrogates.get(name).at_margin(1.0)
        assert not takes(scores, terms, None)
        with forced("triton"):
            assert choose_backend(scores, None, terms, "ordered") == "operations"
    with forced("triton"):
        assert choose_backend(scores, scores, hinge, "ordered") == "triton"

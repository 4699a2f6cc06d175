"""Ordered pairs in the compiled kernel: equal to the double sum and to the levels."""

from __future__ import annotations

import math

import numpy as np
import pytest

import everypair as ep
from everypair import naive
from everypair.inputs import batches
from everypair.kernel import choose, native
from everypair.kernel.request import Request
from everypair.surrogates import Surrogate, Term

from .strategies import SURROGATES
from .tolerances import assert_close

pytestmark = pytest.mark.skipif(
    native.kernel is None, reason="the compiled kernel is not installed"
)

SCORES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "offset": lambda rng, n: 1e6 + rng.normal(size=n),
    "grid": lambda rng, n: rng.integers(-20, 20, n) / 8.0,
    "wide": lambda rng, n: 100.0 * rng.normal(size=n),
    "narrow": lambda rng, n: 1e-3 * rng.normal(size=n),
    "outliers": lambda rng, n: rng.normal(size=n) * np.where(rng.random(n) < 0.05, 1e8, 1.0),
}
TARGETS = {
    "distinct": lambda rng, n: rng.permutation(n),
    "five grades": lambda rng, n: rng.integers(0, 5, n),
    "one frequent": lambda rng, n: np.where(rng.random(n) < 0.9, 3.5, rng.normal(3.5, size=n)),
}


def compiled(scores, targets, surrogate, *, weights=None, groups=None, margin=1.0, vector=None):
    """Return the mean of the compiled kernel; None if it declines."""
    batch = batches.batch_from(scores, targets, weights, groups, pairs="ordered")
    terms = surrogate.at_margin(margin)
    return native.pair_sums(Request(batch, terms, True, True, True, vector))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kind", SCORES)
def test_equals_the_double_sum_at_any_offset_and_spread(kind, targets, dtype):
    for n in (33, 70, 300):
        rng = np.random.default_rng(n)
        y, v = targets(rng, n), rng.normal(size=n)
        x = (SCORES[kind](rng, n) + 0.01 * y).astype(dtype)
        weights = rng.random(n) if n == 70 else None
        for surrogate in SURROGATES:
            got = compiled(x, y, surrogate, weights=weights, vector=v)
            several = len(surrogate.terms) > 1
            if got is None:  # the kernel declines terms that cancel
                assert several
                assert kind in ("outliers", "wide")
                continue
            knobs = {"surrogate": surrogate, "weights": weights, "pairs": "ordered", "margin": 1.0}
            value, grad, hess = naive.pair_derivatives(x, y, **knobs)
            assert_close(got.value, value, dtype)
            assert_close(got.grad, grad, dtype)
            # Second derivatives of several terms may cancel to zero.
            assert_close(got.hess, hess, dtype, scale=several / n)
            scale = (np.abs(hess).max() + 1.0 / n) * np.abs(v).max()
            assert_close(got.hvp, naive.pair_hvp(x, y, v, **knobs), dtype, scale=scale)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
def test_equals_the_levels_on_many_rows(targets, weighted):
    rng = np.random.default_rng(0)
    n = 40_000
    y, x, v = targets(rng, n), rng.normal(size=n), rng.normal(size=n)
    weights = rng.random(n) if weighted else None
    groups = rng.integers(0, 7, n)
    batch = batches.batch_from(x, y, weights, groups, pairs="ordered")
    for surrogate in (ep.surrogates.SQUARED_HINGE, ep.surrogates.SQUARE):
        request = Request(batch, surrogate.at_margin(1.0), True, True, True, v)
        by_levels = choose.level_sums(request, batch.ranked.rows)
        for got, expected in zip(native.pair_sums(request), by_levels, strict=True):
            assert_close(got, expected, np.float64)


def test_scores_as_large_as_float64_allows():
    x, y, w = np.array([-1.7e308, 0.0, 1.7e308, -1.0]), np.arange(4), np.array([1.0, 2.0, 3.0, 0.5])
    for weights in (None, w):
        expected = naive.auc(x, y, weights=weights, pairs="ordered")
        assert ep.auc(x, y, weights=weights, pairs="ordered") == pytest.approx(expected)
    loss = ep.pair_loss(x[:3], y[:3], surrogate="linear_hinge", pairs="ordered")
    assert loss == 0.0
    with pytest.raises(OverflowError):
        ep.pair_loss(x, y, pairs="ordered")


def test_terms_that_cancel_are_left_to_the_levels():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=100), rng.normal(size=100)
    x[0] = 1e12
    ramp = Surrogate("ramp", (Term(0.0, 1.0, 0.0, knot=0.0), Term(1e-6, -1.0, 0.0, knot=1e-6)))
    assert compiled(x, y, ramp) is None
    expected = naive.pair_loss(x, y, surrogate=ramp, pairs="ordered")
    got = ep.pair_loss(x, y, surrogate=ramp, pairs="ordered")
    assert math.isclose(got, expected, rel_tol=1e-12)

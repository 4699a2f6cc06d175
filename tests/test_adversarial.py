"""Difficult inputs: ties, clusters, offsets, outliers, subnormal and huge numbers, many groups."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import everypair as ep
from everypair import naive
from everypair.surrogates import Surrogate, Term

from .sort_oracle import squared_hinge_by_sorting
from .strategies import SURROGATES, Batch, computed, double_sum
from .tolerances import assert_close


def grid(x, step=2.0**-10):
    """Round to a dyadic grid, where shortfalls are exact: all backends find the same knots."""
    return np.round(x / step) * step


# (rng, labels) -> scores
CASES = {
    "normal": lambda rng, y: rng.normal(size=y.size) + y,
    "all equal": lambda rng, y: np.full(y.size, 0.1),
    "two clusters": lambda rng, y: grid(rng.normal(size=y.size)) + 1e6 * (rng.random(y.size) < 0.5),
    "two clusters, positives high": lambda rng, y: (
        grid(rng.normal(size=y.size)) + 1e6 * (y | (rng.random(y.size) < 0.3))
    ),
    "offset": lambda rng, y: grid(rng.normal(size=y.size), 0.125) + 1e6,
    "negative offset": lambda rng, y: grid(rng.normal(size=y.size), 0.125) - 2.0**20,
    "sorted": lambda rng, y: np.sort(grid(rng.normal(size=y.size))),
    "reversed": lambda rng, y: np.sort(grid(rng.normal(size=y.size)))[::-1].copy(),
    "heavy duplicates": lambda rng, y: rng.integers(0, 5, y.size) / 4,
    "one heavy value": lambda rng, y: np.where(
        rng.random(y.size) < 0.9, 0.25, rng.normal(size=y.size)
    ),
    "saturated sigmoid": lambda rng, y: grid(
        1 / (1 + np.exp(-30 * rng.normal(size=y.size))), 2.0**-20
    ),
    "Cauchy": lambda rng, y: rng.standard_cauchy(y.size),
    "separated": lambda rng, y: grid(rng.random(y.size)) + 3.0 * y,
    "separated the wrong way": lambda rng, y: grid(rng.random(y.size)) - 3.0 * y,
    "tiny differences": lambda rng, y: 0.5 + 2.0**-20 * rng.integers(-8, 9, y.size),
    "twelve decades": lambda rng, y: 10.0 ** rng.uniform(-6, 6, y.size),
    "thirty decades": lambda rng, y: 10.0 ** rng.uniform(-15, 15, y.size),
    "one outlier": lambda rng, y: np.where(
        np.arange(y.size) == 7, -1e6, grid(rng.normal(size=y.size))
    ),
}


@cache
def batch_of(case, n, share, dtype, margin=1.0):
    rng = np.random.default_rng(20)
    labels = rng.random(n) < share
    scores = CASES[case](rng, labels).astype(dtype)
    return Batch(scores, labels, rng.normal(size=n), {"margin": margin, "reduction": "mean"})


@cache
def expected_of(case, n, share, dtype, margin, surrogate):
    return double_sum(batch_of(case, n, share, dtype, margin), surrogate)


def check(backend, case, n, share, dtype, margin, surrogate):
    batch = batch_of(case, n, share, dtype, margin)
    check_batch(backend, batch, surrogate, expected_of(case, n, share, dtype, margin, surrogate))


def check_batch(backend, batch, surrogate, expected):
    dtype, got = batch.dtype, computed(backend, batch, surrogate)
    # Curvatures of several terms may cancel, as those of the Huber hinge do far from its knots.
    smaller = min(batch.labels.sum(), (~batch.labels).sum())
    curvature = 2.0 / smaller if len(surrogate.terms) > 1 else 0.0
    assert_close(got.value, expected.value, dtype)
    assert_close(got.grad, expected.grad, dtype)
    assert_close(got.hess, expected.hess, dtype, scale=curvature)
    assert_close(got.hvp, expected.hvp, dtype, scale=curvature * np.abs(batch.vector).max())
    loss, grad = backend.loss_and_grad(
        batch.scores, batch.labels, surrogate=surrogate, **batch.knobs
    )
    assert_close(loss, expected.value, dtype)
    assert_close(grad, expected.grad, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
@pytest.mark.parametrize("case", [case for case in CASES if case != "thirty decades"])
def test_every_surrogate(backend, case, surrogate, dtype):
    check(backend, case, 600, 0.2, dtype, 1.0, surrogate)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0.03, 0.97])
@pytest.mark.parametrize(
    "surrogate", [s for s in SURROGATES if len(s.terms) > 1], ids=lambda s: s.name
)
@pytest.mark.parametrize("case", [case for case in CASES if case != "thirty decades"])
def test_few_of_one_class_and_several_terms(backend, case, surrogate, share, dtype):
    check(backend, case, 1200, share, dtype, 1.0, surrogate)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["square", "squared_hinge", "linear_hinge"])
def test_thirty_decades(backend, name, dtype):
    # Large terms that cancel lose as many digits as there are decades between the scores.
    check(backend, "thirty decades", 600, 0.2, dtype, 1.0, ep.surrogates.get(name))


@pytest.mark.parametrize("margin", [0.0, 0.25])
@pytest.mark.parametrize("case", CASES)
def test_small_margins(backend, case, margin):
    check(backend, case, 2000, 0.5, np.float32, margin, ep.surrogates.SQUARED_HINGE)


@pytest.mark.parametrize("share", [0.05, 0.97])
@pytest.mark.parametrize(
    "case",
    ["normal", "offset", "saturated sigmoid", "heavy duplicates", "Cauchy", "thirty decades"],
)
def test_twenty_thousand_rows(backend, case, share):
    batch = batch_of(case, 20_000, share, np.float32)
    expected = squared_hinge_by_sorting(batch.scores, batch.labels, 1.0, batch.vector)
    check_batch(backend, batch, ep.surrogates.SQUARED_HINGE, expected)


@pytest.mark.parametrize("case", CASES)
def test_the_two_oracles_agree(case):
    batch = batch_of(case, 500, 0.2, np.float32)
    by_sorting = squared_hinge_by_sorting(batch.scores, batch.labels, 1.0, batch.vector)
    by_pairs = expected_of(case, 500, 0.2, np.float32, 1.0, ep.surrogates.SQUARED_HINGE)
    for field in ("value", "grad", "hess", "hvp"):
        assert_close(getattr(by_sorting, field), getattr(by_pairs, field), np.float32)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
def test_twenty_thousand_rows_with_every_surrogate(backend, surrogate):
    check(backend, "normal", 20_000, 0.005, np.float64, 1.0, surrogate)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["square", "squared_hinge", "huber_hinge"])
def test_a_sigmoid_saturated_to_the_last_bit(backend, name, dtype):
    # These scores are not on a grid, where backends may disagree about pairs on a knot. So the
    # surrogates are smooth.
    rng = np.random.default_rng(21)
    labels = rng.random(3000) < 0.3
    scores = (1 / (1 + np.exp(-20 * rng.normal(size=3000)))).astype(dtype)
    batch = Batch(scores, labels, scores, {"margin": 1.0})
    got, want = computed(backend, batch, ep.surrogates.get(name)), double_sum(batch, name)
    assert_close(got.value, want.value, dtype)
    assert_close(got.grad, want.grad, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["square", "squared_hinge", "linear_hinge", "huber_hinge"])
@pytest.mark.parametrize("margin", [0.0, 1.0])
def test_subnormal_scores(backend, name, dtype, margin):
    rng = np.random.default_rng(22)
    labels = rng.random(500) < 0.3
    scores = (rng.integers(-50, 50, 500) * np.finfo(dtype).smallest_subnormal).astype(dtype)
    batch = Batch(scores, labels, np.ones(500), {"margin": margin, "reduction": "sum"})
    got, want = computed(backend, batch, ep.surrogates.get(name)), double_sum(batch, name)
    assert_close(got.value, want.value, np.float64)
    assert_close(got.grad, want.grad, dtype)


@pytest.mark.parametrize("n", [2, 3, 17, 1000])
@pytest.mark.parametrize("name", ["square", "squared_hinge", "linear_hinge"])
def test_scores_of_1e150(backend, name, n):
    rng = np.random.default_rng(23)
    scores = rng.choice([-1e150, 1e150, 0.0], n)
    labels = np.arange(n) % 2
    # Margin 0, because a margin of 1 is lost when it is added to such scores.
    loss, grad = backend.loss_and_grad(scores, labels, surrogate=name, margin=0.0)
    expected = naive.pair_loss_and_grad(scores, labels, surrogate=name, margin=0.0)
    assert_close(loss, expected[0], np.float64)
    assert_close(grad, expected[1], np.float64)


@pytest.mark.parametrize("n", [3, 17, 1000])
@pytest.mark.parametrize("name", ["square", "squared_hinge"])
def test_a_loss_that_overflows_is_an_error(backend, name, n):
    scores = np.random.default_rng(23).choice([-1.7e308, 1.7e308, 0.0, 1e200], n)
    with pytest.raises(OverflowError, match="range of float64"):
        backend.loss_and_grad(scores, np.arange(n) % 2, surrogate=name)


def test_large_float32_scores(backend):
    scores = np.array([-3e38, 3e38, 1e38], np.float32)
    loss, grad = backend.loss_and_grad(scores, [1, 0, 0])
    want = naive.pair_loss_and_grad(scores.astype(float), [1, 0, 0])
    assert_close(loss, want[0], np.float32)
    assert loss > 1e76
    assert np.isneginf(grad[0])


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
def test_many_small_groups(backend, surrogate):
    rng = np.random.default_rng(24)
    n = 1000
    groups = rng.integers(0, 230, n)
    scores = grid(rng.normal(size=n)) + grid(1000.0 * np.sin(groups))
    batch = Batch(
        scores,
        rng.random(n) < 0.4,
        rng.normal(size=n),
        {"margin": 1.0, "groups": groups, "weights": rng.random(n)},
    )
    got, want = computed(backend, batch, surrogate), double_sum(batch, surrogate)
    for field in ("value", "grad", "hess", "hvp"):
        assert_close(getattr(got, field), getattr(want, field), np.float64)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
def test_weights_of_many_sizes(backend, surrogate):
    rng = np.random.default_rng(25)
    n = 2000
    batch = Batch(
        rng.normal(size=n),
        rng.random(n) < 0.1,
        rng.normal(size=n),
        {"weights": 10.0 ** rng.uniform(-6, 6, n) * (rng.random(n) < 0.8)},
    )
    got, want = computed(backend, batch, surrogate), double_sum(batch, surrogate)
    for field in ("value", "grad", "hess", "hvp"):
        assert_close(getattr(got, field), getattr(want, field), np.float64)


def test_an_offset_does_not_change_the_result(backend):
    # A grid of 2^-10 stays exact in float64 up to an offset of 2^42.
    batch = batch_of("sorted", 3000, 0.2, np.float64)
    here = backend.loss_and_grad(batch.scores, batch.labels)
    for offset in (2.0**20, -(2.0**42)):
        there = backend.loss_and_grad(batch.scores + offset, batch.labels)
        assert_close(there[0], here[0], np.float64)
        assert_close(there[1], here[1], np.float64)


@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
def test_a_wide_group_does_not_change_a_narrow_one(backend, groups):
    tiny = 2.0**-20
    scores = np.array([0.0, 1e9, -5.0, 0.0, tiny, 2 * tiny])
    loss, grad = backend.loss_and_grad(
        scores, [1, 1, 0, 1, 1, 0], groups=groups, margin=0.0, reduction="sum"
    )
    assert_close(loss, 5 * tiny**2, np.float64)
    assert_close(grad, [0.0, 0.0, 0.0, -4 * tiny, -2 * tiny, 6 * tiny], np.float64)


def bending(*bends):
    return Surrogate("bending", [Term(b * k * k, -2 * b * k, b, knot=k) for b, k in bends])


def assert_equals_double_sum(backend, scores, labels, **knobs):
    value, grad, hess = naive.pair_derivatives(scores.astype(np.float64), labels, **knobs)
    got = backend.derivatives(scores, labels, **knobs)
    assert_close(got[0], value, scores.dtype)
    assert_close(got[1], grad, scores.dtype)
    assert_close(got[2], hess, scores.dtype, scale=2.0 / min(labels.sum(), (~labels).sum()))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pairs_on_a_knot_with_few_positives(backend, dtype):
    labels = np.arange(40) < 2
    scores = np.zeros(40, dtype)
    scores[:2] = 0.3, 1.0
    capped = Surrogate("capped", [Term(0, 1, 0, knot=0), Term(0.5, -1, 0, knot=0.5)])
    assert_equals_double_sum(backend, scores, labels, surrogate=capped)


@pytest.mark.parametrize(
    ("dtype", "outlier"), [(np.float64, -1e6), (np.float64, -1e9), (np.float32, -1e12)]
)
def test_an_outlier_does_not_change_the_other_rows(backend, dtype, outlier):
    rng = np.random.default_rng(8)
    labels = np.arange(3000) < 90
    scores = rng.normal(size=3000)
    scores[0] = 1.23 * outlier
    assert_equals_double_sum(backend, scores.astype(dtype), labels, surrogate="huber_hinge")


def test_a_positive_whose_square_overflows(backend):
    rng = np.random.default_rng(9)
    scores = rng.normal(size=400)
    scores[0] = 1e155
    surrogate = bending((1.0, 0.0), (1.0, 0.5))
    assert_equals_double_sum(backend, scores, np.arange(400) < 20, surrogate=surrogate)


def test_coefficients_whose_products_overflow_float32(backend):
    rng = np.random.default_rng(10)
    scores = (1e-10 * rng.normal(size=400)).astype(np.float32)
    knobs = {"surrogate": bending((1e37, 0.0), (1e37, 1e-11)), "margin": 0.0, "reduction": "sum"}
    labels = np.arange(400) < 20
    expected = naive.pair_loss_and_grad(scores.astype(np.float64), labels, **knobs)
    for got, wanted in zip(backend.loss_and_grad(scores, labels, **knobs), expected, strict=True):
        assert_close(got, wanted, np.float32)


def test_distances_beyond_the_range_of_float32(backend):
    rng = np.random.default_rng(12)
    labels = np.arange(400) < 20
    scores = np.where(labels, -3e38, rng.uniform(-3e38, 3e38, 400)).astype(np.float32)
    knobs = {"surrogate": bending((1e-10, 0.0), (1e-10, 0.5))}
    _, expected = naive.pair_loss_and_grad(scores.astype(np.float64), labels, **knobs)
    assert_close(backend.loss_and_grad(scores, labels, **knobs)[1], expected, np.float32)


@pytest.mark.parametrize("gap", [1e-3, 1e-4])
def test_a_slope_that_returns_to_zero(backend, gap):
    rng = np.random.default_rng(11)
    labels = np.arange(2000) < 50
    scores = np.where(labels, 0.0, 2 - gap * rng.uniform(1, 2, 2000)).astype(np.float32)
    surrogate = bending((1.0, 0.0), (-2.0, 1.0), (1.0, 2.0))
    expected = naive.pair_loss_and_grad(
        scores.astype(np.float64), labels, surrogate=surrogate, margin=0.0
    )
    got = backend.loss_and_grad(scores, labels, surrogate=surrogate, margin=0.0)
    for found, wanted in zip(got, expected, strict=True):
        assert_close(found, wanted, np.float32)

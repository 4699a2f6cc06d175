"""The array implementation in NumPy, against exact arithmetic, where long double failed."""

from __future__ import annotations

import numpy as np
import pytest

from everypair.arrays.double_double import Number
from everypair.arrays.numpy import NumpyArrays, evaluate
from everypair.arrays.rows import Runs
from everypair.arrays.terms import split
from everypair.surrogates import HUBER_HINGE, SQUARE, SQUARED_HINGE, exponential, logistic

from .conftest import ArrayBackend
from .strategies import BUMPY

NUMPY = ArrayBackend("numpy")


@pytest.mark.parametrize("far", [1e30, 1.7e308])
@pytest.mark.parametrize("surrogate", [SQUARE, SQUARED_HINGE, logistic(), exponential()])
def test_the_vector_at_rows_without_weight_changes_nothing(surrogate, far):
    """Neither as rounding errors of other rows, nor as differences that overflow."""
    scores, positive = np.array([0.0, 0.5, 0.0, 0.5]), np.array([True, False, True, False])
    weights = np.array([1.0, 1.0, 0.0, 0.0])
    near = 1.0 if far == 1e30 else far
    vector = np.array([-0.1 * near, -0.05 * near, far, -far])

    def product(rows):
        return evaluate(
            scores[rows], positive[rows], weights[rows], None, vector[rows],
            surrogate.at_margin(1.0), mean=True, grad=False, hess=False,
        )[4]  # fmt: skip

    expected = [*product(slice(2)), 0.0, 0.0]
    np.testing.assert_allclose(product(slice(4)), expected, rtol=1e-12)


@pytest.mark.parametrize("weights", [1e-200, 1e-320, 1e200])
def test_auc_with_weights_of_any_size(weights):
    scores, labels = [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]
    assert NUMPY.auc(scores, labels, weights=np.full(4, weights)) == 0.75


def test_the_pair_weight_is_zero_only_without_pairs():
    def pair_weight(weights):
        return evaluate(
            np.zeros(2), np.array([True, False]), np.array(weights), None, None,
            SQUARED_HINGE.at_knots(1.0), mean=True, grad=False, hess=False,
        )[1]  # fmt: skip

    assert pair_weight([2.0, 3.0]) == 6.0
    assert 0.0 < pair_weight([1e-200, 1e-200]) < 1e-300
    assert 1e300 < pair_weight([1e200, 1e200]) < np.inf
    assert pair_weight([1.0, 0.0]) == 0.0


def test_terms_whose_squares_cancel_are_linear_beyond_their_knots():
    hinged, everywhere, below = split(HUBER_HINGE.at_knots(1.0))
    assert everywhere is below is None
    assert hinged.far == (1.0,)
    assert hinged.reach == (2.0,)
    hinged, everywhere, below = split(BUMPY.at_knots(1.0))
    assert hinged.far is below is None
    assert everywhere.b2 == (0.5,)


@pytest.mark.parametrize("n", [1, 7, 20_001])
def test_arithmetic_keeps_twice_the_digits(n):
    rng = np.random.default_rng(6)
    xp = NumpyArrays(compensated=True)
    a, b = (rng.normal(size=n) * 2.0 ** rng.integers(-9, 9, n) for _ in range(2))
    wide = a.astype(np.longdouble)

    def error(got, want):
        return np.abs((np.asarray(got.high, np.longdouble) - want) + got.low).max()

    product, total = xp.times(Number(a), Number(b)), xp.plus(Number(a), Number(b))
    assert (total.high == a + b).all()
    assert error(product, wide * b) <= np.finfo(np.longdouble).eps * np.abs(a * b).max()
    groups = np.arange(n) // 1000
    runs = Runs(xp, np.arange(n), *xp.bounds(groups))
    size = np.abs(product.high).sum()
    for rows in np.split(np.arange(n), np.flatnonzero(np.diff(groups)) + 1):
        sums = np.cumsum((wide * b)[rows])
        got = Number(*(part[rows] for part in xp.prefix(product, runs)))
        assert error(got, sums) <= 1000 * np.finfo(np.longdouble).eps * size


def test_many_ties_are_sorted_by_rank():
    rng = np.random.default_rng(7)
    value, rank = rng.integers(0, 50, (2, 5000)) / 4.0, rng.integers(0, 3, (2, 5000), np.uint8)
    order = NumpyArrays(compensated=True).order([rank, value])
    for row, places in enumerate(order):
        keys = list(zip(value[row][places], rank[row][places], strict=True))
        assert keys == sorted(keys)
        assert sorted(places) == list(range(5000))

"""Inputs whose sums overflow, vanish or lose digits in plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everypair.surrogates import HUBER_HINGE, LINEAR_HINGE, SQUARED_HINGE

from .extreme_cases import (
    CASES,
    assert_answers,
    assert_exact,
    assert_exact_beside_outliers,
    assert_exact_groups,
    assert_exact_product,
    batch,
    shaped,
)
from .fuzz.batches import ZERO_ONE
from .fuzz.oracle import exact
from .strategies import POLYNOMIALS
from .tolerances import assert_close


@pytest.mark.parametrize("name", CASES)
def test_results_are_exact(backend, name):
    assert_exact(backend, name)


@pytest.mark.parametrize("share", [0.05, 0.97])
@pytest.mark.parametrize("shape", ["offset", "saturated sigmoid", "heavy duplicates", "Cauchy"])
def test_many_rows(backend, shape, share):
    many = shaped(shape, 20_000, share, np.float32)
    assert_answers(backend, many, exact(many))


@pytest.mark.parametrize("surrogate", POLYNOMIALS, ids=lambda s: s.name)
def test_many_rows_with_few_positives(backend, surrogate):
    many = shaped("normal", 20_000, 0.005, np.float64, surrogate=surrogate)
    assert_answers(backend, many, exact(many))


@pytest.mark.parametrize(
    ("shape", "dtype", "share"), [("offset", np.float32, 0.01), ("normal", np.float64, 0.5)]
)
def test_rows_for_several_threads(backend, shape, dtype, share):
    many = shaped(shape, 150_000, share, dtype, margin=0.1)
    expected = exact(many)
    loss, grad = backend.loss_and_grad(many.scores, many.labels, **many.options)
    assert_close(loss, expected.value, dtype)
    assert_close(grad, expected.grad, dtype)
    assert grad.dtype == dtype


@pytest.mark.parametrize(("pairs", "n"), [("binary", 10**6), ("ordered", 300_000)])
def test_constant_weights_of_many_rows_do_not_drift(backend, pairs, n):
    rng = np.random.default_rng(7)
    n = n // 10 if (backend.name, pairs) == ("numpy", "ordered") else n
    scores = rng.normal(size=n)
    labels = rng.random(n) < 0.5 if pairs == "binary" else rng.normal(size=n)
    value, grad = backend.loss_and_grad(scores, labels, pairs=pairs)
    weights = np.full(n, 0.1)
    same, same_grad = backend.loss_and_grad(scores, labels, weights=weights, pairs=pairs)
    assert_close(same, value, np.float64)
    assert_close(same_grad, grad, np.float64)


# Surrogates with a result that counts the pairs that contribute.
COUNTS = ((ZERO_ONE, "value"), (LINEAR_HINGE, "grad"), (SQUARED_HINGE, "hess"))


def assert_counts(backend, batch_of, *arguments, **knobs):
    """Check that the pairs that contribute are exactly those beyond the knot."""
    for surrogate, field in COUNTS:
        made = batch_of(*arguments, surrogate=surrogate, reduction="sum", **knobs)
        results = backend.derivatives(made.scores, made.labels, **made.options)
        result = dict(zip(("value", "grad", "hess"), results, strict=True))[field]
        np.testing.assert_array_equal(result, getattr(exact(made), field))


# Scores whose differences come close to a margin, hit it, or drown in rounding.
CLOSE = st.one_of(
    st.integers(-30, 30).map(lambda k: k / 10),
    st.integers(-300, 300).map(lambda k: k / 100),
    st.sampled_from([-1.0, 1e-17, 2e-17, -1e-17, 0.0, 1 - 1e-16, -1e8, 1e17, -1e17, 1e6 + 0.1]),
    st.floats(-1e3, 1e3),
)


@settings(max_examples=150)
@given(
    rows=st.lists(st.tuples(CLOSE, st.booleans()), min_size=2, max_size=40),
    margin=st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 1e-17, 2.0]),
    dtype=st.sampled_from([np.float32, np.float64]),
    weighted=st.booleans(),
)
@example([(-0.3, True), (0.0, True), (-1.0, False)], 1.0, np.float64, False)
@example([(-1.0, True), (1e-17, True), (2e-17, False)], 0.0, np.float64, False)
@example([(-1e17, True), (0, False), (1, True), (2, False), (3, True)], 1.0, np.float32, False)
@example([(1e-17, True), (-1.0, False)], 1.0, np.float32, False)
def test_the_pairs_beyond_the_knot_are_exact(backend, rows, margin, dtype, weighted):
    weights = np.ones(len(rows)) if weighted else None
    assert_counts(backend, batch, *zip(*rows, strict=True), dtype, margin=margin, weights=weights)


@pytest.mark.parametrize("n", [3_000, 40_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_pairs_on_the_knot(backend, n, dtype):
    assert_counts(backend, shaped, "ties on knots", n, 0.3, dtype)


@pytest.mark.parametrize("surrogate", ["squared_hinge", "square", "logistic", "exponential"])
@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_with_vectors_and_weights_of_any_size(backend, dtype, pairs, surrogate):
    assert_exact_product(backend, dtype, pairs, surrogate)


@pytest.mark.parametrize("size", [1e12, -1e12, 1e26])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_distant_score_of_the_own_class_costs_no_digits(backend, dtype, size):
    assert_exact_beside_outliers(backend, dtype, size)


@pytest.mark.parametrize("surrogate", ["square", "squared_hinge", "logistic", "exponential"])
@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
def test_groups_of_very_different_weight_leave_each_other_alone(backend, pairs, surrogate):
    assert_exact_groups(backend, np.float64, pairs, surrogate, 2.0**60)


def test_a_product_of_a_tiny_curvature_and_a_huge_vector(backend):
    scores = np.array([120.0, 0.0], np.float32)
    product = backend.hvp(scores, [1, 0], [1e30, 0.0], surrogate="logistic")
    assert product == pytest.approx([7.667648e-23, -7.667648e-23], rel=1e-6)


def test_gradients_beyond_float32_are_infinite(backend):
    loss, grad = backend.loss_and_grad(np.array([-3e38, 3e38, 1e38], np.float32), [1, 0, 0])
    assert loss == pytest.approx(2.6e77, rel=1e-6)
    assert np.isneginf(grad[0])


@pytest.mark.parametrize("surrogate", ["linear_hinge", "square", HUBER_HINGE], ids=str)
@pytest.mark.parametrize("n", [3, 50, 1000])
def test_a_result_beyond_float64_is_an_error(backend, n, surrogate):
    rng, labels = np.random.default_rng(8), np.arange(n) % 2
    with pytest.raises(OverflowError, match="range of float64"):
        backend.loss(rng.standard_cauchy(n), labels, surrogate=surrogate, margin=1e308)
    with pytest.raises(OverflowError, match="range of float64"):
        backend.loss_and_grad(rng.choice([-1.7e308, 1.7e308, 0.0], n), labels, surrogate="square")
    for pairs in ("binary", "ordered"):
        knobs = {"weights": np.full(n, 1e10), "reduction": "sum", "pairs": pairs}
        with pytest.raises(OverflowError, match="range of float64"):
            backend.hvp(np.arange(n), labels, 1e300 * labels, **knobs)

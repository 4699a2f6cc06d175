"""Inputs whose sums overflow, vanish or lose digits in plain double precision."""

from __future__ import annotations

import numpy as np
import pytest

import everypair as ep
from everypair import surrogates
from everypair.surrogates import Surrogate, Term

from .exact import exact_double_sum
from .extreme_cases import (
    ALONE,
    CAPPED,
    LABELS,
    WEIGHTS,
    _scores,
    _weights,
    assert_exact,
    assert_exact_beside_outliers,
    assert_exact_groups,
    assert_exact_product,
)
from .strategies import BUMPY


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_any_size(backend, case):
    scores, knobs = WEIGHTS[case]
    assert_exact(backend, scores, LABELS, **knobs)


@pytest.mark.parametrize("case", ALONE)
def test_a_row_of_weight_zero_changes_nothing(backend, case):
    scores, labels, weights = ALONE[case]
    assert_exact(backend, scores, labels, weights=weights)


@pytest.mark.parametrize("size", [1e12, -1e12, 1e26])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_distant_score_of_the_own_class_costs_no_digits(backend, dtype, size):
    assert_exact_beside_outliers(backend, dtype, size)


@pytest.mark.parametrize("surrogate", ["square", "squared_hinge", "logistic", "exponential"])
@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
def test_groups_of_very_different_weight_leave_each_other_alone(backend, pairs, surrogate):
    assert_exact_groups(backend, np.float64, pairs, surrogate, 2.0**60)


@pytest.mark.parametrize("factor", [1e160, 1e-160, 1e-170, 1e300, 5e-324])
def test_auc_does_not_depend_on_the_scale_of_the_weights(backend, factor):
    ones = np.ones(LABELS.size)
    expected = backend.auc(_scores(), LABELS, weights=ones)
    assert backend.auc(_scores(), LABELS, weights=factor * ones) == pytest.approx(expected, 1e-14)


def test_one_class_with_weights_has_no_pair(backend):
    weights = np.where(LABELS, 0.0, _weights())
    value, grad = backend.loss_and_grad(_scores(), LABELS, weights=weights)
    assert value == 0.0
    assert not grad.any()


@pytest.mark.parametrize("surrogate", ["squared_hinge", "square", "logistic", "exponential"])
@pytest.mark.parametrize("pairs", ["binary", "ordered", "survival"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_with_vectors_and_weights_of_any_size(backend, dtype, pairs, surrogate):
    assert_exact_product(backend, dtype, pairs, surrogate)


def test_a_product_of_a_tiny_curvature_and_a_huge_vector(backend):
    scores = np.array([120.0, 0.0], np.float32)
    product = backend.hvp(scores, [1, 0], [1e30, 0.0], surrogate="logistic")
    assert product == pytest.approx([7.667648e-23, -7.667648e-23], rel=1e-6)


@pytest.mark.parametrize("pairs", ["binary", "ordered"])
def test_a_product_beyond_float64_is_an_error(backend, pairs):
    with pytest.raises(OverflowError, match="range of float64"):
        backend.hvp(
            [0.0, 1.0], [1, 0], [1e300, 0.0], weights=[1e10, 1e10], reduction="sum", pairs=pairs
        )


def test_an_offset_of_the_vector_costs_no_digits(backend):
    vector = np.random.default_rng(5).integers(-4, 5, LABELS.size) / 8.0  # exact after the offset
    expected = backend.hvp(_scores(), LABELS, vector)
    found = backend.hvp(_scores(), LABELS, vector + 2.0**40)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * abs(expected).max())


def test_absurd_numbers_of_threads():
    rng = np.random.default_rng(6)
    scores, labels = rng.normal(size=100_000), np.arange(100_000) % 2
    expected = ep.pair_loss(scores, labels)
    try:
        ep.set_num_threads(100_000)
        assert ep.pair_loss(scores, labels) == expected
        with pytest.raises(ValueError, match=r"threads must be .* got 2147483648"):
            ep.set_num_threads(2**31)
    finally:
        ep.set_num_threads(None)


def test_constant_weights_do_not_drift(backend):
    n = 10**6
    rng = np.random.default_rng(7)
    scores, labels = rng.normal(size=n), rng.random(n) < 0.5
    value, grad = backend.loss_and_grad(scores, labels)
    weighted, weighted_grad = backend.loss_and_grad(scores, labels, weights=np.full(n, 0.1))
    assert weighted == pytest.approx(value, rel=1e-12)
    assert abs(weighted_grad - grad).max() <= 1e-12 * abs(grad).max()


@pytest.mark.parametrize("surrogate", ["linear_hinge", "huber_hinge", "square", BUMPY])
@pytest.mark.parametrize(("pos", "neg"), [(1e-300, 1e300), (1e60, 1e60), (1e300, 1e300)])
def test_many_rows_of_extreme_weight_next_to_each_other(backend, surrogate, pos, neg):
    # Rows between the same two knots share running sums.
    scores = np.round(_scores(), 1)
    assert_exact(backend, scores, LABELS, surrogate=surrogate, weights=_weights(pos=pos, neg=neg))


def test_groups_whose_weights_differ_by_hundreds_of_decades(backend):
    scores, labels = np.tile([0.3, 0.1, 0.2, 0.5], 3), np.tile([1, 0, 1, 0], 3)
    groups = np.repeat([0, 1, 2], 4)
    powers = np.repeat([-600, 100, 300], 4) + np.tile([0, 200, 1, 199], 3)
    weights = np.ldexp(1.0, powers)
    expected = exact_double_sum(scores, labels, weights=weights, groups=groups)
    loss, grad = backend.loss_and_grad(scores, labels, weights=weights, groups=groups)
    assert loss == pytest.approx(expected.value, rel=1e-12)
    assert abs(grad - expected.grad).max() <= 1e-12 * abs(expected.grad).max()
    assert backend.auc(scores, labels, weights=weights, groups=groups) == pytest.approx(
        2 / 3, abs=1e-15
    )


def test_a_sum_of_denormal_weights_is_not_zero(backend):
    weights = np.full(4, 5e-324)
    scores = np.array([-1e250, -1e250, 1e250, 1e250])
    loss = backend.loss(
        scores, [1, 1, 0, 0], weights=weights, surrogate="linear_hinge", reduction="sum"
    )
    assert loss == 0.0  # 8e250 times 5e-324 twice
    weights[:2] = 1.0
    loss = backend.loss(
        scores, [1, 1, 0, 0], weights=weights, surrogate="linear_hinge", reduction="sum"
    )
    assert loss == pytest.approx(8e250 * 5e-324, rel=1e-12)


def test_a_distant_positive_of_little_weight(backend):
    scores, labels = [-1e22, 0.5, 0.25, 0.75], [1, 1, 0, 0]
    weights = np.array([1e-60, 1.0, 1.0, 2.0])
    for surrogate in ("square", "squared_hinge"):
        assert_exact(backend, scores, labels, surrogate=surrogate, weights=weights)


@pytest.mark.parametrize("n", [160, 1040, 20_000])
def test_weighted_auc_to_the_last_digits(backend, n):
    rng = np.random.default_rng(n)
    scores, labels = rng.integers(-12, 13, n) / 4, rng.random(n) < 0.95
    unweighted = backend.auc(scores, labels)
    assert backend.auc(scores, labels, weights=np.full(n, 0.1)) == pytest.approx(
        unweighted, abs=1e-15
    )


# At these margins the terms share a knot, because margin - knot is rounded.
HAT = Surrogate("hat", (Term(0, 0, 1, knot=0), Term(-2, 4, -2, knot=1), Term(4, -4, 1, knot=2)))


@pytest.mark.parametrize("margin", [1e12, 1e17, 1e100, 1e150])
@pytest.mark.parametrize("surrogate", [surrogates.HUBER_HINGE, CAPPED, HAT], ids=lambda s: s.name)
def test_margins_far_larger_than_the_knots(backend, surrogate, margin):
    value, grad = backend.loss_and_grad(_scores(), LABELS, surrogate=surrogate, margin=margin)
    expected = exact_double_sum(_scores(), LABELS, surrogate=surrogate, margin=margin)
    assert value == pytest.approx(expected.value, rel=1e-12)
    assert abs(grad - expected.grad).max() <= 1e-12 * max(
        abs(expected.grad).max(), 1 / LABELS.sum()
    )


def test_a_knot_that_the_margin_rounds(backend):
    # 1e12 - 0.1 and 1e12 - 1.1 are rounded, but the slope beyond both knots is 1.
    shallow = Surrogate(
        "late Huber", (Term(0.005, -0.1, 0.5, knot=0.1), Term(-0.605, 1.1, -0.5, knot=1.1))
    )
    _, grad = backend.loss_and_grad([0.0, 0.5], [1, 0], surrogate=shallow, margin=1e12)
    assert grad == pytest.approx([-1.0, 1.0], rel=1e-12)


@pytest.mark.parametrize("surrogate", ["linear_hinge", "square"])
def test_a_sum_that_overflows_is_an_error(backend, surrogate):
    scores = np.random.default_rng(8).standard_cauchy(50)
    with pytest.raises(OverflowError, match="range of float64"):
        backend.loss(scores, np.arange(50) % 2, surrogate=surrogate, margin=1e308)


@pytest.mark.parametrize("margin", [1.0, 0.1, 0.7])
@pytest.mark.parametrize("size", [1e6, 1e15, 1e22])
def test_terms_that_cancel_to_zero_beyond_their_knots(backend, size, margin):
    scores = np.array([-size, 0.1, 0.5, 0.2, -0.3])
    expected = exact_double_sum(scores, [1, 1, 1, 0, 0], surrogate=HAT, margin=margin)
    value, grad = backend.loss_and_grad(scores, [1, 1, 1, 0, 0], surrogate=HAT, margin=margin)
    assert value == pytest.approx(expected.value, rel=1e-12)
    assert abs(grad - expected.grad).max() <= 1e-12 * abs(expected.grad).max()


# The terms with a knot cancel the one without beyond all knots.
AGAINST_A_WHOLE = (
    Surrogate("square, then line", (Term(3, 1, 1), Term(-1, 0.1, -1, knot=-0.5))),
    Surrogate("square, then constant", (Term(0, 0, 1), Term(0.25, 0, -1, knot=0.3))),
    Surrogate("line, then constant", (Term(0, 1, 0), Term(0.5, -1, 0, knot=0.5))),
    Surrogate("two knots", (Term(1, 0, 1), Term(0, 0, -3, knot=-0.5), Term(0, 1, 2, knot=1.0))),
)


@pytest.mark.parametrize("margin", [1.0, 0.1, 1e17, 1e100])
@pytest.mark.parametrize("size", [1.0, 1e15, 1e37, -1e37])
@pytest.mark.parametrize("surrogate", AGAINST_A_WHOLE, ids=lambda s: s.name)
def test_terms_that_cancel_one_without_a_knot(backend, surrogate, size, margin):
    scores = np.array([-size, 0.1, 0.5, 0.2, -0.3, 0.4, 0.6])
    for labels in ([1, 1, 1, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0, 1]):
        knobs = {"surrogate": surrogate, "margin": margin}
        expected = exact_double_sum(scores, labels, **knobs)
        value, grad, hess = backend.derivatives(scores, labels, **knobs)
        assert value == pytest.approx(expected.value, rel=1e-12)
        assert abs(grad - expected.grad).max() <= 1e-12 * abs(expected.grad).max()
        assert abs(hess - expected.hess).max() <= 1e-12 * max(1.0, abs(expected.hess).max())


def test_steps_over_scores_of_any_size(backend):
    steps = Surrogate("steps", (Term(1, 0, 0, knot=0), Term(-2, 0, 0, knot=0.1)))
    rng = np.random.default_rng(9)
    scores = rng.choice([-1.0, 1.0], 60) * 10.0 ** rng.uniform(-300, 308, 60)
    expected = exact_double_sum(scores, np.arange(60) % 2, surrogate=steps, reduction="sum")
    found = backend.loss(scores, np.arange(60) % 2, surrogate=steps, reduction="sum")
    assert found == expected.value


def test_a_distant_row_of_a_group_without_pairs(backend):
    terms = (Term(0.1, 3, 0.5), Term(0, 0.1, 1, knot=-1), Term(0, 0, 0.5, knot=0))
    surrogate = Surrogate("growing", terms)
    scores, labels, groups = [6e37, -0.2, 1.7, -0.8], [1, 1, 1, 0], [0, 1, 1, 1]
    expected = exact_double_sum(scores, labels, surrogate=surrogate, groups=groups)
    value, grad = backend.loss_and_grad(scores, labels, surrogate=surrogate, groups=groups)
    assert value == pytest.approx(expected.value, rel=1e-12)
    assert grad == pytest.approx(expected.grad, rel=1e-12)

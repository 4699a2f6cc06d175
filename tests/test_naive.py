"""The oracle: results computed by hand, finite differences, knots and weights of any magnitude."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everypair import naive, surrogates
from everypair.surrogates import Surrogate, Term

from .strategies import SURROGATES

# Shortfalls: positive 0.5 -> 0.5 and 1.5; positive 2 -> -1 and 0.
SCORES, LABELS = [0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0]


def test_by_hand():
    value, grad, hess = naive.pair_derivatives(SCORES, LABELS, reduction="sum")
    assert value == 0.5**2 + 1.5**2
    assert grad.tolist() == [-4.0, 0.0, 1.0, 3.0]
    assert hess.tolist() == [4.0, 0.0, 2.0, 2.0]
    assert naive.pair_loss(SCORES, LABELS) == 0.625
    assert naive.pair_loss(SCORES, LABELS, surrogate="square") == (0.25 + 2.25 + 1 + 0) / 4
    assert naive.pair_loss(SCORES, LABELS, surrogate="linear_hinge") == 0.5
    assert naive.pair_loss(SCORES, LABELS, surrogate="huber_hinge") == (0.125 + 1.0) / 4
    assert naive.auc(SCORES, LABELS) == 0.75
    assert naive.auc([1.0, 1.0], [0, 1]) == 0.5
    hvp = naive.pair_hvp(SCORES, LABELS, [1.0, 0.0, 0.0, 2.0], reduction="sum")
    assert hvp.tolist() == [2 * 1 - 2 * 1, 0.0, -2.0, 2.0]
    assert naive.pair_loss(SCORES, LABELS, weights=[2, 1, 1, 3], reduction="sum") == 0.5 + 6 * 2.25
    assert naive.pair_loss(SCORES, LABELS, groups=list("abab")) == 0.125
    assert naive.pair_loss(SCORES, LABELS, weights=[0, 0, 1, 1]) == 0.0


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda s: s.name)
def test_derivatives_match_finite_differences(surrogate):
    rng = np.random.default_rng(7)
    scores, vector = rng.normal(size=(2, 12))
    labels, weights = rng.random(12) < 0.4, rng.random(12)
    knobs = {"surrogate": surrogate, "weights": weights, "groups": rng.integers(0, 2, 12)}
    _, grad, hess = naive.pair_derivatives(scores, labels, **knobs)
    hvp = naive.pair_hvp(scores, labels, vector, **knobs)
    step = 1e-6
    ahead, behind = (
        naive.pair_loss_and_grad(scores + sign * step * vector, labels, **knobs) for sign in (1, -1)
    )
    assert (ahead[0] - behind[0]) / (2 * step) == pytest.approx(grad @ vector, abs=1e-8)
    np.testing.assert_allclose((ahead[1] - behind[1]) / (2 * step), hvp, atol=1e-8)
    diagonal = [naive.pair_hvp(scores, labels, e, **knobs)[i] for i, e in enumerate(np.eye(12))]
    np.testing.assert_allclose(diagonal, hess, atol=1e-15)


def test_one_class():
    assert naive.pair_loss([1.0, 2.0], [1, 1]) == 0.0
    assert naive.pair_hvp([1.0, 2.0], [1, 1], [1.0, 1.0]).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="got no pair"):
        naive.auc([1.0, 2.0], [0, 0])


def test_every_built_in_surrogate_has_a_formula():
    known = {*naive.POLYNOMIALS, *map(surrogates.get, naive.SMOOTH)}
    assert known == set(map(surrogates.get, surrogates.names()))


any_float = st.floats(-1e300, 1e300, allow_subnormal=False)
near_one = st.integers(-9, 9).map(lambda k: k / 10)


@given(
    scores=st.lists(st.one_of(any_float, near_one), min_size=3, max_size=3),
    margin=st.sampled_from((0.0, 0.1, 0.3, 1.0, 1e12)),
    knot=st.sampled_from((0.0, 0.1, 0.2, -0.7, 1.0)),
)
@example(scores=[0.0, 0.5, -1.0], margin=1.0, knot=0.0)  # equality: the pair is on the knot
@example(scores=[0.1, -1e17, -0.9], margin=1.0, knot=0.0)  # 0.1 - (-0.9) is rounded to 1
@example(scores=[1e17, 0.5, 1e17], margin=5e-324, knot=0.0)
@example(scores=[1.0, 1.0, -1e-30], margin=1.0, knot=0.0)
@example(scores=[1.0, 1.0, 1e-30], margin=1.0, knot=0.0)
def test_exactly_the_pairs_beyond_the_knot_count(scores, margin, knot):
    *pos, neg = map(Fraction, scores)
    beyond = [neg + Fraction(margin) - Fraction(knot) > s for s in pos]
    step = Surrogate("step", [Term(1.0, 0.0, 0.0, knot=knot)])
    line = Surrogate("line", [Term(-knot, 1.0, 0.0, knot=knot)])
    knobs = {"margin": margin, "reduction": "sum"}
    assert naive.pair_loss(scores, [1, 1, 0], surrogate=step, **knobs) == sum(beyond)
    grad = naive.pair_loss_and_grad(scores, [1, 1, 0], surrogate=line, **knobs)[1]
    assert (grad[:2] < 0.0).tolist() == beyond


WEIGHTS = np.array([2.0, 1.0, 1.0, 3.0])


@pytest.mark.parametrize("scale", [1e160, 1e-170, 5e-324])
def test_the_mean_does_not_depend_on_the_scale_of_the_weights(scale):
    expected = naive.pair_derivatives(SCORES, LABELS, weights=WEIGHTS)
    got = naive.pair_derivatives(SCORES, LABELS, weights=scale * WEIGHTS)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    area = naive.auc(SCORES, LABELS, weights=scale * WEIGHTS)
    assert area == pytest.approx(naive.auc(SCORES, LABELS, weights=WEIGHTS))


@pytest.mark.parametrize("power", [500, -500])
def test_large_and_small_weights_cancel_in_a_sum(power):
    scale = np.where(np.array(LABELS) == 1, 2.0**power, 2.0**-power)
    expected = naive.pair_derivatives(SCORES, LABELS, weights=WEIGHTS, reduction="sum")
    got = naive.pair_derivatives(SCORES, LABELS, weights=scale * WEIGHTS, reduction="sum")
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_row_of_weight_zero_changes_nothing():
    scores, labels, weights = [-1.0, 0.0, 1e200, -1.7e308], [1, 0, 0, 1], [1.0, 1.0, 0.0, 0.0]
    assert naive.pair_loss(scores, labels, weights=weights) == 4.0
    _, grad, hess = naive.pair_derivatives(scores, labels, weights=weights)
    assert grad.tolist() == [-4.0, 4.0, 0.0, 0.0]
    assert hess.tolist() == [2.0, 2.0, 0.0, 0.0]


def test_large_shortfalls():
    loss = naive.pair_loss([-1e308, -1e308, 0.0], [1, 1, 0], surrogate="linear_hinge", margin=0.0)
    assert loss == 1e308  # the sum would overflow
    # Adding the values of the two terms would lose nine digits here.
    assert naive.pair_loss([-1e9, 0.0], [1, 0], surrogate=surrogates.HUBER_HINGE) == 1e9 + 0.5

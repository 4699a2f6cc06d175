"""Surrogates as data: their terms, the formulas that these stand for, and their validation."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from fractions import Fraction

import numpy as np
import pytest

import everypair as ep
from everypair import surrogates
from everypair.surrogates import HUBER_HINGE, LINEAR_HINGE, SQUARE, SQUARED_HINGE, Surrogate, Term

from .strategies import BUMPY, JUMP, SMOOTH, SURROGATES

T = np.array([-2.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 4.0])


@pytest.mark.parametrize(
    ("surrogate", "value", "slope"),
    [
        (SQUARE, T**2, 2 * T),
        (SQUARED_HINGE, np.maximum(T, 0) ** 2, 2 * np.maximum(T, 0)),
        (LINEAR_HINGE, np.maximum(T, 0), T > 0),
        (HUBER_HINGE, np.where(T < 1, np.maximum(T, 0) ** 2 / 2, T - 0.5), np.clip(T, 0, 1)),
        (JUMP, (T > 0.5) * (1 + T / 2 + T**2 / 4), (T > 0.5) * (0.5 + T / 2)),
    ],
    ids=lambda s: getattr(s, "name", ""),
)
def test_value_and_slope(surrogate, value, slope):
    np.testing.assert_array_equal(surrogate.value(T), value)
    np.testing.assert_array_equal(surrogate.slope(T), slope)


@pytest.mark.parametrize("name", surrogates.names())
def test_the_terms_agree_with_the_formulas_of_the_oracle(name):
    surrogate = surrogates.get(name)
    shortfalls = np.concatenate([T, np.linspace(-3.0, 3.0, 97), [1e9, -1e9, 1e-9, 1.0 + 1e-9]])
    for t in shortfalls:
        # One pair with margin 0: the shortfall is s_neg - s_pos.
        value, grad, hess = ep.naive.pair_derivatives([0.0, t], [1, 0], surrogate=name, margin=0.0)
        expected = (value, grad[1], hess[1])
        terms = (surrogate.value(t), surrogate.slope(t), surrogate.curvature(t))
        exact = surrogate.is_polynomial or name == "exponential"
        np.testing.assert_allclose(
            terms, expected, rtol=1e-15 if exact else 2e-13, atol=0.0 if exact else 1e-13
        )


def test_curvature_is_taken_from_the_left():
    assert SQUARE.curvature([-1.0, 1.0]).tolist() == [2.0, 2.0]
    assert HUBER_HINGE.curvature([-1.0, 0.0, 0.5, 1.0, 2.0]).tolist() == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert LINEAR_HINGE.curvature([-1.0, 0.0, 1.0]).tolist() == [0.0, 0.0, 0.0]


def test_results_have_the_shape_of_the_shortfalls():
    assert SQUARE.value(2.0) == 4.0
    assert SQUARED_HINGE.value(np.ones((2, 3))).shape == (2, 3)


def test_infinite_shortfalls_do_not_become_nan():
    assert LINEAR_HINGE.value([np.inf, -np.inf]).tolist() == [np.inf, 0.0]
    assert HUBER_HINGE.slope([np.inf]).tolist() == [1.0]


@pytest.mark.parametrize("margin", [0.0, 0.75, 2.0])
@pytest.mark.parametrize("surrogate", [*SURROGATES, *SMOOTH], ids=lambda s: s.name)
def test_tables_give_the_value_the_slope_and_the_curvature(surrogate, margin):
    lead = np.arange(-40, 40) / 8 + 1 / 16  # no shortfall is at a knot
    pieces, exponential = surrogates.tables(surrogate.at_margin(margin), True)
    for order, expected in enumerate((surrogate.value, surrogate.slope, surrogate.curvature)):
        total = np.zeros_like(lead)
        for table in pieces:
            d = table.shift - lead
            side, size = (d > 0).astype(int), np.abs(d)
            total += (table.p[order, side] * size[:, None] ** np.arange(3)).sum(axis=1)
            u = table.rate * size[:, None]
            powers = np.exp(-u * np.arange(1, table.c.shape[-1] + 1))
            factors = table.c[order, side] + table.e[order, side] * u
            total += table.units[order, 0] * (factors * powers).sum(axis=1)
        for shift, rate, scale in exponential:
            total += scale * rate**order * np.exp(rate * (shift - lead))
        np.testing.assert_allclose(total, expected(margin - lead), rtol=1e-11, atol=1e-11)


def test_at_knots_is_cached_for_a_limited_number_of_margins():
    mine = Surrogate("mine", [Term(0, 0, 1, knot=0)])
    assert mine.at_knots(1.0) is mine.at_knots(1.0)
    for margin in range(1000):
        assert mine.at_knots(float(margin))[0].shift == margin
    assert len(mine._expansions) <= 64


def test_names_and_get():
    polynomials = ("square", "squared_hinge", "linear_hinge", "huber_hinge")
    smooth = ("logistic", "sigmoid", "exponential", "squared_softplus")
    assert surrogates.names() == polynomials + smooth
    assert surrogates.get("huber_hinge") is HUBER_HINGE
    assert surrogates.get(BUMPY) is BUMPY


@pytest.mark.parametrize("name", ["squared-hinge", "SquaredHinge", "squared_hing"])
def test_the_error_for_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ValueError, match="'square', 'squared_hinge', 'linear_hinge'") as error:
        surrogates.get(name)
    assert repr(name) in str(error.value)
    assert "Did you mean 'squared_hinge'?" in str(error.value)


@pytest.mark.parametrize("thing", ["logit", "", None, 3, Term(0, 0, 1)])
def test_unknown_surrogates_raise(thing):
    with pytest.raises(ValueError, match="surrogate must be one of"):
        surrogates.get(thing)


@pytest.mark.parametrize("bad", [np.nan, np.inf, "1", None, 1j, [1.0], 10**400])
@pytest.mark.parametrize("name", ["c0", "c1", "c2"])
def test_invalid_coefficients(name, bad):
    with pytest.raises(ValueError, match=rf"Term\.{name} must be a finite number; got"):
        Term(**{"c0": 0, "c1": 0, "c2": 1, name: bad})


@pytest.mark.parametrize("bad", [np.nan, -np.inf, "0"])
def test_invalid_knots(bad):
    with pytest.raises(ValueError, match=r"Term\.knot must be a finite number"):
        Term(0, 0, 1, knot=bad)


@pytest.mark.parametrize(
    ("name", "terms", "message"),
    [
        ("", [Term(0, 0, 1)], "name must be a non-empty string; got ''"),
        (None, [Term(0, 0, 1)], "name must be a non-empty string; got None"),
        ("mine", [], "at least one Term; 'mine' got none"),
        ("mine", [Term(0, 0, 1), (0, 0, 1)], r"got \(0, 0, 1\) at index 1"),
        ("mine", 7, "got 7 at index 0"),
        ("mine", [Term(0, 0, 1, knot=1e200)], "overflows"),
    ],
)
def test_invalid_surrogates(name, terms, message):
    with pytest.raises(ValueError, match=message):
        Surrogate(name, terms)


def test_accepts_a_single_term_and_any_real_number():
    assert Surrogate("mine", Term(0, 0, 1)).terms == (Term(0, 0, 1),)
    assert Term(Fraction(1, 2), np.float32(2), np.int8(3)) == Term(0.5, 2.0, 3.0)
    assert all(type(c) is float for c in vars(Term(1, True, np.float64(2), knot=0)).values())


def test_surrogates_compare_by_value():
    twin = Surrogate("squared_hinge", [Term(0, 0, 1, knot=0)])
    assert twin == SQUARED_HINGE
    assert hash(twin) == hash(SQUARED_HINGE)
    assert pickle.loads(pickle.dumps(BUMPY)) == copy.deepcopy(BUMPY) == BUMPY
    assert "expansions" not in repr(twin)
    with pytest.raises(AttributeError):
        twin.name = "other"


@pytest.mark.parametrize("name", ["logistic", "sigmoid", "squared_softplus"])
def test_smooth_surrogates_compare_by_value(name):
    made = getattr(surrogates, name)(0.25)
    twin = pickle.loads(pickle.dumps(made))
    assert twin == made
    assert hash(twin) == hash(made)
    smooth = made.terms[-1]
    for field in ("rate", "centre", "scale"):
        other = dataclasses.replace(smooth, **{field: 3.0})
        assert other != smooth
        assert hash(other) != hash(smooth)
    # Terms that differ in the coefficients for float32 alone may share a hash, and are not equal.
    assert dataclasses.replace(smooth, low=smooth.high) != smooth


def test_a_surrogate_of_a_temperature_is_made_once():
    assert surrogates.sigmoid(0.25) is surrogates.sigmoid(0.25)
    assert surrogates.sigmoid(0.25) is not surrogates.logistic(0.25)
    assert surrogates.sigmoid(1.0) is surrogates.get("sigmoid")
    makers = surrogates.logistic, surrogates.sigmoid, surrogates.squared_softplus
    assert len({hash(make(0.25).terms[-1]) for make in makers}) == 3

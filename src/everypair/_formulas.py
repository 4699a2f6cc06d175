"""Textbook formulas of the built-in surrogates, independent of their terms; used by `naive`."""

from __future__ import annotations

import numpy as np

from everypair import surrogates
from everypair.surrogates import Floats, Formula, Surrogate

# A surrogate is a list of pieces (knot, formula), in the order of their knots. The formula gives
# the value and the first two derivatives at shortfalls above the knot (None: everywhere) and up to
# the next knot. Below the first knot all three are 0.
POLYNOMIALS: dict[Surrogate, list[tuple[float | None, Formula]]] = {
    surrogates.SQUARE: [(None, lambda t: (t**2, 2 * t, 2.0))],
    surrogates.SQUARED_HINGE: [(0.0, lambda t: (t**2, 2 * t, 2.0))],
    surrogates.LINEAR_HINGE: [(0.0, lambda t: (t, 1.0, 0.0))],
    surrogates.HUBER_HINGE: [
        (0.0, lambda t: (t**2 / 2, t, 1.0)),
        (1.0, lambda t: (t - 0.5, 1.0, 0.0)),
    ],
}

# The smooth surrogates as functions of u = t / temperature, which apply everywhere.
SMOOTH: dict[str, Formula] = {
    "logistic": lambda u: (_softplus(u), _sigmoid(u), _sigmoid(u) * _sigmoid(-u)),
    "sigmoid": lambda u: (
        _sigmoid(u),
        _sigmoid(u) * _sigmoid(-u),
        -_sigmoid(u) * _sigmoid(-u) * np.tanh(u / 2),
    ),
    "exponential": lambda u: (np.exp(u), np.exp(u), np.exp(u)),
    "squared_softplus": lambda u: (
        _softplus(u) ** 2,
        2 * _softplus(u) * _sigmoid(u),
        2 * _sigmoid(u) ** 2 + 2 * _softplus(u) * _sigmoid(u) * _sigmoid(-u),
    ),
}


def pieces_of(surrogate: Surrogate) -> list[tuple[float | None, Formula]]:
    """Return the formulas between knots, each with the knot above which it applies.

    Built-in surrogates, at any temperature, have the formulas of this module. Others have no
    formula but their terms.
    """
    if surrogate in POLYNOMIALS:
        return POLYNOMIALS[surrogate]
    rates = [t.rate for t in surrogate.terms if not isinstance(t, surrogates.Term)]
    if not rates:
        return surrogates.pieces(surrogate)
    for name, formula in SMOOTH.items():
        if surrogates.get(name).scaled(rates[0]).terms == surrogate.terms:
            return [(None, _at_rate(formula, rates[0]))]
    return [(None, lambda t: (surrogate.value(t), surrogate.slope(t), surrogate.curvature(t)))]


def _at_rate(formula: Formula, rate: float) -> Formula:
    def at_rate(t: Floats) -> tuple[Floats | float, Floats | float, Floats | float]:
        value, slope, curvature = formula(rate * t)
        return value, rate * slope, rate * rate * curvature

    return at_rate


def _softplus(u: Floats) -> Floats:
    """Return log(1 + exp(u))."""
    softplus: Floats = np.maximum(u, 0.0) + np.log1p(np.exp(-np.abs(u)))
    return softplus


def _sigmoid(u: Floats) -> Floats:
    """Return 1 / (1 + exp(-u))."""
    x = np.exp(-np.abs(u))
    sigmoid: Floats = np.where(u > 0.0, 1.0, x) / (1.0 + x)
    return sigmoid

"""The double sum over all pairs in exact arithmetic, for batches of a few rows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from everypair import surrogates

from .strategies import Answer

ZERO = Fraction(0)


def exact_double_sum(
    scores,
    labels,
    *,
    surrogate="squared_hinge",
    margin=1.0,
    weights=None,
    groups=None,
    reduction="mean",
    vector=None,
):
    """Return value, gradient, diagonal Hessian and Hessian times vector, rounded once at the end.

    A pair counts for a term if s_neg + (margin - knot) > s_pos holds for the real numbers that the
    floats stand for.
    """
    n = len(scores)
    x = [Fraction(float(score)) for score in scores]
    w = [Fraction(1 if weights is None else float(weights[i])) for i in range(n)]
    z = [Fraction(0 if vector is None else float(vector[i])) for i in range(n)]
    value, pair_weight = ZERO, ZERO
    grad, hess, hvp = ([ZERO] * n for _ in range(3))
    for i in (i for i in range(n) if labels[i] == 1):
        for j in (j for j in range(n) if labels[j] != 1):
            if groups is not None and groups[i] != groups[j]:
                continue
            weight = w[i] * w[j]
            pair_weight += weight
            t = Fraction(margin) + x[j] - x[i]
            phi, slope, curvature = _at(surrogates.get(surrogate), t)
            value += weight * phi
            grad[i] -= weight * slope
            grad[j] += weight * slope
            pull = weight * curvature * (z[i] - z[j])
            for k, sign in ((i, 1), (j, -1)):
                hess[k] += weight * curvature
                hvp[k] += sign * pull
    divisor = pair_weight if reduction == "mean" and pair_weight else Fraction(1)

    def rounded(numbers):
        return np.array([float(number / divisor) for number in numbers])

    return Answer(float(value / divisor), rounded(grad), rounded(hess), rounded(hvp))


def _at(surrogate, t):
    """Return value, slope and curvature of a surrogate at the shortfall t of a pair."""
    terms = [term for term in surrogate.terms if term.knot is None or t > Fraction(term.knot)]
    c0, c1, c2 = (sum((Fraction(getattr(term, c)) for term in terms), ZERO) for c in _COEFFICIENTS)
    return c0 + c1 * t + c2 * t * t, c1 + 2 * c2 * t, 2 * c2


_COEFFICIENTS = ("c0", "c1", "c2")

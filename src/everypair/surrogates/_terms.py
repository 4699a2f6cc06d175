"""The terms that surrogates are made of.

There are three kinds of term in the shortfall ``t = margin - (s_pos - s_neg)`` of a pair:

- `Term`: a polynomial of degree two at most, where t is beyond a knot, or everywhere;
- `SmoothTerm`: a polynomial in ``exp(-rate |t - centre|)`` on either side of the centre;
- `ExponentialTerm`: ``scale * exp(rate * t)``.

At a given margin they become a `KnotTerm` and, for the last two kinds, a `ShiftedTerm`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
# The pairs (c_k, e_k) for k = 1, 2, ...: the sum of (c_k + e_k |u|) x^k.
Powers: TypeAlias = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Term:
    """One truncated polynomial ``c0 + c1 t + c2 t^2`` where ``t > knot``.

    Parameters
    ----------
    c0, c1, c2 : float
        Coefficients in the shortfall `t` itself (not in the distance to the knot).
    knot : float, optional
        The term is zero up to and including the knot. Without a knot it applies everywhere.

    Examples
    --------
    >>> Term(0, 0, 1, knot=0)
    Term(c0=0.0, c1=0.0, c2=1.0, knot=0.0)
    """

    c0: float
    c1: float
    c2: float
    knot: float | None = None

    def __post_init__(self) -> None:
        for name in ("c0", "c1", "c2", "knot"):
            value = getattr(self, name)
            if name != "knot" or value is not None:
                object.__setattr__(self, name, finite(value, f"Term.{name}"))


class Fit(NamedTuple):
    """A function of u on either side of 0, as polynomials in ``x = exp(-|u|)``.

    The function is ``sum over k >= 1 of (c_k + e_k |u|) x^k``; `below` holds the pairs (c_k, e_k)
    for u <= 0 and `above` those for u > 0.

    `bound` is the largest relative error of the whole surrogate, the truncated terms that belong to
    this function included.
    """

    below: Powers
    above: Powers
    bound: float


class Fits(NamedTuple):
    """The fits of a function of u and of its first two derivatives, each for itself."""

    value: Fit
    slope: Fit
    curvature: Fit


@dataclass(frozen=True)
class SmoothTerm:
    """A function ``scale * f(u)`` of ``u = rate * (t - centre)`` that decays on either side of 0.

    Parameters
    ----------
    rate : float
        Above 0; the inverse of a temperature.
    low : Fits
        Those of f, used for float32 scores.
    high : Fits
        Those of f with more powers, used for float64 scores.
    centre : float
        The shortfall at which u is 0.
    scale : float

    See Also
    --------
    everypair.surrogates.fit : Make one for a function of your own.
    """

    rate: float
    low: Fits = field(repr=False)
    high: Fits = field(repr=False)
    centre: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_rate(self)
        for name in ("centre", "scale"):
            object.__setattr__(self, name, finite(getattr(self, name), f"SmoothTerm.{name}"))

    def __hash__(self) -> int:
        # The default would hash all coefficients at each look-up in a cache. The last coefficient
        # and the error tell functions apart; equality still compares all of them.
        value = self.high.value
        return hash((self.rate, self.centre, self.scale, value.bound, value.below[-1:]))

    def derivative(self, t: Floats, order: int) -> Floats:
        """Evaluate the term (order 0), its slope (1) or its curvature (2) at shortfalls `t`."""
        u = self.rate * (t - self.centre)
        fit, size = self.high[order], abs(u)
        x = np.exp(-size)
        size = np.minimum(size, 1e300)  # infinity times 0 would be NaN
        below, above = (_horner(powers, size, x) for powers in (fit.below, fit.above))
        return np.where(u > 0.0, above, below) * (self.scale * self.rate**order)


@dataclass(frozen=True)
class ExponentialTerm:
    """The function ``scale * exp(rate * t)`` of the shortfall; the rate is above 0."""

    rate: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_rate(self)
        object.__setattr__(self, "scale", finite(self.scale, "ExponentialTerm.scale"))

    def derivative(self, t: Floats, order: int) -> Floats:
        """Evaluate the term (order 0), its slope (1) or its curvature (2) at shortfalls `t`."""
        with np.errstate(over="ignore"):
            return self.scale * self.rate**order * np.exp(self.rate * t)


AnyTerm: TypeAlias = Term | SmoothTerm | ExponentialTerm


class KnotTerm(NamedTuple):
    """A `Term` expanded at its knot: all that kernels know about it.

    With ``d = s_neg + shift - s_pos`` the term is ``b0 + b1 d + b2 d^2`` where ``d > 0``, or
    everywhere when it is not `truncated`.
    """

    shift: float
    b0: float
    b1: float
    b2: float
    truncated: bool


class ShiftedTerm(NamedTuple):
    """A `SmoothTerm` or an `ExponentialTerm` at a margin.

    With ``d = s_neg + shift - s_pos`` a smooth term is a function of ``u = rate * d``, and an
    exponential term is ``scale * exp(rate * d)``.
    """

    shift: float
    term: SmoothTerm | ExponentialTerm


PairTerm: TypeAlias = KnotTerm | ShiftedTerm


def are_polynomials(terms: tuple[PairTerm, ...]) -> TypeGuard[tuple[KnotTerm, ...]]:
    """Return whether all terms are truncated polynomials; others stand last."""
    return type(terms[-1]) is not ShiftedTerm


def finite(value: object, name: str) -> float:
    """Check that an argument is a finite number and return it as a float."""
    if isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{name} must be a finite number; got {value!r}.")


def _check_rate(term: SmoothTerm | ExponentialTerm) -> None:
    name = f"{type(term).__name__}.rate"
    rate = finite(term.rate, name)
    if rate <= 0.0:
        raise ValueError(
            f"{name} must be above 0; got {rate!r}. It is the inverse of a temperature."
        )
    object.__setattr__(term, "rate", rate)


def _horner(powers: Powers, size: Floats, x: Floats) -> Floats:
    c, e = np.zeros_like(x), np.zeros_like(x)
    for c_k, e_k in reversed(powers):
        c, e = (c + c_k) * x, (e + e_k) * x
    return c + e * size

"""Surrogates of the pairwise zero-one loss, as data.

A surrogate is a sum of truncated polynomials in the shortfall of a pair,
``t = margin - (s_pos - s_neg)``::

    value(t) = sum over terms of  c0 + c1 t + c2 t^2   where t > knot   (no knot: everywhere)

Every surrogate of this form works in every function of the library. Backends read the terms, never
the name.

>>> SQUARED_HINGE.value([-1.0, 0.5, 2.0])
array([0.  , 0.25, 4.  ])
>>> steep = Surrogate("steep", (Term(0.0, 3.0, 0.0, knot=0.0),))
>>> steep.slope([-1.0, 0.5])
array([0., 3.])
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "HUBER_HINGE",
    "LINEAR_HINGE",
    "SQUARE",
    "SQUARED_HINGE",
    "KnotTerm",
    "Surrogate",
    "Term",
    "get",
    "names",
]

Floats: TypeAlias = NDArray[np.float64]
# Maps shortfalls to the value and the first two derivatives of a surrogate.
Formula: TypeAlias = Callable[[Floats], tuple[Floats | float, Floats | float, Floats | float]]

# Number of margins for which a surrogate caches its expansion. Margins change rarely.
_CACHED_MARGINS = 64


class KnotTerm(NamedTuple):
    """A term expanded at its knot: all that backends know about a surrogate.

    With ``d = s_neg + shift - s_pos`` the term is ``b0 + b1 d + b2 d^2`` where ``d > 0``, or
    everywhere when it is not `truncated`.
    """

    shift: float
    b0: float
    b1: float
    b2: float
    truncated: bool


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
            given = getattr(self, name)
            if name != "knot" or given is not None:
                object.__setattr__(self, name, _finite(given, f"Term.{name}"))


@dataclass(frozen=True)
class Surrogate:
    """A function of the shortfall of a pair: a sum of truncated polynomials.

    Parameters
    ----------
    name : str
        Name in messages and plots. Backends do not use it.
    terms : iterable of Term
        At least one term.

    Warnings
    --------
    The sum need not be convex or increasing in the shortfall: every function computes it as given.
    Minimising it may not do what you want, though. A non-convex surrogate has local minima, and one
    that decreases somewhere rewards ranking a negative above a positive.

    Notes
    -----
    Hessians hold the second derivative almost everywhere. A jump of the value or of the slope at a
    knot adds nothing to them, so the curvature of `LINEAR_HINGE` is zero.

    Examples
    --------
    >>> capped = Surrogate("capped", [Term(0, 1, 0, knot=0), Term(2, -1, 0, knot=2)])
    >>> capped.value([1.0, 2.0, 5.0])
    array([1., 2., 2.])
    """

    name: str
    terms: tuple[Term, ...]
    _expansions: dict[float, tuple[KnotTerm, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(
                f"Surrogate.name must be a non-empty string; got {self.name!r}. "
                "It is used in messages and plots."
            )
        given: Any = self.terms
        terms = tuple(given) if hasattr(given, "__iter__") else (given,)
        if not terms:
            raise ValueError(
                f"Surrogate.terms must hold at least one Term; {self.name!r} got none. "
                "For example: Surrogate('mine', [Term(0, 0, 1, knot=0)])."
            )
        for i, term in enumerate(terms):
            if not isinstance(term, Term):
                raise ValueError(
                    f"Surrogate.terms must hold Term objects; {self.name!r} got {term!r} at "
                    f"index {i}. Write it as Term(c0, c1, c2, knot=...)."
                )
        object.__setattr__(self, "terms", terms)
        if not all(math.isfinite(b) for knot_term in self.at_knots(0.0) for b in knot_term):
            raise ValueError(
                f"Surrogate.terms must stay finite at their knots; {self.name!r} overflows there: "
                f"{terms!r}. Scale the scores instead of the surrogate."
            )

    def value(self, t: ArrayLike) -> Floats:
        """Evaluate the surrogate at shortfalls `t` of any shape."""
        return self._derivative(t, 0)

    def slope(self, t: ArrayLike) -> Floats:
        """Evaluate the first derivative at shortfalls `t`; at a knot, the one from below."""
        return self._derivative(t, 1)

    def curvature(self, t: ArrayLike) -> Floats:
        """Evaluate the second derivative at shortfalls `t`; at a knot, the one from below."""
        return self._derivative(t, 2)

    def at_knots(self, margin: float) -> tuple[KnotTerm, ...]:
        """Expand every term at its own knot, for pairs with this margin.

        Returns
        -------
        tuple of KnotTerm
            ``(shift, b0, b1, b2, truncated)`` in the order of `terms`.

        Examples
        --------
        >>> HUBER_HINGE.at_knots(1.0)[1]
        KnotTerm(shift=0.0, b0=0.0, b1=0.0, b2=-0.5, truncated=True)
        """
        expansion = self._expansions.get(margin)
        if expansion is None:
            if len(self._expansions) >= _CACHED_MARGINS:
                self._expansions.clear()
            expansion = tuple(_at_knot(term, margin) for term in self.terms)
            self._expansions[margin] = expansion
        return expansion

    def _derivative(self, t: ArrayLike, order: int) -> Floats:
        t = np.asarray(t, dtype=np.float64)
        out = np.zeros_like(t)
        for knot, formula in pieces(self):
            out = np.where(knot is None or t > knot, formula(t)[order], out)
        return out


def pieces(surrogate: Surrogate) -> list[tuple[float | None, Formula]]:
    """Return the polynomials between knots, each with the knot above which it applies.

    The coefficients of all active terms are added before they are multiplied by the shortfall.
    Adding the values of the terms instead would lose digits where large terms cancel, as those of
    the Huber hinge do.
    """
    knots = sorted({term.knot for term in surrogate.terms if term.knot is not None})
    found: list[tuple[float | None, Formula]] = []
    for knot in (None, *knots):
        limit = -math.inf if knot is None else knot
        active = [term for term in surrogate.terms if term.knot is None or term.knot <= limit]
        c0, c1, c2 = (math.fsum(getattr(term, c) for term in active) for c in ("c0", "c1", "c2"))
        found.append((knot, _polynomial(c0, c1, c2)))
    return found


def get(surrogate: str | Surrogate) -> Surrogate:
    """Return the built-in surrogate of a name. A `Surrogate` is returned unchanged.

    Examples
    --------
    >>> get("square") is SQUARE
    True
    """
    known = _BY_NAME.get(surrogate) if type(surrogate) is str else surrogate
    if isinstance(known, Surrogate):
        return known
    import difflib  # imported here because it is slow to load and needed for this message only

    close = difflib.get_close_matches(str(surrogate).lower().replace("-", "_"), names(), n=1)
    raise ValueError(
        f"surrogate must be one of {', '.join(map(repr, names()))}, or a Surrogate; "
        f"got {surrogate!r}." + (f" Did you mean {close[0]!r}?" if close else "")
    )


def names() -> tuple[str, ...]:
    """Return the names of the built-in surrogates.

    Examples
    --------
    >>> names()
    ('square', 'squared_hinge', 'linear_hinge', 'huber_hinge')
    """
    return tuple(_BY_NAME)


def _at_knot(term: Term, margin: float) -> KnotTerm:
    if term.knot is None:
        return KnotTerm(margin, term.c0, term.c1, term.c2, False)
    # t = d + knot
    linear, square = term.c1 * term.knot, term.c2 * term.knot * term.knot
    b0 = _unless_rounding(term.c0 + (linear + square), term.c0, linear, square)
    b1 = _unless_rounding(term.c1 + 2.0 * term.c2 * term.knot, term.c1, 2.0 * term.c2 * term.knot)
    return KnotTerm(margin - term.knot, b0, b1, term.c2, True)


def _unless_rounding(total: float, *parts: float) -> float:
    """Return `total`, or 0 where it is not larger than the rounding errors of its parts.

    Kernels are faster for terms whose value and slope at the knot are exactly 0.
    """
    rounding = 4 * sys.float_info.epsilon * sum(map(abs, parts))
    return 0.0 if abs(total) <= rounding < math.inf else total


def _polynomial(c0: float, c1: float, c2: float) -> Formula:
    # Coefficients of 0 are skipped, because 0 times an infinite shortfall would be NaN.
    return lambda t: (
        c0 + (c1 * t if c1 else 0.0) + (c2 * t**2 if c2 else 0.0),
        c1 + (2.0 * c2 * t if c2 else 0.0),
        2.0 * c2,
    )


def _finite(given: object, name: str) -> float:
    if isinstance(given, Real):
        try:
            number = float(given)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{name} must be a finite number; got {given!r}.")


SQUARE = Surrogate("square", (Term(0.0, 0.0, 1.0),))
SQUARED_HINGE = Surrogate("squared_hinge", (Term(0.0, 0.0, 1.0, knot=0.0),))
LINEAR_HINGE = Surrogate("linear_hinge", (Term(0.0, 1.0, 0.0, knot=0.0),))
HUBER_HINGE = Surrogate(
    "huber_hinge", (Term(0.0, 0.0, 0.5, knot=0.0), Term(-0.5, 1.0, -0.5, knot=1.0))
)

_BY_NAME = {s.name: s for s in (SQUARE, SQUARED_HINGE, LINEAR_HINGE, HUBER_HINGE)}

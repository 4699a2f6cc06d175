"""A surrogate of the pairwise zero-one loss: a sum of terms."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from everypair.surrogates._terms import (
    AnyTerm,
    ExponentialTerm,
    Floats,
    KnotTerm,
    PairTerm,
    ShiftedTerm,
    SmoothTerm,
    Term,
    are_polynomials,
    finite,
)

# Maps shortfalls to the value and the first two derivatives of a surrogate.
Formula: TypeAlias = Callable[[Floats], tuple[Floats | float, Floats | float, Floats | float]]

_NEGLIGIBLE = 2.0**-44  # relative rounding error of a knot, far below the promised errors
_CACHED_MARGINS = 64  # a surrogate caches its expansion at these many margins; they change rarely


@dataclass(frozen=True)
class Surrogate:
    """A function of the shortfall of a pair: a sum of terms.

    Parameters
    ----------
    name : str
        Name in messages and plots. Backends do not use it.
    terms : iterable of Term, SmoothTerm or ExponentialTerm
        At least one term.
    default_margin : float
        The margin that ``margin=None`` stands for in all functions; at least 0.

    Warnings
    --------
    The sum need not be convex or increasing in the shortfall: every function computes it as given.
    Minimising it may not do what you want, though. A non-convex surrogate has local minima, and one
    that decreases somewhere rewards ranking a negative above a positive.

    Notes
    -----
    Hessians hold the second derivative almost everywhere. A jump of the value or of the slope at a
    knot adds nothing to them, so the curvature of `LINEAR_HINGE` is zero.

    Surrogates can be compared, hashed and pickled.

    Examples
    --------
    >>> capped = Surrogate("capped", [Term(0, 1, 0, knot=0), Term(2, -1, 0, knot=2)])
    >>> capped.value([1.0, 2.0, 5.0])
    array([1., 2., 2.])
    """

    name: str
    terms: tuple[AnyTerm, ...]
    default_margin: float = 1.0
    _expansions: dict[float, tuple[PairTerm, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(
                f"Surrogate.name must be a non-empty string; got {self.name!r}. "
                "It is used in messages and plots."
            )
        margin = finite(self.default_margin, "Surrogate.default_margin")
        if margin < 0.0:
            raise ValueError(f"Surrogate.default_margin must be at least 0; got {margin!r}.")
        object.__setattr__(self, "default_margin", margin)
        argument: Any = self.terms
        terms = tuple(argument) if hasattr(argument, "__iter__") else (argument,)
        if not terms:
            raise ValueError(
                f"Surrogate.terms must hold at least one Term; {self.name!r} got none. "
                "For example: Surrogate('mine', [Term(0, 0, 1, knot=0)])."
            )
        for i, term in enumerate(terms):
            if not isinstance(term, Term | SmoothTerm | ExponentialTerm):
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

    @property
    def is_polynomial(self) -> bool:
        """Whether all terms are truncated polynomials (`Term`)."""
        return all(isinstance(term, Term) for term in self.terms)

    def value(self, t: ArrayLike) -> Floats:
        """Evaluate the surrogate at shortfalls `t` of any shape."""
        return self._derivative(t, 0)

    def slope(self, t: ArrayLike) -> Floats:
        """Evaluate the first derivative at shortfalls `t`; at a knot, the one from below."""
        return self._derivative(t, 1)

    def curvature(self, t: ArrayLike) -> Floats:
        """Evaluate the second derivative at shortfalls `t`; at a knot, the one from below."""
        return self._derivative(t, 2)

    def at_margin(self, margin: float) -> tuple[PairTerm, ...]:
        """Return the terms for pairs with this margin, polynomials first.

        Returns
        -------
        tuple of KnotTerm and ShiftedTerm
            Polynomials are expanded at their knots. This is the argument of all kernels.
        """
        expansion = self._expansions.get(margin)
        if expansion is None:
            if len(self._expansions) >= _CACHED_MARGINS:
                self._expansions.clear()
            polynomials = [term for term in self.terms if isinstance(term, Term)]
            is_flat = _is_flat(polynomials)
            knot_terms = _merged([_at_knot(term, margin, is_flat) for term in polynomials])
            smooth = [_shifted(term, margin) for term in self.terms if not isinstance(term, Term)]
            expansion = (*knot_terms, *smooth)
            self._expansions[margin] = expansion
        return expansion

    def at_knots(self, margin: float) -> tuple[KnotTerm, ...]:
        """Expand every `Term` at its own knot, for pairs with this margin.

        Returns
        -------
        tuple of KnotTerm
            ``(shift, b0, b1, b2, truncated)`` in the order of `terms`. Terms with the same shift
            are added up.

        Examples
        --------
        >>> from everypair.surrogates import HUBER_HINGE
        >>> HUBER_HINGE.at_knots(1.0)[1]
        KnotTerm(shift=0.0, b0=0.0, b1=0.0, b2=-0.5, truncated=True)
        """
        terms = self.at_margin(margin)
        if are_polynomials(terms):
            return terms
        return tuple(term for term in terms if isinstance(term, KnotTerm))

    def scaled(self, rate: float, factor: float = 1.0, name: str | None = None) -> Surrogate:
        """Return the surrogate ``factor * value(rate * t)``, by default of the same name.

        Examples
        --------
        >>> from everypair.surrogates import SQUARED_HINGE
        >>> SQUARED_HINGE.scaled(0.5, factor=3.0).value([4.0])
        array([12.])
        """
        terms = tuple(_scaled(term, rate, factor) for term in self.terms)
        return Surrogate(name or self.name, terms, self.default_margin / rate)

    def _derivative(self, t: ArrayLike, order: int) -> Floats:
        t = np.asarray(t, dtype=np.float64)
        out = np.zeros_like(t)
        for knot, formula in pieces(self):
            out = np.where(knot is None or t > knot, formula(t)[order], out)
        for term in self.terms:
            if not isinstance(term, Term):
                out = out + term.derivative(t, order)
        return out


def pieces(surrogate: Surrogate) -> list[tuple[float | None, Formula]]:
    """Return the polynomials between knots, each with the knot above which it applies.

    Terms that are no polynomials are left out. The coefficients of all active terms are added
    before they are multiplied by the shortfall. Adding the values of the terms instead would lose
    digits where large terms cancel, as those of the Huber hinge do.
    """
    terms = [term for term in surrogate.terms if isinstance(term, Term)]
    knots = sorted({term.knot for term in terms if term.knot is not None})
    result: list[tuple[float | None, Formula]] = []
    for knot in (None, *knots):
        limit = -math.inf if knot is None else knot
        active = [term for term in terms if term.knot is None or term.knot <= limit]
        c0, c1, c2 = (math.fsum(getattr(term, c) for term in active) for c in ("c0", "c1", "c2"))
        result.append((knot, _polynomial(c0, c1, c2)))
    return result


def _at_knot(term: Term, margin: float, is_flat: bool) -> KnotTerm:
    if not term.knot:  # no knot, or a knot at 0: t = d
        return KnotTerm(margin, term.c0, term.c1, term.c2, term.knot is not None)
    shift = margin - term.knot
    # t = d + knot, but for the rounding of the shift. It matters where terms cancel: margins of
    # 1e16 and 1e16 - 1 are the same float, and then the Huber hinge would be 0.
    rounded = Fraction(margin) - Fraction(shift) if math.isfinite(shift) else Fraction(term.knot)
    knot = Fraction(term.knot)
    if is_flat or abs(rounded - knot) > _NEGLIGIBLE * abs(term.knot):
        knot = rounded
    linear, square = Fraction(term.c1) * knot, Fraction(term.c2) * knot * knot
    slope = 2 * Fraction(term.c2) * knot
    b0 = _float(Fraction(term.c0) + linear + square)
    b1 = _float(Fraction(term.c1) + slope)
    if not is_flat:
        b0 = _unless_rounding(b0, term.c0, _float(linear), _float(square))
        b1 = _unless_rounding(b1, term.c1, _float(slope))
    return KnotTerm(shift, b0, b1, term.c2, True)


def _is_flat(terms: list[Term]) -> bool:
    """Return whether parabolas cancel to a constant beyond all knots.

    Then a slope that is left by rounding would grow with the scores. Others grow as well.
    """
    truncated = [term for term in terms if term.knot is not None]
    sums = [(math.fsum(t.c1 for t in of), math.fsum(t.c2 for t in of)) for of in (truncated, terms)]
    return any(term.c2 for term in truncated) and not all(map(any, sums))


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _merged(terms: list[KnotTerm]) -> list[KnotTerm]:
    """Add up terms with the same shift, so that no kernel sees large terms that cancel."""
    same: dict[tuple[float, bool], list[KnotTerm]] = {}
    for term in terms:
        same.setdefault((term.shift, term.truncated), []).append(term)
    if len(same) == len(terms):
        return terms
    sums = []
    for (shift, truncated), addends in same.items():
        b0, b1, b2 = (math.fsum(term[k] for term in addends) for k in (1, 2, 3))
        sums.append(KnotTerm(shift, b0, b1, b2, truncated))
    return sums


def _shifted(term: SmoothTerm | ExponentialTerm, margin: float) -> ShiftedTerm:
    centre = term.centre if isinstance(term, SmoothTerm) else 0.0
    return ShiftedTerm(margin - centre, term)


def _scaled(term: AnyTerm, rate: float, factor: float) -> AnyTerm:
    if isinstance(term, ExponentialTerm):
        return ExponentialTerm(term.rate * rate, term.scale * factor)
    if isinstance(term, SmoothTerm):
        centre, scale = term.centre / rate, term.scale * factor
        return SmoothTerm(term.rate * rate, term.low, term.high, centre, scale)
    c0, c1, c2 = (c * factor * rate**k for k, c in enumerate((term.c0, term.c1, term.c2)))
    return Term(c0, c1, c2, knot=None if term.knot is None else term.knot / rate)


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

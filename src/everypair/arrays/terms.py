"""The terms of a surrogate as the pair sums take them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everypair.surrogates import ExponentialTerm, Fits, KnotTerm, ShiftedTerm, SmoothTerm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from everypair.surrogates import PairTerm


class Terms(NamedTuple):
    """Polynomials ``b0 + b1 d + b2 d^2`` in ``d = s_neg + shift - s_pos``, one entry per term.

    Factors are tuples of floats, or what a library makes of them. A coefficient that is zero in
    every term is None.

    `reach` and `far` are None unless the squares of several truncated terms cancel beyond all
    knots, as those of the Huber hinge do. There the sum of the terms is linear with the slope
    `far` (None if it is 0), and all knots lie within `reach` of each other.
    """

    shift: Any
    b0: Any
    b1: Any
    b2: Any
    reach: Any = None
    far: Any = None


def split(terms: Sequence[KnotTerm]) -> tuple[Terms | None, Terms | None, Terms | None]:
    """Return the terms with a knot, largest shift first, the sum of those without, and a third.

    Each is None where there is none. If the terms with a knot cancel those without beyond all
    knots, the latter are divided at the lowest knot into a term above it and the third result, a
    polynomial in -d where d <= 0. Then no sum has both, and no digits are lost.
    """
    hinged = sorted((term for term in terms if term[4]), key=lambda term: -term[0])
    others = [term for term in terms if not term[4]]
    everywhere = below = None
    if others:  # their shift is the margin, so their coefficients add up
        c0, c1, c2 = (math.fsum(b) for b in list(zip(*others, strict=True))[1:4])
        whole = KnotTerm(others[0][0], c0, c1, c2, False)
        if hinged and _cancels(whole, hinged):
            above = _expanded_at(whole, hinged[0][0])
            hinged.insert(0, above)
            below = _one_term(above._replace(b1=-above.b1))
        else:
            everywhere = _one_term(whole)
    if not hinged:
        return None, everywhere, None
    shift, *coefficients, _ = zip(*hinged, strict=True)
    b0, b1, b2 = (b if any(b) else None for b in coefficients)
    reach = far = None
    if len(hinged) > 1 and math.fsum(coefficients[2]) == 0.0:
        reach = (2.0 * (shift[0] - shift[-1]),)
        slope = _slope_beyond(hinged)
        far = (slope,) if slope else None
    return Terms(shift, b0, b1, b2, reach, far), everywhere, below


def _one_term(term: KnotTerm) -> Terms:
    shift, *coefficients, _ = term
    b0, b1, b2 = ((b,) if b else None for b in coefficients)
    return Terms((shift,), b0, b1, b2)


def _cancels(whole: KnotTerm, hinged: list[KnotTerm]) -> bool:
    """Return whether the sum of all terms has a lower degree beyond all knots than `whole`."""
    terms = [whole, *hinged]
    if not math.isfinite(hinged[0][0]) or math.fsum(term[3] for term in terms) != 0.0:
        return False
    return whole.b2 != 0.0 or (whole.b1 != 0.0 and _slope_beyond(terms) == 0.0)


def _expanded_at(term: KnotTerm, shift: float) -> KnotTerm:
    """Return the same polynomial in the distance with another shift, rounded once."""
    b0, b1, b2 = Fraction(term.b0), Fraction(term.b1), Fraction(term.b2)
    lag = Fraction(term.shift) - Fraction(shift)
    return KnotTerm(
        shift, float(b0 + b1 * lag + b2 * lag**2), float(b1 + 2 * b2 * lag), term.b2, True
    )


def _slope_beyond(terms: Sequence[KnotTerm]) -> float:
    """Return the slope where all terms count and their squares cancel, rounded once.

    It is 0 if it is not larger than the rounding errors of the slopes at the knots.
    """
    try:
        first = Fraction(terms[0][0])
        slopes = (
            Fraction(b1) + 2 * Fraction(b2) * (Fraction(shift) - first)
            for shift, _, b1, b2, _ in terms
        )
        slope, rounding = float(sum(slopes)), 2.0**-53 * sum(abs(term[2]) for term in terms)
        return 0.0 if abs(slope) <= rounding else slope
    except OverflowError:  # a number of a term, or the slope, is infinite
        return math.nan


@dataclass(frozen=True)
class Powers:
    """A smooth term as data: polynomials in exp(-rate |d|), as in `surrogates.SmoothTerm`."""

    rate: float
    scale: float
    fits: Fits

    def coefficients(
        self, outputs: tuple[tuple[int, int], ...], n_sources: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return the coefficients c and e of `ExponentialSums`, in u = rate |d|; None if e is zero.

        An output is an order of derivative and the number of a weight. It takes two of the results:
        the first for pairs with d > 0, the second for the others, with the weights 2 i and 2 i + 1.
        """
        return _coefficients(self, outputs, n_sources)


class Smooth(NamedTuple):
    """A smooth term at a margin; `shift` as in `Terms`, of length one."""

    shift: Any
    powers: Powers


class Exponential(NamedTuple):
    """An exponential term at a margin; `shift` as in `Terms`, of length one."""

    shift: Any
    factors: ExponentialTerm


class Kinds(NamedTuple):
    """The terms of a surrogate by kind; None or an empty tuple where there is none.

    `below` is a polynomial in -d that counts where d <= 0; see `split`.
    """

    truncated: Terms | None
    everywhere: Terms | None
    below: Terms | None
    smooth: tuple[Smooth, ...]
    exponential: tuple[Exponential, ...]


def n_polynomials(terms: Sequence[PairTerm]) -> int:
    """Return the number of terms that are polynomials."""
    return sum(not isinstance(term, ShiftedTerm) for term in terms)


def by_kind(terms: Sequence[PairTerm], *, wide: bool) -> Kinds:
    """Return terms by kind; `wide` says that scores are float64, which need more powers."""
    smooth, exponential = [], []
    for shift, term in (t for t in terms if isinstance(t, ShiftedTerm)):
        if isinstance(term, SmoothTerm):
            powers = Powers(term.rate, term.scale, term.high if wide else term.low)
            smooth.append(Smooth((shift,), powers))
        else:
            exponential.append(Exponential((shift,), term))
    polynomials = [t for t in terms if not isinstance(t, ShiftedTerm)]
    return Kinds(*split(polynomials), tuple(smooth), tuple(exponential))


@lru_cache(maxsize=64)
def _coefficients(
    powers: Powers, outputs: tuple[tuple[int, int], ...], n_sources: int
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    fits = [powers.fits[order] for order, _ in outputs]
    n_powers = max(len(side) for fit in fits for side in (fit.below, fit.above))
    found = np.zeros((2, 2 * len(outputs), n_sources, n_powers))
    for i, (fit, (order, weight)) in enumerate(zip(fits, outputs, strict=True)):
        scale = powers.scale * powers.rate**order
        for side, pairs in enumerate((fit.above, fit.below)):
            found[:, 2 * i + side, 2 * weight + side, : len(pairs)] = scale * np.transpose(pairs)
    return found[0], found[1] if found[1].any() else None

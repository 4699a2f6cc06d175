"""The terms of a surrogate as the pair sums take them."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from everypair.arrays.double_double import each, twice
from everypair.surrogates import KnotTerm, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.double_double import Arrays, Number
    from everypair.surrogates import PairTerm


class Polynomials(NamedTuple):
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


def split(
    terms: Sequence[KnotTerm],
) -> tuple[Polynomials | None, Polynomials | None, Polynomials | None]:
    """Return the terms with a knot, largest shift first, the sum of those without, and a third.

    Each is None where there is none. If the terms with a knot cancel those without beyond all
    knots, the latter are divided at the lowest knot into a term above it and the third result, a
    polynomial in -d where d <= 0. Then no sum has both, and no digits are lost.
    """
    hinged = sorted((term for term in terms if term[4]), key=lambda term: -term[0])
    plain_terms = [term for term in terms if not term[4]]
    everywhere = below = None
    if plain_terms:  # their shift is the margin, so their coefficients add up
        c0, c1, c2 = (math.fsum(b) for b in list(zip(*plain_terms, strict=True))[1:4])
        total = KnotTerm(plain_terms[0][0], c0, c1, c2, False)
        if hinged and _cancels(total, hinged):
            above = _expanded_at(total, hinged[0][0])
            hinged.insert(0, above)
            below = _one_term(above._replace(b1=-above.b1))
        else:
            everywhere = _one_term(total)
    if not hinged:
        return None, everywhere, None
    shift, *coefficients, _ = zip(*hinged, strict=True)
    b0, b1, b2 = (b if any(b) else None for b in coefficients)
    reach = far = None
    if len(hinged) > 1 and math.fsum(coefficients[2]) == 0.0:
        reach = (2.0 * (shift[0] - shift[-1]),)
        slope = _slope_beyond(hinged)
        far = (slope,) if slope else None
    return Polynomials(shift, b0, b1, b2, reach, far), everywhere, below


def _one_term(term: KnotTerm) -> Polynomials:
    shift, *coefficients, _ = term
    b0, b1, b2 = ((b,) if b else None for b in coefficients)
    return Polynomials((shift,), b0, b1, b2)


def _cancels(total: KnotTerm, hinged: list[KnotTerm]) -> bool:
    """Return whether the sum of all terms has a lower degree beyond all knots than `total`."""
    terms = [total, *hinged]
    if not math.isfinite(hinged[0][0]) or math.fsum(term[3] for term in terms) != 0.0:
        return False
    return total.b2 != 0.0 or (total.b1 != 0.0 and _slope_beyond(terms) == 0.0)


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


class Smooth(NamedTuple):
    """Powers of x = exp(-u), with u = rate |d|.

    A pair adds ``sum of (c_k + e_k u) x^k``. `shift` and `rate` have length one, and `c` and `e`
    the shape (3, 2, K): orders of derivatives, sides, and powers k = 1, 2, ... `e` is None if it is
    zero.
    """

    shift: Any
    rate: Any
    c: Any
    e: Any


class Exponential(NamedTuple):
    """A term ``units[0] exp(rate d)``, and its derivatives; `shift` and `rate` have length one."""

    shift: Any
    rate: Any
    units: Any


class Kinds(NamedTuple):
    """The terms of a surrogate by kind; None or an empty tuple where there is none.

    `below` is a polynomial in -d that counts where d <= 0; see `split`.
    """

    truncated: Polynomials | None
    everywhere: Polynomials | None
    below: Polynomials | None
    smooth: tuple[Smooth, ...]
    exponential: tuple[Exponential, ...]


def degree_of(terms: Polynomials, orders: Sequence[int]) -> int:
    """Return the largest power of d that derivatives of these orders have."""
    b = terms[1:4]
    return max([0] + [k - order for order in orders for k in range(order, 3) if b[k] is not None])


def contracted(xp: Arrays, terms: Polynomials, moments: Sequence[Any], order: int) -> Number:
    """Return a derivative of the terms, given those moments 1, d and d^2 that it needs."""
    parts = []
    for k, b in enumerate(terms[1 + order : 4]):
        if b is not None:
            part = xp.scaled(moments[k], b)
            parts.append(twice(part) if math.perm(k + order, order) == 2 else part)
    return reduce(xp.plus, parts) if parts else each(xp.zeros_like, moments[0])


@lru_cache(maxsize=64)
def by_kind(terms: tuple[PairTerm, ...], *, wide: bool) -> Kinds:
    """Return terms by kind; `wide` says that scores are float64, which need more powers."""
    pieces, exponential = tables(terms, wide)
    smooth = []
    for table in pieces:
        if table.c.size:
            e = table.e * table.units if table.e.any() else None
            smooth.append(Smooth((table.shift,), (table.rate,), table.c * table.units, e))
    products = [
        Exponential((shift,), (rate,), tuple(scale * rate**order for order in range(3)))
        for shift, rate, scale in exponential
    ]
    polynomials = [term for term in terms if isinstance(term, KnotTerm)]
    return Kinds(*split(polynomials), tuple(smooth), tuple(products))

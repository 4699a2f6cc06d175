"""Sums over the pairs beyond a knot, from rows sorted by position.

A row stands at z = score (positives) or score + shift (negatives), so that a term of the surrogate
is ``b0 + b1 d + b2 d^2`` in d = z_neg - z_pos where d > 0. All rows are sorted by z. With L the
weight of the positives below a gap between neighbours and U that of the negatives above it,
everything is a sum over gaps:

    T_i = sum over gaps up to row i of  gap L       first moment of the positives below row i
    R_i = sum over gaps after row i of  gap U       first moment of the negatives above row i
    sum over pairs of d   = sum of  gap L U
    sum over pairs of d^2 = sum of  gap (2 T + gap L) U

No addend is negative, and an offset of all scores cancels in the gaps. A gap that no pair spans is
set to zero: it may be far wider than all others, and its rounding errors would remain.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import Number, each, twice, two_sum

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Rows
    from everypair.arrays.terms import Terms

    Array = Any


class SortedMoments:
    """Moments of the active pairs of truncated terms; sorted rows, one array row per term.

    With `below`, the others are active: those with d <= 0, whose distance is -d.
    """

    def __init__(self, xp: Arrays, rows: Rows, terms: Terms, below: bool = False) -> None:
        self.xp, self.runs, self._terms = xp, rows.runs, terms
        shift = xp.column(terms.shift)
        position, rank = positions(xp, rows, shift)
        groups = () if rows.groups is None else (xp.broadcast(rows.groups, rank.shape),)
        self._order = xp.order([rank, position.high, *groups])
        gap = self.runs.gaps(each(self._sorted, position))
        self.is_upper = self._sorted(rows.positive if below else ~rows.positive)
        self.w = None if rows.w is None else Number(self._sorted(rows.w))
        w = 1.0 if self.w is None else self.w.high
        self._upper = Number(xp.where(self.is_upper, w, xp.zeros_like(gap.high)))
        lower = Number(xp.where(self.is_upper, xp.zeros_like(gap.high), w))
        self._below, self._above = xp.both_ways(
            lower, self._upper, self.runs, counts=self.w is None
        )
        self._before = self.runs.before(self._below)
        spanned = (self._before.high > 0.0) & (self._above.high > 0.0)
        self._excess: Number | None = None
        if terms.reach is not None:
            gap, excess = self._compressed(rows, gap, shift)
            self._excess = each(lambda part: xp.where(spanned[:1], part, 0.0), excess)
        self._gap = each(lambda part: xp.where(spanned, part, 0.0), gap)

    def rows(self, a: Number) -> Number:
        """Return sorted rows in the order of the batch."""
        return each(lambda part: self.xp.scatter(part, self._order), a)

    @cached_property
    def mass(self) -> Number:
        """The weight of the rows that each row forms active pairs with."""
        return self.xp.choose(self.is_upper, self._below, self._above)

    @cached_property
    def first(self) -> Number:
        """The sum of d, weighted, over the active pairs of each row."""
        over = self.runs.after(self._sums[1])
        return self.xp.choose(self.is_upper, self._sums[0], over)

    def along(self, z: Number) -> tuple[Number, Number]:
        """Return z of each row, and its weighted sum over the rows of the active pairs."""
        xp, z = self.xp, each(self._sorted, z)
        weighted = z if self.w is None else xp.times(self.w, z)
        lower = each(lambda part: xp.where(self.is_upper, 0.0, part), weighted)
        upper = each(lambda part: xp.where(self.is_upper, part, 0.0), weighted)
        return z, self.xp.choose(self.is_upper, *xp.both_ways(lower, upper, self.runs))

    def pair_weight(self) -> Number:
        """Return the sum over active pairs of 1."""
        return self.runs.sum_of_rows(self.xp.times(self._upper, self._below))

    def pair_distance(self) -> Number:
        """Return the sum over active pairs of d."""
        return self.runs.sum_of_rows(self.xp.times(self._step, self._above))

    def pair_square(self) -> Number:
        """Return the sum over active pairs of d^2."""
        inner = self.xp.plus(twice(self.runs.before(self._sums[0])), self._step)
        widened = self.xp.times(self._gap, inner)
        return self.runs.sum_of_rows(self.xp.times(widened, self._above))

    def beyond(self) -> Number | None:
        """Return what the compressed gaps leave out of the value."""
        if self._excess is None or self._terms.far is None:
            return None
        xp = self.xp
        before, above = (each(lambda part: part[:1], a) for a in (self._before, self._above))
        left_out = self.runs.sum_of_rows(xp.times(xp.times(self._excess, before), above))
        return xp.times(left_out, xp.column(self._terms.far))

    @cached_property
    def _step(self) -> Number:
        return self.xp.times(self._gap, self._before)

    @cached_property
    def _sums(self) -> tuple[Number, Number]:
        """T, and R of the row before."""
        return self.xp.both_ways(self._step, self.xp.times(self._gap, self._above), self.runs)

    def _sorted(self, a: Array) -> Array:
        return self.xp.gather(self.xp.broadcast(a, self._order.shape), self._order)

    def _compressed(self, rows: Rows, gap: Number, shift: Number) -> tuple[Number, Number]:
        """Return the gaps with every distance beyond all knots cut down to `reach`.

        The sum of the terms is linear there, so no slope changes, and terms that grow against each
        other no longer lose the digits of a distant score. The second result is what was cut off,
        which the value lacks. Positions are cut in the order of the first term and then moved by
        the differences of the shifts, so that all terms see the same ones.
        """
        xp = self.xp
        reach = xp.column(self._terms.reach).high
        first = each(lambda part: part[:1], gap)
        # Gaps of rows whose high parts are equal may be negative.
        near = abs(first.high) <= reach
        most = xp.where(first.high > 0.0, reach, 0.0)
        cut = Number(
            xp.where(near, first.high, most), xp.where(near, first.low, xp.zeros_like(reach))
        )
        excess = xp.minus(first, cut)
        position = each(lambda part: xp.scatter(part, self._order[:1]), xp.prefix(cut, self.runs))
        lag = xp.minus(shift, each(lambda part: part[:1], shift))
        lag = each(lambda part: xp.where(rows.positive, 0.0, part), lag)
        position = xp.plus(position, lag)
        return self.runs.gaps(each(self._sorted, position)), excess


def positions(xp: Arrays, rows: Rows, shift: Number) -> tuple[Number, Array]:
    """Return the position of each row, and its rank among rows whose high parts are equal.

    A tied negative comes first, because a pair on the knot does not count. The position of a
    positive has no low part, so the sign of a negative's low part decides exactly.
    """
    shift = each(lambda part: xp.where(rows.positive, 0.0, part), shift)
    position = two_sum(rows.x, shift.high)
    above = position.low > 0.0
    if shift.low is not None:
        low = two_sum(position.low, shift.low)
        high = position.high + low.high
        position = Number(high, low.high - (high - position.high))
        above = (position.low > 0.0) | ((position.low == 0.0) & (low.low > 0.0))
    return position, xp.as_uint8(xp.where(rows.positive, 1, xp.where(above, 2, 0)))

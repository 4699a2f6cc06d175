"""Sums over all pairs of the smooth and of the exponential terms of a surrogate.

**Smooth terms** are polynomials in exp(-rate |d|) on either side of d = 0, with
d = s_neg + shift - s_pos. Rows are sorted as for truncated terms, with the same decision about
pairs at d = 0: a row then finds the pairs with d > 0 on one side of itself and those with d <= 0 on
the other, as running sums of exponentials in the two directions (`exponential_sums`).

The error: a polynomial deviates from the function by a relative error that `surrogates` proves, for
every pair. Where all pairs have slopes of one sign, as for every increasing surrogate, a sum of
them has no larger relative error. So the bound holds for the loss and for each entry of the
gradient; rounding adds less than 1e-12 in float64.

**Exponential terms** scale * exp(rate d) are products of a factor of the positive and one of the
negative. With M the largest score of the negatives of a group and m the smallest of its positives,

    sum over j of w_j exp(rate (s_j + shift - s_i))
        = exp(rate (M + shift - s_i)) * sum over j of w_j exp(rate (s_j - M))

for a positive i, and the same for a negative with m. The sum has no term larger than its weight, so
only results that are themselves too large for a float overflow.
"""

from __future__ import annotations

from functools import reduce
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.arrays.double_double import Number, each, two_sum
from everypair.arrays.exponential_sums import ExponentialSums, Line
from everypair.arrays.rows import PairSums
from everypair.arrays.sorted_moments import positions

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Rows
    from everypair.arrays.terms import Exponential, Smooth

    Array = Any


def smooth_sums(xp: Arrays, rows: Rows, term: Smooth, asked: PairSums) -> PairSums:
    """Return the sums of a smooth term over all pairs, in the order of the rows."""
    wide, xp = xp, xp.for_smooth_terms()
    in_order = _SortedRows(xp, rows, term, one_way=not (asked.grad or asked.hess or asked.hvp))
    w, z, is_neg = in_order.w, in_order.z, in_order.is_neg
    # Value, slope and curvature by the weights; the curvature by the weights times the vector.
    needed = (asked.value, asked.grad, asked.hess or asked.hvp)
    outputs = [(derivative, 0) for derivative in range(3) if needed[derivative]]
    weights = [w]
    if z is not None:
        outputs.append((2, 1))
        weights.append(xp.times(w, z))
    sums = dict(zip(outputs, in_order.sums(term, outputs, weights), strict=True))

    def in_batch(a: Number) -> Number:
        return xp.sum_of_terms(in_order.rows(xp.times(w, a)))

    value = grad = hess = hvp = None
    if asked.value:  # the sums upwards have each pair once
        up = each(itemgetter(0), sums[0, 0])
        value = wide.sum_of_terms(rows.runs.sum_of_rows(wide.times(w, up)))
    if asked.grad:
        slope = in_order.both_ways(sums[1, 0])
        grad = in_batch(each(lambda part: xp.where(is_neg, part, -part), slope))
    if asked.hess:
        hess = in_batch(in_order.both_ways(sums[2, 0]))
    if z is not None:
        own, others = (in_order.both_ways(sums[2, weight]) for weight in (0, 1))
        hvp = in_batch(xp.minus(xp.times(z, own), others))
    return PairSums(value, None, grad, hess, hvp)


class _SortedRows:
    """The rows in the order in which they stand on either side of d = 0, and sums along them.

    Arrays of results have the directions, upwards and downwards, in their first dimension. With
    `one_way` there are no sums downwards.
    """

    def __init__(self, xp: Arrays, rows: Rows, term: Smooth, *, one_way: bool) -> None:
        self.xp, self._one_way = xp, one_way
        position, rank = positions(xp, rows, xp.column(term.shift))
        groups = () if rows.groups is None else (xp.broadcast(rows.groups, rank.shape),)
        self._order = xp.order([rank, position.high, *groups])
        self.is_neg = self._sorted(~rows.positive)
        self.z = None if rows.z is None else each(self._sorted, rows.z)
        ones = xp.zeros_like(position.high) + 1.0
        self.w = Number(ones if rows.w is None else self._sorted(rows.w))
        position = each(self._sorted, position)
        start = None
        if rows.groups is not None:
            last = rows.runs.rows.shape[-1] - 1
            starts = (rows.runs.start, last - rows.runs.stop)
            start = self._directions(*(Number(xp.broadcast(s, rank.shape)) for s in starts)).high
        negative = each(lambda part: -part, position)
        self._line = Line(self._directions(position, negative), rows.runs.rows, start)

    def sums(
        self, term: Smooth, outputs: list[tuple[int, int]], weights: list[Number]
    ) -> list[Number]:
        """Return the sums over the pairs of each row, for pairs of a derivative and a weight."""
        xp, is_neg = self.xp, self.is_neg
        sources = []
        for weight in weights:
            # First the rows that form pairs with d > 0 with later rows, then those with d <= 0.
            pos = each(lambda part: xp.where(is_neg, 0.0, part), weight)
            neg = each(lambda part: xp.where(is_neg, part, 0.0), weight)
            sources += [self._directions(pos, neg), self._directions(neg, pos)]
        c, e = term.powers.coefficients(tuple(outputs), len(sources))
        scan = ExponentialSums(
            xp,
            xp.constants(np.array([term.powers.rate])),
            xp.constants(c),
            None if e is None else xp.constants(e),
        )
        stacked = reduce(xp.joined, (each(lambda part: part[None], source) for source in sources))
        out = scan(self._line, stacked)
        is_above = self._directions(Number(is_neg), Number(~is_neg)).high
        sides = [[each(itemgetter(2 * i + k), out) for k in (0, 1)] for i in range(len(outputs))]
        return [xp.choose(is_above, above, below) for above, below in sides]

    def both_ways(self, a: Number) -> Number:
        """Return the sum of both directions."""
        up, down = (each(itemgetter(i), a) for i in (0, 1))
        return self.xp.plus(up, each(self.xp.flip, down))

    def rows(self, a: Number) -> Number:
        """Return sorted rows in the order of the batch."""
        return each(lambda part: self.xp.scatter(part, self._order), a)

    def _sorted(self, a: Array) -> Array:
        return self.xp.gather(self.xp.broadcast(a, self._order.shape), self._order)

    def _directions(self, up: Number, down: Number) -> Number:
        """Return what sums upwards take, and what sums downwards do, which is reversed here."""
        xp, first = self.xp, each(lambda part: part[None], up)
        if self._one_way:
            return first
        return xp.joined(first, each(lambda part: xp.flip(part)[None], down))


def exponential_sums(xp: Arrays, rows: Rows, term: Exponential, asked: PairSums) -> PairSums:
    """Return the sums of an exponential term over all pairs, in the order of the rows."""
    wide, xp = xp, xp.for_smooth_terms()
    shift, rate = xp.column(term.shift), xp.constants(np.array([term.factors.rate]))
    x, positive = rows.x[None], rows.positive[None]
    top, bottom = _extremes(xp, rows)

    # Each row relative to the extreme row of its class, and the extreme row of the other class
    # relative to each row.
    near = two_sum(xp.where(positive, bottom, x), -xp.where(positive, x, top))
    far = xp.plus(two_sum(xp.where(positive, top, x), -xp.where(positive, x, bottom)), shift)
    w = Number(xp.zeros_like(x) + 1.0 if rows.w is None else rows.w[None])
    # The scores of rows without weight are 0 here, so their exponentials may be infinite.
    own = each(lambda part: xp.where(w.high > 0.0, part, 0.0), xp.exp(xp.times(near, rate)))
    exponent = xp.times(far, rate)
    factor = xp.exp(exponent)

    def of_others(a: Number) -> Number:
        """Return the sums over the other class of its rows relative to its extreme row."""
        totals = rows.runs.class_totals(wide.times(w, a), rows.positive)
        return wide.choose(positive, totals[1], totals[0])

    sums = of_others(own)
    alive = (w.high > 0.0) & (sums.high > 0.0)

    def scaled(a: Number, order: int) -> Number:
        return xp.times(a, xp.constants(np.array([term.factors.scale * term.factors.rate**order])))

    def per_row(a: Number, order: int) -> Number:
        """Return the share of each row: zero without a pair, infinite where it overflows."""
        share = scaled(xp.times(xp.times(w, a), factor), order)
        counts = alive & (a.high != 0.0)
        if share.low is not None:  # NaN where a part of the product overflows
            infinite = xp.where(a.high * term.factors.scale > 0.0, float("inf"), -float("inf"))
            is_finite = xp.isfinite(share.high + share.low)
            share = xp.choose(is_finite, share, Number(infinite, xp.zeros_like(infinite)))
        return xp.sum_of_terms(each(lambda part: xp.where(counts, part, 0.0), share))

    value = grad = hess = hvp = None
    if asked.value:
        # Relative to the largest factor, because sums with low parts must be finite.
        counted = alive & ~positive
        largest = xp.max(xp.where(counted, exponent.high, -float("inf")))
        largest = Number(xp.where(xp.isfinite(largest), largest, 0.0))
        relative = xp.times(xp.times(w, sums), xp.exp(xp.minus(exponent, largest)))
        relative = each(lambda part: xp.where(counted, part, 0.0), relative)
        total = rows.runs.sum_of_rows(relative)
        value = xp.sum_of_terms(scaled(xp.times(total, xp.exp(largest)), 0))
    if asked.grad:
        grad = each(lambda part: xp.where(rows.positive, -part, part), per_row(sums, 1))
    if asked.hess:
        hess = per_row(sums, 2)
    if rows.z is not None:
        z = each(lambda part: part[None], rows.z)
        others = of_others(wide.times(own, z))
        hvp = per_row(wide.minus(wide.times(z, sums), others), 2)
    return PairSums(value, None, grad, hess, hvp)


def _extremes(xp: Arrays, rows: Rows) -> tuple[Array, Array]:
    """Return the largest score of the negatives and the smallest of the positives of each group."""
    x, positive = rows.x, rows.positive
    alive = positive | ~positive if rows.w is None else rows.w > 0.0
    if rows.groups is None:
        least = -float("inf")
        top = xp.max(xp.where(alive & ~positive, x, least))
        bottom = -xp.max(xp.where(alive & positive, -x, least))
        # Without one of the classes there is no pair.
        return tuple(xp.where(xp.isfinite(a), a, 0.0)[None] for a in (top, bottom))
    # Within a group: positives, rows without weight, negatives. Each class in the order of scores.
    rank = xp.as_uint8(xp.where(alive, xp.where(positive, 0, 2), 1))
    by_rank = xp.gather(x, xp.order([x, rank, rows.groups]))
    return xp.gather(by_rank, rows.runs.stop)[None], xp.gather(by_rank, rows.runs.start)[None]

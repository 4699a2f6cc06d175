"""Sums over all pairs of the exponential terms of a surrogate.

A term ``exp(rate d)`` is a product of a factor of the positive and one of the negative. With M the
largest score of the negatives of a group and m the smallest of its positives,

    sum over j of w_j exp(rate (s_j + shift - s_i))
        = exp(rate (M + shift - s_i)) * sum over j of w_j exp(rate (s_j - M))

for a positive i, and the same for a negative with m. The sum has no term larger than its weight, so
only results overflow that are themselves too large for a float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import Number, each, two_sum
from everypair.arrays.rows import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Rows, Targets
    from everypair.arrays.terms import Exponential

    Array = Any


class ExponentialTerm(Part):
    """The sums of one exponential term."""

    def __init__(self, xp: Arrays, rows: Rows, term: Exponential) -> None:
        self.xp, self._wide, self._rows, self._term = xp.plain(), xp, rows, term

    def sums(self, source: Number | None, orders: Sequence[int], to: Targets) -> list[Number]:
        """See `Part`."""
        xp, rows, (_, rate, units) = self.xp, self._rows, self._term
        positive, rate = rows.positive, xp.constants(rate)
        w = rows.weights(xp) if source is None else source
        top, bottom = self._extremes(w.high != 0.0)
        # Each row relative to the extreme row of its class, and the extreme row of the other class
        # relative to each row.
        near = two_sum(xp.where(positive, bottom, rows.x), -xp.where(positive, rows.x, top))
        far = two_sum(xp.where(positive, top, rows.x), -xp.where(positive, rows.x, bottom))
        far = xp.plus(far, each(lambda part: part[0], xp.column(self._term.shift)))
        # A row of weight 0 may have an infinite factor.
        factors = xp.exp(xp.times(near, rate))
        factors = each(lambda part: xp.where(w.high != 0.0, part, 0.0), factors)
        totals = rows.runs.class_totals(self._wide.times(w, factors), positive)
        sums = xp.choose(positive, *totals[::-1])
        if rows.w is not None:
            sums = each(lambda part: xp.where(rows.w > 0.0, part, 0.0), sums)
        factor = xp.exp(xp.times(far, rate))
        return [self._product(sums, factor, xp.constants(units), order) for order in orders]

    def _product(self, sums: Number, factor: Number, units: Number, order: int) -> Number:
        """Return the product: zero where a sum is zero, and infinite where it overflows."""
        xp, unit = self.xp, each(lambda part: part[order : order + 1], units)
        product = xp.times(xp.times(sums, factor), unit)
        if product.low is not None:  # NaN where a part of the product overflows
            infinite = xp.where(sums.high * unit.high > 0.0, float("inf"), -float("inf"))
            is_finite = xp.isfinite(product.high + product.low)
            product = xp.choose(is_finite, product, Number(infinite, xp.zeros_like(infinite)))
        return each(lambda part: xp.where(sums.high != 0.0, part, 0.0), product)

    def _extremes(self, has_weight: Array) -> list[Array]:
        """Return the largest score of the negatives and the smallest of the positives of groups.

        They are 0 where there is none.
        """
        xp, rows, extremes = self.xp, self._rows, []
        for of_class, sign in ((~rows.positive, 1.0), (rows.positive, -1.0)):
            x = xp.where(has_weight & of_class, sign * rows.x, -float("inf"))
            start = rows.runs.start
            largest = xp.max(x) if start is None else xp.group_max(x, start)
            extremes.append(xp.where(xp.isfinite(largest), sign * largest, 0.0))
        return extremes

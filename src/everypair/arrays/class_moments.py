"""Sums over all pairs, for terms without a knot: nothing is sorted.

Sums over all pairs are products of sums over the classes. With c the mean score of each class,
``a = c_neg + shift - c_pos`` and ``q = score - c_neg`` or ``c_pos - score``, a pair has the
distance ``d = a + q_pos + q_neg``. With the sums W of w, F of w q and S of w q^2 in each class,

    sum over pairs of d   = a W W' + (W F' + W' F)
    sum over pairs of d^2 = a^2 W W' + 2 a (W F' + W' F) + (W S' + W' S) + 2 F F'

An offset of all scores cancels before anything is squared, and F is no larger than the rounding
error of c.
"""

from __future__ import annotations

from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import Number, each, twice, two_sum

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Rows
    from everypair.arrays.terms import Terms

    Array = Any


class ClassMoments:
    """Moments of all pairs; pairs of numbers are those of the positives and the negatives."""

    def __init__(self, xp: Arrays, rows: Rows, terms: Terms) -> None:
        self.xp, self.runs = xp, rows.runs
        self.is_upper = ~rows.positive[None]
        self.w = None if rows.w is None else Number(rows.w[None])
        self._x = rows.x[None]
        self._masses = [each(lambda part: part[None], mass) for mass in rows.masses]
        self._shift = xp.column(terms.shift)

    def rows(self, a: Number) -> Number:
        """Return rows in the order of the batch, which they already have."""
        return a

    @cached_property
    def mass(self) -> Number:
        """The weight of the other class."""
        return self._opposite(self._masses)

    @cached_property
    def first(self) -> Number:
        """The sum of d, weighted, over the pairs of each row.

        It is W' times the distance from the mean of the other class, plus F' of that class. So a
        distant score of its own class does not cost a row any digits.
        """
        xp = self.xp
        apart = two_sum(self._x, -xp.where(self.is_upper, *self._centres))
        apart = each(lambda part: xp.where(self.is_upper, part, -part), apart)
        distance = xp.plus(apart, self._shift)
        return xp.plus(xp.times(self.mass, distance), self._opposite(self._firsts))

    def along(self, z: Number) -> tuple[Number, Number]:
        """Return z of each row, and its weighted sum over the other class."""
        z = each(lambda part: part[None], z)
        return z, self._opposite(self._of_classes(self._weighted(z)))

    def pair_weight(self) -> Number:
        """Return the sum over pairs of 1."""
        return self.runs.sum_of_groups(self._pairs)

    def pair_distance(self) -> Number:
        """Return the sum over pairs of d."""
        xp = self.xp
        return self.runs.sum_of_groups(xp.plus(xp.times(self._pairs, self._apart), self._across))

    def pair_square(self) -> Number:
        """Return the sum over pairs of d^2."""
        xp = self.xp
        seconds = self._of_classes(xp.times(self._weighted(self._offsets), self._offsets))
        inner = xp.plus(xp.times(self._pairs, self._apart), twice(self._across))
        parts = (
            xp.times(inner, self._apart),
            xp.times(self._masses[0], seconds[1]),
            xp.times(self._masses[1], seconds[0]),
            twice(xp.times(*self._firsts)),
        )
        return self.runs.sum_of_groups(reduce(xp.plus, parts))

    def beyond(self) -> None:
        """Return None: no gaps are compressed."""

    @cached_property
    def _pairs(self) -> Number:
        return self.xp.times(*self._masses)

    @cached_property
    def _across(self) -> Number:
        (w, other_w), (f, other_f) = self._masses, self._firsts
        return self.xp.plus(self.xp.times(w, other_f), self.xp.times(other_w, f))

    @cached_property
    def _centres(self) -> list[Array]:
        """The mean score of each class, to the last bit where all its scores are equal."""
        xp = self.xp
        centres = [xp.zeros_like(mass.high) for mass in self._masses]
        for _ in range(2):  # the second round corrects the rounding error of the first
            offset = two_sum(self._x, -self._own(*centres))
            mass = self._own(*(mass.high for mass in self._masses))
            share = xp.where(mass > 0.0, 1.0, 0.0) / xp.where(mass > 0.0, mass, 1.0)
            share = share if self.w is None else share * self.w.high
            sums = self._of_classes(xp.times(Number(share), offset))
            centres = [centre + sum_.high for centre, sum_ in zip(centres, sums, strict=True)]
        return centres

    @cached_property
    def _apart(self) -> Number:
        pos, neg = self._centres
        return self.xp.plus(two_sum(neg, -pos), self._shift)

    @cached_property
    def _offsets(self) -> Number:
        """The distance q of each row from the mean of its class."""
        apart = self.xp.normal(*two_sum(self._x, -self._own(*self._centres)))
        return each(lambda part: self.xp.where(self.is_upper, part, -part), apart)

    @cached_property
    def _firsts(self) -> list[Number]:
        return self._of_classes(self._weighted(self._offsets))

    def _weighted(self, a: Number) -> Number:
        return a if self.w is None else self.xp.times(self.w, a)

    def _of_classes(self, a: Number) -> list[Number]:
        return self.runs.class_totals(a, ~self.is_upper)

    def _own(self, pos: Array, neg: Array) -> Array:
        return self.xp.where(self.is_upper, neg, pos)

    def _opposite(self, of_classes: list[Number]) -> Number:
        return self.xp.choose(self.is_upper, *of_classes)

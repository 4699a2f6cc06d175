"""Sums over all pairs, for terms without a knot: nothing is sorted.

Sums over the rows of the other class are sums over that class. With c its mean score, q the
distance of each of its rows from c, and a that of a row from c, a pair has the distance a + q. With
the sums W of w, F of w q and S of w q^2 over the class,

    sum of d = a W + F        sum of d^2 = a^2 W + 2 a F + S

An offset of all scores cancels before anything is squared, and F is no larger than the rounding
error of c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import Number, each, twice, two_sum
from everypair.arrays.rows import Part
from everypair.arrays.terms import contracted, degree_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Rows, Targets
    from everypair.arrays.terms import Polynomials

    Array = Any


class ClassMoments(Part):
    """The sums of a polynomial over all pairs."""

    def __init__(self, xp: Arrays, rows: Rows, terms: Polynomials) -> None:
        self.xp, self._rows, self._terms = xp, rows, terms

    def sums(self, source: Number | None, orders: Sequence[int], to: Targets) -> list[Number]:
        """See `Part`."""
        xp, rows, terms = self.xp, self._rows, self._terms
        masses = rows.masses if source is None else self._of_classes(source)
        w = Number(rows.w) if source is None and rows.w is not None else source
        moments = [self._of_others(masses)]
        degree = degree_of(terms, orders)
        if degree > 0:
            centres = self._centres(w)
            # From the mean of the other class: then a distant score of its own class costs a row no
            # digits.
            shift = each(lambda part: part[0], xp.column(terms.shift))
            away = xp.plus(self._apart(*centres), shift)
            offset = xp.normal(*self._apart(*centres[::-1]))
            weighted = offset if w is None else xp.times(w, offset)
            inside = self._of_others(self._of_classes(weighted))
            moved = xp.times(moments[0], away)
            moments.append(xp.plus(moved, inside))
            if degree > 1:
                squares = self._of_others(self._of_classes(xp.times(weighted, offset)))
                moved = xp.times(away, xp.plus(moved, twice(inside)))
                moments.append(xp.plus(moved, squares))
        of_terms = [each(lambda part: part[None], moment) for moment in moments]
        return [xp.sum_of_terms(contracted(xp, terms, of_terms, order)) for order in orders]

    def _centres(self, w: Number | None) -> list[Array]:
        """Return the mean score of each class, to the last bit where all its scores are equal."""
        xp, rows = self.xp, self._rows
        w = Number(xp.zeros_like(rows.x) + 1.0 if w is None else abs(w.high))
        masses = [mass.high for mass in self._of_classes(w)]
        mass = xp.where(rows.positive, *masses)
        share = xp.where(mass > 0.0, w.high, 0.0) / xp.where(mass > 0.0, mass, 1.0)
        centres = [xp.zeros_like(mass) for mass in masses]
        for _ in range(2):  # the second round corrects the rounding error of the first
            offset = two_sum(rows.x, -xp.where(rows.positive, *centres))
            sums = self._of_classes(xp.times(Number(share), offset))
            centres = [centre + a.high for centre, a in zip(centres, sums, strict=True)]
        return centres

    def _apart(self, of_negatives: Array, of_positives: Array) -> Number:
        """Return the distance d of each row from one of two places."""
        xp, rows = self.xp, self._rows
        distance = two_sum(rows.x, -xp.where(rows.positive, of_positives, of_negatives))
        return each(lambda part: xp.where(rows.positive, -part, part), distance)

    def _of_classes(self, a: Number) -> list[Number]:
        return self._rows.runs.class_totals(a, self._rows.positive)

    def _of_others(self, of_classes: list[Number]) -> Number:
        """Return that of the other class for each row."""
        return self.xp.choose(self._rows.positive, *of_classes[::-1])

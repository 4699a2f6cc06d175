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
from everypair.arrays.terms import contracted, degree_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.double_double import Arrays
    from everypair.arrays.line import Targets
    from everypair.arrays.rows import Rows
    from everypair.arrays.terms import Polynomials

    Array = Any


class ClassMoments:
    """The sums of a polynomial over all pairs."""

    def __init__(self, xp: Arrays, rows: Rows, terms: Polynomials) -> None:
        self.xp, self._rows, self._terms = xp, rows, terms

    def loss(self, orders: Sequence[int]) -> tuple[Number, list[Number]]:
        """See `pair_sums.Part`."""
        xp, terms = self.xp, self._terms
        centres, classes = self._class_sums(None, degree_of(terms, [0]))
        # Products of sums over the classes, whose distance is that of their means.
        (w, other_w), *others = classes
        pairs = xp.times(w, other_w)
        moments = [pairs]
        if others:
            f, other_f = others[0]
            apart = xp.plus(two_sum(centres[1], -centres[0]), self._shift())
            across = xp.plus(xp.times(w, other_f), xp.times(other_w, f))
            moved = xp.times(pairs, apart)
            moments.append(xp.plus(moved, across))
            if len(others) > 1:
                s, other_s = others[1]
                inner = xp.times(apart, xp.plus(moved, twice(across)))
                inside = xp.plus(xp.times(w, other_s), xp.times(other_w, s))
                inside = xp.plus(inside, twice(xp.times(f, other_f)))
                moments.append(xp.plus(inner, inside))
        total = self._contracted(moments, 0)
        return self._rows.runs.sum_of_groups(total), self._row_sums(centres, classes, orders)

    def sums(self, source: Number | None, orders: Sequence[int], to: Targets) -> list[Number]:
        """See `pair_sums.Part`."""
        return self._row_sums(*self._class_sums(source, degree_of(self._terms, orders)), orders)

    def _row_sums(
        self, centres: list[Array], classes: list[list[Number]], orders: Sequence[int]
    ) -> list[Number]:
        xp, degree = self.xp, degree_of(self._terms, orders)
        mass, *others = (self._of_others(of_classes) for of_classes in classes[: degree + 1])
        moments = [mass]
        if others:
            # From the mean of the other class: then a distant score of its own class costs a row no
            # digits.
            away = xp.plus(self._apart(*centres), self._shift())
            moved = xp.times(mass, away)
            moments.append(xp.plus(moved, others[0]))
            if degree > 1:
                moved = xp.times(away, xp.plus(moved, twice(others[0])))
                moments.append(xp.plus(moved, others[1]))
        return [self._contracted(moments, order) for order in orders]

    def _class_sums(
        self, source: Number | None, degree: int
    ) -> tuple[list[Array], list[list[Number]]]:
        """Return the means of the classes, and their sums of w q^k for k up to a degree."""
        xp, rows = self.xp, self._rows
        w = Number(rows.w) if source is None and rows.w is not None else source
        classes, centres = [rows.masses if source is None else self._of_classes(source)], []
        if degree > 0:
            centres = self._centres(w)
            offset = xp.normal(*self._apart(*centres[::-1]))
            weighted = offset if w is None else xp.times(w, offset)
            classes.append(self._of_classes(weighted))
            if degree > 1:
                classes.append(self._of_classes(xp.times(weighted, offset)))
        return centres, classes

    def _contracted(self, moments: list[Number], order: int) -> Number:
        of_terms = [each(lambda part: part[None], moment) for moment in moments]
        return self.xp.sum_of_terms(contracted(self.xp, self._terms, of_terms, order))

    def _shift(self) -> Number:
        return each(lambda part: part[0], self.xp.column(self._terms.shift))

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
        apart = two_sum(rows.x, -xp.where(rows.positive, of_positives, of_negatives))
        return each(lambda part: xp.where(rows.positive, -part, part), apart)

    def _of_classes(self, a: Number) -> list[Number]:
        return self._rows.runs.class_totals(a, self._rows.positive)

    def _of_others(self, of_classes: list[Number]) -> Number:
        """Return that of the other class for each row."""
        return self.xp.choose(self._rows.positive, *of_classes[::-1])

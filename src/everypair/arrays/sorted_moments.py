"""Sums over the pairs beyond a knot, from rows sorted by position.

A term is ``b0 + b1 d + b2 d^2`` where d > 0. On the line of its shift (see `line`), let M_k be the
sum of w d^k over the positives below a row. Moving up by the gap g between two neighbours changes

    M_1 into M_1 + g M_0        M_2 into M_2 + g (2 M_1 + g M_0)

and moving down does the same to the sums over the negatives above a row. So all are running sums
whose addends, for weights that are not negative, are not negative either, and an offset of all
scores cancels in the gaps. A gap that no pair spans is set to zero: it may be far wider than all
others, and its rounding errors would remain.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from everypair.arrays.double_double import Number, each, twice
from everypair.arrays.line import BOTH_WAYS, UP, Tracks
from everypair.arrays.rows import Part
from everypair.arrays.terms import contracted, degree_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.line import Line
    from everypair.arrays.rows import Rows, Targets
    from everypair.arrays.terms import Polynomials


class SortedMoments(Part):
    """The sums of truncated terms; with `below`, those of polynomials in -d where d <= 0.

    In the latter case, the classes change their places in all that is said here.
    """

    def __init__(self, rows: Rows, terms: Polynomials, line: Line, *, below: bool = False) -> None:
        self.xp = xp = line.xp
        self._line, self._terms, self._below = line, terms, below
        self._is_upper = ~line.is_negative if below else line.is_negative
        self._tracks = tracks = Tracks(line)
        ones = xp.zeros_like(line.position.high) + 1.0
        self._w = Number(ones if rows.w is None else line.sorted(rows.w))
        # The weight of the lower rows up to each row, and that of the upper rows from it on.
        self._masses = xp.prefix(
            self._by_class(self._w, tracks), tracks.runs, counts=rows.w is None
        )
        # The weight of the upper rows beyond the gap before each row.
        _, self._beyond = tracks.on_line(self._masses)
        before = line.runs.before(each(itemgetter(0), self._masses))
        self._spanned = (before.high > 0.0) & (self._beyond.high > 0.0)
        gap = line.runs.gaps(line.position)
        self._gap = self._where_spanned(gap)
        if terms.reach is not None:
            self._gap, self._excess = map(self._where_spanned, self._compressed(gap))

    def loss(self, orders: Sequence[int]) -> tuple[Number, list[Number]]:
        """See `Part`."""
        xp, terms, degree = self.xp, self._terms, degree_of(self._terms, [0])
        of_rows, up = degree_of(terms, orders), itemgetter(0)
        tracks = self._tracks.only(BOTH_WAYS if of_rows else UP)
        masses = each(itemgetter(tracks.ways), self._masses)
        moments = [self._masses]
        # What each gap adds to the sums of the lower rows, all upper rows beyond it take.
        upper = each(lambda part: xp.where(self._is_upper, part, 0.0), self._w)
        addends = [(upper, each(up, masses))]
        if degree > 0:
            step = self._step(tracks, self._gap, masses)
            addends.append((self._beyond, each(up, step)))
            if degree > 1:
                moments.append(xp.prefix(step, tracks.runs))
                inner = xp.plus(twice(each(up, tracks.runs.before(moments[1]))), each(up, step))
                addends.append((self._beyond, xp.times(self._gap, inner)))
        totals = [
            None if b is None and k < degree else self._total(*pair)
            for k, (pair, b) in enumerate(zip(addends, terms[1:4], strict=False))
        ]
        loss = xp.sum_of_terms(contracted(xp, terms, totals, 0))
        if terms.far is not None:
            before = each(lambda part: part[0, :1], tracks.runs.before(masses))
            beyond = each(lambda part: part[:1], self._beyond)
            remainder = self._total(xp.times(self._excess, before), beyond)
            loss = xp.plus(loss, xp.sum_of_terms(xp.scaled(remainder, terms.far)))
        rows = [self._of_rows(self._tracks, moment) for moment in moments[: of_rows + 1]]
        return loss, self._contracted(rows, orders)

    def sums(self, source: Number | None, orders: Sequence[int], to: Targets) -> list[Number]:
        """See `Part`."""
        xp, terms, to_classes = self.xp, self._terms, (to.negatives, to.positives)
        if all(b is None for order in orders for b in terms[1 + order : 4]):
            return [Number(xp.zeros_like(self._gap.high[0]))] * len(orders)
        to_upper, to_lower = to_classes[::-1] if self._below else to_classes
        tracks = self._tracks.only(slice(0 if to_upper else 1, 2 if to_lower else 1))
        masses = each(itemgetter(tracks.ways), self._masses)
        if source is not None:
            masses = xp.prefix(self._by_class(each(self._line.sorted, source), tracks), tracks.runs)
        rows, degree = [self._of_rows(tracks, masses)], degree_of(terms, orders)
        if degree > 0:
            step = self._step(tracks, self._gap, masses)
            first = xp.prefix(step, tracks.runs)
            rows.append(self._of_rows(tracks, first))
        if degree > 1:
            step = xp.plus(twice(tracks.runs.before(first)), step)
            step = xp.times(self._gaps(tracks, self._gap), step)
            rows.append(self._of_rows(tracks, xp.prefix(step, tracks.runs)))
        sums = self._contracted(rows, orders)
        if 0 in orders and terms.far is not None:
            step = self._step(tracks, self._excess, each(lambda part: part[:, :1], masses))
            remainder = self._in_batch(self._of_rows(tracks, xp.prefix(step, tracks.runs)))
            value = orders.index(0)
            sums[value] = xp.plus(sums[value], xp.scaled(remainder, terms.far))
        return sums

    def _by_class(self, w: Number, tracks: Tracks) -> Number:
        """Return the weights of the lower rows upwards, and those of the upper rows downwards."""
        where, is_upper = self.xp.where, self._is_upper
        lower = each(lambda part: where(is_upper, 0.0, part), w)
        return tracks.of(lower, each(lambda part: where(is_upper, part, 0.0), w))

    def _step(self, tracks: Tracks, gap: Number, masses: Number) -> Number:
        """Return what the gap before each row adds to the sums of w d: its length times M_0."""
        return self.xp.times(self._gaps(tracks, gap), tracks.runs.before(masses))

    def _gaps(self, tracks: Tracks, gap: Number) -> Number:
        """Return the gaps before each row of the tracks; before the first of a group it is 0."""
        return tracks.of(gap, each(lambda part: self.xp.roll(part, -1), gap))

    def _of_rows(self, tracks: Tracks, sums: Number) -> Number:
        """Return, on the line, the sum that each row takes from the other class."""
        on_line = tracks.on_line(sums)
        if len(on_line) == 1:
            return on_line[0]
        return self.xp.choose(self._is_upper[: sums.high.shape[1]], *on_line)

    def _total(self, a: Number, b: Number) -> Number:
        """Return the sum of products over the rows, for each term."""
        return self._line.runs.sum_of_rows(self.xp, self.xp.times(a, b))

    def _contracted(self, moments: list[Number], orders: Sequence[int]) -> list[Number]:
        """Return derivatives of the terms, given the moments of the rows on the line."""
        xp, terms = self.xp, self._terms
        sums = [self._in_batch(contracted(xp, terms, moments, order)) for order in orders]
        if self._below and 1 in orders:  # the slope in d is minus that in -d
            slope = orders.index(1)
            sums[slope] = each(lambda part: -part, sums[slope])
        return sums

    def _in_batch(self, a: Number) -> Number:
        """Return the sum over the terms, in the order of the batch."""
        return self.xp.sum_of_terms(self._line.in_batch(a))

    def _where_spanned(self, gap: Number) -> Number:
        spanned = self._spanned[: gap.high.shape[0]]
        return each(lambda part: self.xp.where(spanned, part, 0.0), gap)

    def _compressed(self, gap: Number) -> tuple[Number, Number]:
        """Return the gaps with every distance beyond all knots cut down to `reach`.

        The sum of the terms is linear there, so no slope changes, and terms that grow against each
        other no longer lose the digits of a distant score. The second result is what was cut off,
        which the value lacks. Positions are cut in the order of the first term.
        """
        xp = self.xp
        reach = xp.column(self._terms.reach).high
        first = each(lambda part: part[:1], gap)
        # Gaps of rows whose high parts are equal may be negative.
        near = abs(first.high) <= reach
        largest = xp.where(first.high > 0.0, reach, 0.0)
        cut = Number(
            xp.where(near, first.high, largest), xp.where(near, first.low, xp.zeros_like(reach))
        )
        return self._line.runs.gaps(self._line.placed(cut)), xp.minus(first, cut)

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

from typing import TYPE_CHECKING

from everypair.arrays.double_double import Number, each, twice
from everypair.arrays.line import DOWN, UP, Tracks
from everypair.arrays.terms import contracted, degree_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.line import Line, Targets
    from everypair.arrays.rows import Rows
    from everypair.arrays.terms import Polynomials


class SortedMoments:
    """The sums of truncated terms; with `below`, those of polynomials in -d where d <= 0.

    In the latter case, the classes change their places in all that is said here.
    """

    def __init__(self, rows: Rows, terms: Polynomials, line: Line, *, below: bool = False) -> None:
        self.xp = xp = line.xp
        self._line, self._terms, self._below = line, terms, below
        self._is_upper = ~line.is_negative if below else line.is_negative
        tracks = Tracks(line)
        w = Number(
            xp.zeros_like(line.position.high) + 1.0 if rows.w is None else line.sorted(rows.w)
        )
        self._masses = xp.prefix(self._by_class(w, tracks), tracks.runs, counts=rows.w is None)
        lower, _ = tracks.on_line(tracks.runs.before(self._masses))
        _, upper = tracks.on_line(self._masses)
        self._spanned = (lower.high > 0.0) & (upper.high > 0.0)
        gap = line.runs.gaps(line.position)
        self._gap = self._where_spanned(gap)
        if terms.reach is not None:
            self._gap, self._excess = map(self._where_spanned, self._compressed(gap))

    def sums(
        self, source: Number | None, orders: Sequence[int], to: Targets, own: Number | None
    ) -> list[Number]:
        """See `pair_sums.Part`."""
        xp, terms, to_classes = self.xp, self._terms, (to.negatives, to.positives)
        to_upper, to_lower = to_classes[::-1] if self._below else to_classes
        ways = slice(0 if to_upper else 1, 2 if to_lower else 1)
        tracks = Tracks(self._line, ways)
        if source is None:
            masses = each(lambda part: part[ways], self._masses)
        else:
            masses = xp.prefix(self._by_class(each(self._line.sorted, source), tracks), tracks.runs)
        rows, degree = [self._of_rows(tracks, masses)], degree_of(terms, orders)
        if degree > 0:
            step = self._step(tracks, self._gap, masses)
            first = xp.prefix(step, tracks.runs)
            rows.append(self._of_rows(tracks, first))
        # Values are needed for one class only.
        of_values, value_tracks = slice(None), tracks
        if to.positives and to.negatives:
            of_values = DOWN if self._below else UP
            value_tracks = Tracks(self._line, of_values)
        if degree > 1:
            step, first = (each(lambda part: part[of_values], a) for a in (step, first))
            step = xp.plus(twice(value_tracks.runs.before(first)), step)
            step = xp.times(self._gaps(value_tracks, self._gap), step)
            rows.append(self._of_rows(value_tracks, xp.prefix(step, value_tracks.runs)))
        sums = [self._in_batch(contracted(xp, terms, rows, order)) for order in orders]
        if 0 in orders and terms.far is not None:
            first_line = each(lambda part: part[of_values, :1], masses)
            step = self._step(value_tracks, self._excess, first_line)
            beyond = self._of_rows(value_tracks, xp.prefix(step, value_tracks.runs))
            value, beyond = orders.index(0), self._in_batch(xp.scaled(beyond, terms.far))
            sums[value] = xp.plus(sums[value], beyond)
        if self._below and 1 in orders:  # the slope in d is minus that in -d
            slope = orders.index(1)
            sums[slope] = each(lambda part: -part, sums[slope])
        return [xp.weighted(own, a) for a in sums]

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

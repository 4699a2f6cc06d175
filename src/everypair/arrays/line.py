"""Rows of both classes on a line, in the order in which pairs change sides.

A row stands at z = score (positives) or score + shift (negatives), so that d = z_neg - z_pos. On a
sorted line, the pairs of a row with d > 0 are on one side of it, and those with d <= 0 on the
other: a negative has the first below itself, and a positive above.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import Number, each, two_sum
from everypair.arrays.rows import Runs

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Rows

    Array = Any


UP, BOTH_WAYS = slice(0, 1), slice(0, 2)


class Line:
    """The rows of a batch, sorted by group and position; one array row per shift."""

    def __init__(self, xp: Arrays, rows: Rows, shift: Any) -> None:
        self.xp, self.runs, self.shift = xp, rows.runs, xp.column(shift)
        position, rank = _positions(xp, rows, self.shift)
        groups = () if rows.groups is None else (xp.broadcast(rows.groups, rank.shape),)
        self._order = xp.order([rank, position.high, *groups])
        self.position = each(self.sorted, position)
        self.is_negative = self.sorted(~rows.positive)

    def sorted(self, a: Array) -> Array:
        """Return rows of the batch in the order of the line."""
        return self.xp.gather(self.xp.broadcast(a, self._order.shape), self._order)

    def in_batch(self, a: Number) -> Number:
        """Return rows of the first lines, or of all, in the order of the batch."""
        order = self._order[: a.high.shape[0]]
        return each(lambda part: self.xp.scatter(part, order), a)

    def placed(self, a: Number) -> Number:
        """Return the positions of the rows as if their distances from the row before were `a`.

        They are measured along the first line and moved by the difference of the shifts, so that
        all lines see the same ones.
        """
        xp = self.xp
        first = each(lambda part: xp.scatter(part, self._order[:1]), xp.prefix(a, self.runs))
        lag = xp.minus(self.shift, each(lambda part: part[:1], self.shift))
        is_negative = xp.scatter(self.is_negative, self._order)
        lag = each(lambda part: xp.where(is_negative, part, 0.0), lag)
        return each(self.sorted, xp.plus(first, lag))


class Tracks:
    """The rows of a line upwards, downwards, or both side by side: sums run along tracks.

    Arrays have one entry per track in their first dimension.
    """

    def __init__(self, line: Line) -> None:
        self.xp, self.ways, runs = line.xp, BOTH_WAYS, line.runs
        start = None
        if runs.start is not None:
            shape, last = (1, *line.is_negative.shape[1:]), line.is_negative.shape[-1] - 1
            bounds = (self.xp.broadcast(a, shape) for a in (runs.start, last - runs.stop))
            start = self.of(*map(Number, bounds)).high
        self.runs = Runs(self.xp, runs.rows, start)

    def only(self, ways: slice) -> Tracks:
        """Return some of both ways."""
        tracks, runs = copy(self), self.runs
        start = None if runs.start is None else runs.start[ways]
        tracks.ways, tracks.runs = ways, Runs(self.xp, runs.rows, start)
        return tracks

    def of(self, up: Number, down: Number) -> Number:
        """Return two arrays of rows of the line, the first upwards and the second downwards."""
        return self.xp.stacked(self._turned([up, down][self.ways]))

    def on_line(self, a: Number) -> list[Number]:
        """Return the array of each track as rows of the line."""
        return self._turned(self.xp.unstacked(a))

    def _turned(self, arrays: list[Number]) -> list[Number]:
        """Return the arrays of the tracks, the rows of the one downwards in reverse order."""
        is_down = [False, True][self.ways]
        flip = self.xp.flip
        return [each(flip, a) if down else a for a, down in zip(arrays, is_down, strict=True)]


def _positions(xp: Arrays, rows: Rows, shift: Number) -> tuple[Number, Array]:
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

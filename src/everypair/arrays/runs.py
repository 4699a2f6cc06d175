"""Rows of a batch, group after group, and sums along them that restart at every group."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import each

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays, Number

    Array = Any

__all__ = ["Runs"]


class Runs:
    """The groups of rows that are sorted by group; without groups, all rows are one.

    Parameters
    ----------
    xp : Arrays
    rows : array
        The numbers of the rows: 0, 1, ...
    start, stop : array or None
        The first and the last row of the group of each row.
    """

    def __init__(self, xp: Arrays, rows: Array, start: Array = None, stop: Array = None) -> None:
        self.xp, self.rows, self.start, self.stop = xp, rows, start, stop
        self.is_head = rows == (0 if start is None else start)
        self.is_tail = rows == (rows.shape[-1] - 1 if stop is None else stop)

    @cached_property
    def reversed(self) -> Runs:
        """The groups of the same rows in reverse order."""
        if self.start is None:
            return self
        flip, last = self.xp.flip, self.rows.shape[-1] - 1
        return Runs(self.xp, self.rows, last - flip(self.stop), last - flip(self.start))

    def before(self, a: Number) -> Number:
        """Return the entry of the row before, zero at the first row of a group."""
        return each(lambda part: self.xp.where(self.is_head, 0.0, self.xp.roll(part, 1)), a)

    def after(self, a: Number) -> Number:
        """Return the entry of the row after, zero at the last row of a group."""
        return each(lambda part: self.xp.where(self.is_tail, 0.0, self.xp.roll(part, -1)), a)

    def gaps(self, a: Number) -> Number:
        """Return the distance of each row from the row before, zero at the first of a group."""
        gap = self.xp.minus(a, each(lambda part: self.xp.roll(part, 1), a))
        return each(lambda part: self.xp.where(self.is_head, 0.0, part), gap)

    def totals(self, a: Number, *, counts: bool = False) -> Number:
        """Return the sum over the group of each row; one entry for all rows without groups."""
        if self.stop is None:
            return self.xp.total(a, counts=counts)
        sums = self.xp.prefix(a, self, counts=counts)
        return each(lambda part: self.xp.gather(part, self.stop), sums)

    def class_totals(self, a: Number, positive: Array, *, counts: bool = False) -> list[Number]:
        """Return the sums over the positives and over the negatives of each group."""
        xp = self.xp
        masks = xp.concatenate([positive[None], ~positive[None]])
        sums = self.totals(each(lambda part: xp.where(masks, part, 0.0), a), counts=counts)
        return [each(lambda part, k=k: part[k], sums) for k in (0, 1)]  # type: ignore[misc]

    def sum_of_groups(self, a: Number) -> Number:
        """Return the sum over the groups of what `totals` returned."""
        if self.stop is None:
            return a
        return self.xp.total(each(lambda part: self.xp.where(self.is_head, part, 0.0), a))

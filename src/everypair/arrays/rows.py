"""Rows of a batch, group after group, sums along them that restart at every group, and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from everypair.arrays.double_double import Number, each, two_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.double_double import Arrays

    Array = Any


class Runs:
    """The groups of rows that are sorted by group; without groups, all rows are one.

    Parameters
    ----------
    xp : Arrays
    rows : array
        The numbers of the rows: 0, 1, ...
    start, stop : array or None
        The first and the last row of the group of each row.
    share : array or None
        What a pair of the group of each row weighs in sums over groups. None is 1.
    """

    def __init__(
        self,
        xp: Arrays,
        rows: Array,
        start: Array = None,
        stop: Array = None,
        share: Array = None,
    ) -> None:
        self.xp, self.rows, self.start, self.stop, self.share = xp, rows, start, stop, share
        self.is_head = rows == (0 if start is None else start)

    def before(self, a: Number) -> Number:
        """Return the entry of the row before, zero at the first row of a group."""
        return each(lambda part: self.xp.where(self.is_head, 0.0, self.xp.roll(part, 1)), a)

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
        return [each(itemgetter(k), sums) for k in (0, 1)]

    def sum_of_groups(self, a: Number) -> Number:
        """Return the sum over the groups of what `totals` returned."""
        if self.stop is None:
            return a
        first = each(lambda part: self.xp.where(self.is_head, part, 0.0), a)
        return self.sum_of_rows(self.xp, first)

    def sum_of_rows(self, xp: Arrays, a: Number) -> Number:
        """Return the sum over all rows, each times the share of its group."""
        share = self.share
        return xp.total(a if share is None else each(lambda part: part * share, a))


class Rows(NamedTuple):
    """The rows of a batch, sorted by group.

    `masses` are the weights of the positives and of the negatives in the group of each row. They
    and the weights `w` are None if sums are over other weights; `w` alone is None if all are 1.
    """

    x: Array
    positive: Array
    groups: Array
    runs: Runs
    w: Array = None
    masses: Any = None

    def weights(self, xp: Arrays) -> Number:
        """Return the weights of all rows."""
        return Number(xp.zeros_like(self.x) + 1.0 if self.w is None else self.w)


class Targets(NamedTuple):
    """The classes of the rows whose sums over the other class are computed."""

    positives: bool = True
    negatives: bool = True


class Part(ABC):
    """A part of a surrogate, ready to be summed over the pairs of a batch."""

    xp: Arrays
    _rows: Rows

    def loss(self, orders: Sequence[int]) -> tuple[Number, list[Number]]:
        """Return the sum over all pairs, weighted, and what `sums` does with the same weights."""
        xp, (_, positive, _, runs, w, _) = self.xp, self._rows
        values, *sums = self.sums(None, [0, *orders], Targets(positives=bool(orders)))
        values = each(lambda part: xp.where(positive, 0.0, part), values)  # each pair once
        return runs.sum_of_rows(xp, values if w is None else xp.times(Number(w), values)), sums

    @abstractmethod
    def sums(self, source: Number | None, orders: Sequence[int], to: Targets) -> list[Number]:
        """Return the sums over the other class, for each row.

        Parameters
        ----------
        source : Number of shape (..., n), or None
            The weights of the rows of the other class; those of the batch by default.
        orders : sequence of 0, 1 and 2
            The value of the surrogate, or a derivative in d. Several orders share most of the work.
        to : Targets
            The rows whose sums are needed; all others may be anything.
        """


class ScaledRows(NamedTuple):
    """The rows of a batch with weights over powers of two, and what undoes this.

    The largest weight of each class and group is near 1. The weight of a pair times the square of
    `row_scale` is that of the caller. Sums over groups, which take the shares of the groups, are
    multiplied by the square of `scale` instead, the largest one of a group with pairs. `z` is the
    vector of a Hessian-vector product over the power of two `unit`. The rows are sorted by `order`;
    None without groups.
    """

    rows: Rows
    order: Array
    pair_weight: Array
    scale: Array
    row_scale: Array
    z: Number | None
    unit: Array


def by_group(xp: Arrays, groups: Array, *arrays: Array) -> tuple[Any, ...]:
    """Return the order of rows by group, their runs, and the groups and other arrays in order."""
    order = xp.order([groups])
    groups, *columns = (None if a is None else xp.gather(a, order) for a in (groups, *arrays))
    return order, Runs(xp, xp.row_numbers(groups), *xp.bounds(groups)), groups, *columns


def prepare(
    xp: Arrays, scores: Array, positive: Array, weights: Array, groups: Array, vector: Array
) -> ScaledRows:
    """Sort a batch by group and scale its weights."""
    x, w, z, order = scores, weights, vector, None
    runs = Runs(xp, xp.row_numbers(x))
    if groups is not None:
        order, runs, groups, x, positive, w, z = by_group(xp, groups, x, positive, w, z)
    scale = row_scale = xp.zeros_like(x[..., :1]) + 1.0
    if w is not None:
        of_classes = [xp.where(of_class, w, 0.0) for of_class in (positive, ~positive)]
        if groups is None:
            largest = [xp.max(a) for a in of_classes]
        else:
            largest = [xp.group_max(a, runs.start) for a in of_classes]
        # Powers of two near the square roots, which change no digit and cannot overflow.
        roots = [xp.where(top > 0.0, top, 1.0) ** 0.5 for top in largest]
        roots = [xp.keep_bits(root, xp.mantissa_bits) for root in roots]
        root, scale = xp.where(positive, *roots), roots[0] * roots[1]
        w, row_scale = w / root / root, scale
    ones = Number(xp.zeros_like(x) + 1.0 if w is None else w)
    masses = runs.class_totals(ones, positive, counts=w is None)
    pairs = masses[0].high * masses[1].high
    # Rows that are in no pair must not overflow, nor leave rounding errors in sums that others
    # share.
    if w is not None:
        w = xp.where(pairs > 0.0, w, 0.0)
        if groups is not None:
            # Next to those of denormal weights, the 1 of a group without pairs would be infinite.
            row_scale = xp.where(pairs > 0.0, row_scale, 0.0)
            scale = xp.max(row_scale)
            scale = xp.where(scale > 0.0, scale, 1.0)
            share = row_scale / scale
            runs = Runs(xp, runs.rows, runs.start, runs.stop, share * share)
    x = xp.where(pairs > 0.0 if w is None else w > 0.0, x, 0.0)
    of_vector, unit = None, None
    if z is not None:
        z, unit = over_unit(xp, z if w is None else xp.where(w > 0.0, z, 0.0))
        # Subtract the smallest entry: the Hessian maps constants to zero, and smaller entries lose
        # fewer digits.
        lowest, highest = (
            sign * xp.max(sign * z if w is None else xp.where(w > 0.0, sign * z, -float("inf")))
            for sign in (-1.0, 1.0)
        )
        is_common = (highest - lowest < abs(lowest)) & xp.isfinite(lowest)
        common = xp.where(is_common, lowest, 0.0)
        of_vector = two_sum(z, -common)
    pair_weight = runs.sum_of_groups(Number(pairs)).high
    rows = Rows(x, positive, groups, runs, w, masses)
    return ScaledRows(rows, order, pair_weight, scale, row_scale, of_vector, unit)


def over_unit(xp: Arrays, z: Array) -> tuple[Array, Array]:
    """Return a vector over a power of two near its largest entry, and this power."""
    largest, smallest = xp.max(abs(z)), xp.float_range[0]
    # A denormal number would have no bits left.
    largest = xp.where(largest > smallest, largest, smallest)
    unit = xp.keep_bits(xp.where(xp.isfinite(largest), largest, 1.0), xp.mantissa_bits)
    return z / unit, unit


def times_powers(xp: Arrays, a: Array, first: Array, second: Array, unit: Array) -> Array:
    """Return `a` times three powers of two, which neither overflow nor vanish on the way."""

    def smaller(x: Array, y: Array) -> Array:
        return xp.where(x < y, x, y)

    def larger(x: Array, y: Array) -> Array:
        return xp.where(x < y, y, x)

    low, high = smaller(first, second), larger(first, second)
    middle, low, high = larger(low, smaller(high, unit)), smaller(low, unit), larger(high, unit)
    opposite = (low < 1.0) & (high > 1.0)
    return a * xp.where(opposite, low * high, low) * middle * xp.where(opposite, 1.0, high)


class PairSums(NamedTuple):
    """Results for a batch, in the fields of `kernel.request.Result`; None if not asked for.

    `value` and `pair_weight` have the shape of the batch without its rows, the others that of the
    batch.
    """

    value: Any
    pair_weight: Any
    grad: Any
    hess: Any
    hvp: Any

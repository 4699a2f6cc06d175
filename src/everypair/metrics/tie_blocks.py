"""Blocks of tied scores and the weights above them, from which the metrics are computed.

A metric that depends on the order of the scores alone is a sum over blocks of rows with equal
scores. Each block needs the weight of its own positives and negatives, and the weight of those
that score higher in its group. One sort and one running sum give them, for all groups at once.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everypair.arrays.double_double import Number
from everypair.arrays.numpy import NumpyArrays
from everypair.arrays.rows import Runs
from everypair.inputs import batches, binary
from everypair.inputs.batches import Batch
from everypair.inputs.groups import group_numbers

Average = Literal["pairs", "groups", "rows"]
Floats = NDArray[np.float64]

_AVERAGES = {
    "pairs": "weight groups by their pairs",
    "groups": "all groups count the same",
    "rows": "weight groups by their rows",
}


class TieBlocks(NamedTuple):
    """Blocks of equal scores, group after group, from the highest score to the lowest.

    Rows of weight 0 and groups without another row are left out. Without groups, all rows are one
    group. Arrays with two rows hold the weights of the positives, then those of the negatives, as
    multiples of ``2**exponents`` of the group, so that weights of any magnitude can be summed.

    Attributes
    ----------
    rows : (n,) intp
        The rows of the batch, block after block.
    heads : (k,) intp
        The first row of each block, as an index into `rows`.
    first : (n_groups,) intp
        The first block of each group.
    weight : (2, k) float64
        The weight of the rows of each block.
    above, up_to : (2, k) float64
        The weight of the rows of the group that score higher, without and with those of the block.
    total : (2, n_groups) float64
        The weight of the rows of each group.
    exponents : (2, n_groups) int
    """

    rows: NDArray[np.intp]
    heads: NDArray[np.intp]
    first: NDArray[np.intp]
    weight: Floats
    above: Floats
    up_to: Floats
    total: Floats
    exponents: NDArray[Any]

    @property
    def of_rows(self) -> NDArray[np.intp]:
        """The block of each of the `rows`."""
        sizes = np.diff(self.heads, append=self.rows.shape[0])
        return np.repeat(np.arange(sizes.shape[0]), sizes)

    def per_block(self, of_groups: NDArray[Any]) -> NDArray[Any]:
        """Repeat one value per group for each of its blocks."""
        repeats = np.diff(self.first, append=self.heads.shape[0])
        return np.repeat(of_groups, repeats, axis=-1)

    def per_group(self, of_blocks: Floats) -> Floats:
        """Sum one value per block over each group."""
        sums: Floats = np.add.reduceat(of_blocks, self.first)
        return sums

    def mean(self, values: Floats, counts: NDArray[np.bool_], average: str) -> float:
        """Average one value per group over the groups that count; `average` says how.

        A mean of quotients of rounded sums may exceed their largest value.
        """
        values, total, exponents = values[counts], self.total[:, counts], self.exponents[:, counts]
        if average == "groups":
            return float(values.mean())
        if average == "pairs":
            weights, exponent = total.prod(axis=0), exponents.sum(axis=0)
            weights = np.ldexp(weights, exponent - exponent.max())
        else:
            weights = np.ldexp(total, exponents - exponents[total > 0.0].max()).sum(axis=0)
        return float((weights * values).sum() / weights.sum())


def check_average(average: str, options: tuple[str, ...] = ("pairs", "groups", "rows")) -> None:
    """Check the name of an average over groups."""
    if average not in options:
        names = ", ".join(f"{name!r} ({_AVERAGES[name]})" for name in options)
        raise ValueError(f"average must be one of {names}; got {average!r}.")


def clipped_areas(
    above: Floats, up_to: Floats, total: Floats, widest: float, lowest: float
) -> Floats:
    """Return the area under each piece of a ROC curve inside the rectangle of a partial AUC.

    A piece is a block of tied scores: a straight line between the weights (positives, negatives)
    `above` and `up_to` the block, (2, k) each. `total` (2, k) or (2, 1) is the weight of all rows;
    areas are in units of weight.
    """
    (low, left), (high, right), (t, f) = above, up_to, total
    if widest == 1.0 and lowest == 0.0:
        whole: Floats = (right - left) * (low + high) / 2.0
        return whole
    stop = np.minimum(right, widest * f)
    width = np.maximum(stop - left, 0.0)
    run = np.where(width > 0.0, right - left, 1.0)
    high = low + (high - low) * (width / run)
    over, under = high - lowest * t, low - lowest * t
    # A piece that crosses the line of min_tpr leaves a triangle above it.
    crosses = (under < 0.0) & (over > 0.0)
    share = np.where(crosses, over / np.where(crosses, over - under, 1.0), 1.0)
    areas: Floats = width * share * (np.maximum(over, 0.0) + np.maximum(under, 0.0)) / 2.0
    return areas


def tie_blocks(batch: Batch, name: str, *, within_groups: bool = True) -> TieBlocks:
    """Check the values of a batch and return its blocks of equal scores.

    `name` is that of the metric, for an error if there are no rows of positive weight. Without
    `within_groups`, the groups of the batch are ignored.
    """
    positive, weights, x = batches.positives(batch), batch.weights, batch.scores
    groups = group_numbers(batch.order, batch.offsets) if within_groups else None
    rows = np.arange(x.shape[0])
    if weights is not None and not weights.all():
        rows = np.flatnonzero(weights)
        if rows.shape[0] == 0:
            binary.raise_no_pairs(positive, weights, name)
    n = rows.shape[0]
    # DeLong's test ignores groups and compares two scorers, which must differ by exactly 0 if all
    # ranks are equal. A stable sort, which is slower, adds the weights of ties in one order.
    stable = weights is not None and not within_groups
    rows = rows[np.argsort(-x[rows], kind="stable" if stable else None)]
    is_group = np.arange(n) == 0
    xp = NumpyArrays(compensated=True)
    runs = Runs(xp, np.arange(n))
    if groups is not None:
        # Sorting these numbers is faster than sorting by two keys.
        group, place = np.divmod(np.sort(groups[rows] * n + np.arange(n)), n)
        rows = rows[place]
        is_group[1:] = group[1:] != group[:-1]
        runs = Runs(xp, runs.rows, *xp.bounds(group))
    is_block = is_group.copy()
    is_block[1:] |= x[rows[1:]] != x[rows[:-1]]
    heads, group_heads = np.flatnonzero(is_block), np.flatnonzero(is_group)
    first = np.searchsorted(heads, group_heads)

    of_class = positive[rows] == np.array([[True], [False]])
    if weights is None:
        exponents = np.zeros((2, group_heads.shape[0]), np.int32)
        parts = of_class.astype(np.float64)
    else:
        parts = np.where(of_class, weights[rows], 0.0)
        exponents = np.frexp(np.maximum.reduceat(parts, group_heads, axis=1))[1]
        parts = np.ldexp(parts, -exponents[:, np.cumsum(is_group) - 1])
    sums = xp.prefix(Number(parts), runs, counts=weights is None).high
    up_to = sums[:, np.append(heads[1:], n) - 1]
    above = np.roll(up_to, 1, axis=1)
    above[:, first] = 0.0
    total = up_to[:, np.append(first[1:], heads.shape[0]) - 1]
    weight = up_to - above if weights is None else np.add.reduceat(parts, heads, axis=1)
    return TieBlocks(rows, heads, first, weight, above, up_to, total, exponents)

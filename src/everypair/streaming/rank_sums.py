"""AUC, partial AUC and DeLong's variance from counts of rows, in exact integers.

All rank-based metrics of unweighted rows depend on the scores through *blocks* only: the numbers of
positives and negatives with equal scores, or with scores between two others of one class, from the
lowest scores to the highest. The sums are integers, so their order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from everypair.inputs import binary
from everypair.metrics.tie_blocks import clipped_areas

Counts: TypeAlias = NDArray[np.int64]

_BLOCKS_AT_ONCE = 1 << 16  # so that they fit in the cache


class RankMetrics(NamedTuple):
    """Metrics of unweighted rows; rows in one block count as ties.

    The bounds are the largest errors if the rows of a block are in any order. The variance is None
    if a class has fewer than two rows, and the partial AUC without rates.
    """

    auc: float
    auc_bound: float
    variance: float | None
    partial_auc: float | None
    partial_auc_bound: float | None


def rank_metrics(
    blocks: Iterable[Counts], sizes: tuple[int, int], rates: tuple[float, float] | None = None
) -> RankMetrics:
    """Compute the metrics of blocks (2, k): the positives and the negatives in each block.

    `blocks` are pieces from the lowest scores to the highest, and `sizes` the numbers of positives
    and negatives in all of them. `rates` are `max_fpr` and `min_tpr` of `partial_auc`.
    """
    if min(sizes) == 0:
        binary.raise_no_pairs(np.repeat([True, False], sizes), None, "result")
    total, below = np.array(sizes)[:, None], np.zeros((2, 1), np.int64)
    # Of each class: the sum and the sum of squares over its rows of twice the number of rows of the
    # other class that score lower, ties half.
    sums, squares, n_tied = [0, 0], [0, 0], 0
    areas, doubts = [], []
    for counts in _pieces(blocks):
        up_to = below + np.cumsum(counts, axis=1)
        twice = 2 * up_to - counts
        for i in range(2):
            sums[i] += _dot(counts[i], twice[1 - i])
            squares[i] += _dot_squares(counts[i], twice[1 - i])
        n_tied += _dot(counts[0], counts[1])
        if rates is not None:
            above, width = (total - up_to).astype(np.float64), counts[1]
            areas.append(clipped_areas(above, above + counts, total, *rates).sum())
            # If the rows of a block are not tied, the curve may take any path in its rectangle.
            inside = np.clip(rates[0] * sizes[1] - above[1], 0.0, width)
            doubts.append((np.where(inside < width, 1.0, 0.5) * inside * counts[0]).sum())
        below = up_to[:, -1:]
    pairs, variance = sizes[0] * sizes[1], None
    if min(sizes) > 1:
        numerators = (n * b - a * a for n, a, b in zip(sizes, sums, squares, strict=True))
        parts = map(Fraction, numerators, (4 * pairs**2 * (n - 1) for n in sizes))
        variance = float(sum(parts))
    partial_auc, bound = (None if rates is None else math.fsum(x) / pairs for x in (areas, doubts))
    return RankMetrics(sums[0] / (2 * pairs), n_tied / (2 * pairs), variance, partial_auc, bound)


def sorted_blocks(pos: NDArray[Any], neg: NDArray[Any]) -> Iterator[Counts]:
    """Return the blocks of two sorted (ascending) classes, in pieces.

    A block is a distinct score of the smaller class, or the scores of the larger class between two
    of those. Memory is that of one piece.
    """
    swap = pos.shape[0] > neg.shape[0]
    minor, major = (neg, pos) if swap else (pos, neg)
    start = bottom = 0
    while start < minor.shape[0]:
        last = min(start + _BLOCKS_AT_ONCE // 2, minor.shape[0]) - 1
        stop = start + int(np.searchsorted(minor[start:], minor[last], "right"))  # after its ties
        top = bottom + int(np.searchsorted(major[bottom:], minor[last], "right"))
        values, sizes = distinct(minor[start:stop])
        counts = bottom + counts_at(major[bottom:top], values)
        top = top if stop < minor.shape[0] else major.shape[0]
        blocks = gap_blocks(sizes, counts, bottom, top)
        yield blocks[::-1] if swap else blocks
        start, bottom = stop, top


def distinct(ascending: NDArray[Any]) -> tuple[NDArray[Any], Counts]:
    """Return the distinct values of a sorted array and how often each occurs."""
    is_first = np.append(True, ascending[1:] != ascending[:-1])
    starts = np.flatnonzero(is_first[: ascending.shape[0]])
    return ascending[starts], np.diff(starts, append=ascending.shape[0])


def counts_at(ascending: NDArray[Any], values: NDArray[Any]) -> Counts:
    """Return (2, k): how many of the sorted rows lie below each value, and how many up to it.

    `values` are distinct and sorted as well.
    """
    below = np.searchsorted(ascending, values)
    up_to, inside = below.copy(), np.flatnonzero(below < ascending.shape[0])
    tied = inside[ascending[below[inside]] == values[inside]]
    up_to[tied] = np.searchsorted(ascending, values[tied], "right")
    return np.stack([below, up_to])


def gap_blocks(sizes: Counts, counts: Counts, bottom: int, top: int) -> Counts:
    """Return (2, 2 k + 1): blocks of the smaller and the larger class.

    The smaller class has k distinct scores, with `sizes` rows each; `counts` (2, k) are the rows of
    the larger class below each of them, and up to it. Those from `bottom` to `top` are in blocks.
    """
    minor = np.zeros(2 * sizes.shape[0] + 1, np.int64)
    minor[1::2] = sizes
    return np.stack([minor, np.diff(counts.T.ravel(), prepend=bottom, append=top)])


def _pieces(blocks: Iterable[Counts]) -> Iterator[Counts]:
    for part in blocks:
        for start in range(0, part.shape[1], _BLOCKS_AT_ONCE):
            yield part[:, start : start + _BLOCKS_AT_ONCE]


def _dot(x: Counts, y: Counts) -> int:
    """Return the exact sum of products of non-negative integers."""
    largest = int(y.max(initial=0))
    if int(x.sum()) * largest < 1 << 63:
        return int(x @ y)
    half = largest.bit_length() // 2
    return (_dot(x, y >> half) << half) + _dot(x, y & ((1 << half) - 1))


def _dot_squares(x: Counts, y: Counts) -> int:
    """Return the exact sum of x y^2, for y below 2^62."""
    if int(y.max(initial=0)) < 1 << 31:
        return _dot(x, y * y)
    high, low = y >> 31, y & ((1 << 31) - 1)
    return (_dot(x, high * high) << 62) + (_dot(x, high * low) << 32) + _dot(x, low * low)

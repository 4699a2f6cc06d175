"""AUC, partial AUC and DeLong's variance from counts of rows, in exact integers.

All rank-based metrics of unweighted rows depend on the scores through *blocks* only: the numbers of
positives and negatives with equal scores, or with scores between two others of one class, from the
highest scores to the lowest. The sums are integers, so their order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from everypair.metrics.tie_blocks import Floats, clipped_areas

Counts: TypeAlias = NDArray[np.int64]

_BLOCKS_AT_ONCE = 1 << 20  # see _dot
_LIMB = 21  # bits
_SEARCHED_TOGETHER = 1024  # scores that are looked up in one part of the rows


class RankSums:
    """Sums over blocks of rows, given from the highest scores to the lowest.

    Parameters
    ----------
    n_pos, n_neg : int
        Rows of each class in all blocks together; at least 1.
    rates : (float, float), optional
        `max_fpr` and `min_tpr` of `partial_auc`. By default it is not computed.
    """

    def __init__(self, n_pos: int, n_neg: int, rates: tuple[float, float] | None = None) -> None:
        self.n_pos, self.n_neg, self.rates = n_pos, n_neg, rates
        self._above = [0, 0]
        # Of the positives, then of the negatives: the sum and the sum of squares over the rows of
        # twice the number of rows of the other class that score higher, ties half.
        self._sums = [0, 0]
        self._squares = [0, 0]
        self._tied = 0
        self._areas: list[float] = []
        self._uncertain: list[float] = []

    def add(self, pos: Counts, neg: Counts) -> None:
        """Add blocks with these numbers of positives and negatives, (k,) each."""
        for start in range(0, pos.shape[0], _BLOCKS_AT_ONCE):
            stop = start + _BLOCKS_AT_ONCE
            self._add(np.stack([pos[start:stop], neg[start:stop]]))

    def _add(self, counts: Counts) -> None:
        up_to = np.cumsum(counts, axis=1) + np.array(self._above)[:, None]
        above = up_to - counts
        twice = above + up_to
        for i in range(2):
            self._sums[i] += _dot(counts[i], twice[1 - i])
            self._squares[i] += _dot_squares(counts[i], twice[1 - i])
        self._tied += _dot(counts[0], counts[1])
        if self.rates is not None:
            self._add_areas(above.astype(np.float64), up_to.astype(np.float64), *self.rates)
        self._above = up_to[:, -1].tolist()

    def _add_areas(self, above: Floats, up_to: Floats, widest: float, lowest: float) -> None:
        total = np.array([[self.n_pos], [self.n_neg]], np.float64)
        self._areas.append(float(clipped_areas(above, up_to, total, widest, lowest).sum()))
        # If the rows of a block are not tied, the curve may take any path inside its rectangle.
        width = np.clip(widest * self.n_neg, above[1], up_to[1]) - above[1]
        share = np.where(width < up_to[1] - above[1], 1.0, 0.5)
        self._uncertain.append(float((share * width * (up_to[0] - above[0])).sum()))

    @property
    def auc(self) -> float:
        """The AUC; rows in one block count as ties."""
        pairs = 2 * self.n_pos * self.n_neg
        return (pairs - self._sums[0]) / pairs

    @property
    def auc_bound(self) -> float:
        """The largest error of the AUC if the rows of a block are in any order."""
        return self._tied / (2 * self.n_pos * self.n_neg)

    @property
    def partial_auc(self) -> float | None:
        """The partial AUC; None if no rate was given."""
        return math.fsum(self._areas) / (self.n_pos * self.n_neg) if self.rates else None

    @property
    def partial_auc_bound(self) -> float | None:
        """The largest error of the partial AUC if the rows of a block are in any order."""
        return math.fsum(self._uncertain) / (self.n_pos * self.n_neg) if self.rates else None

    @property
    def variance(self) -> float | None:
        """DeLong's variance of the AUC; None if a class has fewer than two rows."""
        sizes = (self.n_pos, self.n_neg)
        if min(sizes) < 2:
            return None
        parts = (
            Fraction(n * squares - total * total, 4 * other * other * n * n * (n - 1))
            for n, other, total, squares in zip(
                sizes, sizes[::-1], self._sums, self._squares, strict=True
            )
        )
        return float(sum(parts))


def sorted_blocks(pos: NDArray[Any], neg: NDArray[Any]) -> Iterator[tuple[Counts, Counts]]:
    """Return the blocks of two sorted (ascending) classes, in pieces.

    A block is a distinct score of the smaller class, or the scores of the larger class between two
    of those. Memory is that of one piece.
    """
    swap = pos.shape[0] > neg.shape[0]
    minor, major = (neg, pos) if swap else (pos, neg)
    stop, top = minor.shape[0], major.shape[0]
    while stop > 0:
        start = max(0, stop - _BLOCKS_AT_ONCE // 2)
        start = int(np.searchsorted(minor, minor[start]))  # do not cut through ties
        values, sizes = distinct(minor[start:stop])
        below, up_to = counts_at(major[:top], values)
        pair = gap_blocks(sizes, below, up_to, top)
        yield pair[::-1] if swap else pair
        stop, top = start, int(below[0])
    last = (np.zeros(1, np.int64), np.array([top], np.int64))
    yield last[::-1] if swap else last


def distinct(ascending: NDArray[Any]) -> tuple[NDArray[Any], Counts]:
    """Return the distinct values of a sorted array and how often each occurs."""
    is_first = np.append(True, ascending[1:] != ascending[:-1])
    starts = np.flatnonzero(is_first[: ascending.shape[0]])
    return ascending[starts], np.diff(starts, append=ascending.shape[0]).astype(np.int64)


def counts_at(ascending: NDArray[Any], values: NDArray[Any]) -> tuple[Counts, Counts]:
    """Return how many of the sorted rows lie below each value, and how many do not exceed it.

    `values` are distinct and sorted as well.
    """
    below = _positions(ascending, values, "left")
    up_to, inside = below.copy(), np.flatnonzero(below < ascending.shape[0])
    tied = inside[ascending[below[inside]] == values[inside]]
    up_to[tied] = _positions(ascending, values[tied], "right")
    return below, up_to


def _positions(
    ascending: NDArray[Any], values: NDArray[Any], side: Literal["left", "right"]
) -> Counts:
    """Do what `numpy.searchsorted` does, for sorted values, in parts that fit in the cache."""
    positions = np.empty(values.shape[0], np.int64)
    low = 0
    for start in range(0, values.shape[0], _SEARCHED_TOGETHER):
        stop = start + _SEARCHED_TOGETHER
        high = int(np.searchsorted(ascending, values[start:stop][-1], side="right"))
        part = np.searchsorted(ascending[low:high], values[start:stop], side)
        positions[start:stop] = low + part
        low = high
    return positions


def gap_blocks(sizes: Counts, below: Counts, up_to: Counts, top: int) -> tuple[Counts, Counts]:
    """Return descending blocks of the smaller and the larger class.

    Parameters
    ----------
    sizes : (k,)
        Rows of the smaller class at each of its distinct scores, ascending.
    below, up_to : (k,)
        Rows of the larger class below each of these scores, without and with ties.
    top : int
        Rows of the larger class that are counted. Those below all of the scores form no block.
    """
    minor, major = np.zeros((2, 2 * sizes.shape[0]), np.int64)
    minor[1::2] = sizes[::-1]
    major[::2] = (np.append(below[1:], top) - up_to)[::-1]
    major[1::2] = (up_to - below)[::-1]
    return minor, major


def _limbs(x: Counts) -> Iterator[tuple[int, Counts]]:
    shift = 0
    while x.any():
        yield shift, x & ((1 << _LIMB) - 1)
        x = x >> _LIMB
        shift += _LIMB


def _dot(x: Counts, y: Counts) -> int:
    """Return the exact sum of products of non-negative integers, at most 2^20 of them.

    Products of limbs are below 2^42, so that their sum does not overflow.
    """
    if not x.size or int(x.sum()) * int(y.max()) < 1 << 63:
        return int(x @ y)
    limbs = list(_limbs(y))
    return sum(int(a @ b) << (i + j) for i, a in _limbs(x) for j, b in limbs)


def _dot_squares(x: Counts, y: Counts) -> int:
    """Return the exact sum of x y^2, for x below 2^41."""
    if not x.size or int(x.sum()) * int(y.max()) ** 2 < 1 << 63:
        return int((x * y) @ y)
    if int(x.sum()) < 1 << 31 and int(y.max()) < 1 << 31:
        squares = y * y
        return (int(x @ (squares >> 32)) << 32) + int(x @ (squares & (2**32 - 1)))
    return sum(_dot(x * limb, y) << shift for shift, limb in _limbs(y))

"""Counts and moments of scores in buckets: constant memory, and errors with a bound.

A bucket holds the float32 scores whose first bits are equal. Inside a bucket a score is
``base + k * step`` with a whole number k, so the sums of 1, k and k^2 over its rows are integers:
they can be added in any order, and nothing is rounded.

Errors. Rows in different buckets are in the right order, so the AUC is off by half the pairs inside
buckets at most. A loss is computed at the mean of each bucket. For a pair of buckets the shortfall
t has the variance v of both, and for a surrogate with c <= phi'' <= C between its knots,

    c v / 2  <=  E phi(t) - phi(E t)  <=  C v / 2 + (jumps of phi' at knots) sqrt(v) / 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches
from everypair.kernel import choose, native
from everypair.losses import pair_loss
from everypair.streaming.checkpoint import require
from everypair.streaming.exchange import Workers
from everypair.streaming.rank_sums import rank_metrics
from everypair.streaming.results import Options, StreamResult, of_ranks
from everypair.surrogates import Floats, Surrogate

_BITS = range(16, 23)
# The places of the finite scores in the order of all float32 patterns.
_FINITE = (0x00800000, 0xFF7FFFFF)
_SIGN = np.uint32(1 << 31)
_HALF_ULP = 2.0**-24  # the largest relative error of rounding to float32
_SLACK = 1e-12  # the largest relative error of this computation itself

_Rows = tuple[NDArray[np.bool_], Floats, Floats, Floats]


class Buckets:
    """A table of integers (2 classes, 2**bits buckets, 3 moments); negatives are class 0."""

    def __init__(self, bits: int) -> None:
        if bits not in _BITS:
            raise ValueError(f"bits must be between 16 and 22; got {bits!r}. 18 is usual.")
        self.bits = bits
        self.table = np.zeros((2, 1 << bits, 3), np.int64)
        self.is_rounded = False  # whether a score was rounded to float32

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of positives and negatives."""
        negatives, positives = self.table[..., 0].sum(axis=1).tolist()
        return positives, negatives

    def add(self, scores: ArrayLike, labels: Any, weights: Any, groups: Any) -> None:
        """Check rows and count them; there are no weights and groups."""
        batch = batches.batch_from(scores, labels, weights)
        if weights is not None or groups is not None:
            raise ValueError(
                "weights and groups must be left out for mode='bounded', which counts rows. Use "
                "mode='exact'."
            )
        for is_positive, of_class in zip((1, 0), choose.split_classes(batch), strict=True):
            self._count(of_class, self.table[is_positive])

    def _count(self, scores: NDArray[Any], table: NDArray[np.int64]) -> None:
        """Add scores of one class to its part of the table."""
        with np.errstate(over="ignore"):
            narrow = scores.astype(np.float32) + np.float32(0.0)  # -0.0 becomes 0.0
        if not np.isfinite(narrow).all():
            raise ValueError(
                "scores must be in the range of float32 for mode='bounded'; got "
                f"{scores[np.argmin(np.isfinite(narrow))].item()!r}. Use mode='exact'."
            )
        self.is_rounded |= scores.dtype != np.float32 and bool((narrow != scores).any())
        if choose.uses_native():
            native.count(narrow, self.bits, table)
            return
        pattern = narrow.view(np.uint32)
        ordered = np.where(pattern & _SIGN, ~pattern, pattern | _SIGN)
        shift = np.uint32(32 - self.bits)
        bucket = (ordered >> shift).astype(np.intp)
        k = (ordered & ((np.uint32(1) << shift) - np.uint32(1))).astype(np.int64)
        np.add.at(table, bucket, np.stack([np.ones_like(k), k, k * k], axis=-1))

    def merge(self, other: Buckets) -> None:
        """Add the counts of another table of the same size."""
        if self.bits != other.bits:
            raise ValueError(
                f"bits must be equal to be merged; got {self.bits} and {other.bits}. Make all "
                "accumulators with the same bits."
            )
        self.table += other.table
        self.is_rounded |= other.is_rounded

    def over(self, workers: Workers) -> Buckets:
        """Return the sum of the tables of all workers."""
        total = Buckets(self.bits)
        total.table = workers.sum(self.table)
        total.is_rounded = bool(workers.facts(self.is_rounded).any())
        return total

    def swap_classes(self) -> None:
        """Exchange the positives and the negatives."""
        self.table = self.table[::-1].copy()

    def result(self, options: Options) -> StreamResult:
        """Compute the losses and metrics, with bounds of their errors."""
        used, table = self.state()[1].values()
        counts = table[..., 0]
        capacity, largest = _max_rows(self.bits), counts.max(initial=0)
        if largest > capacity:
            raise OverflowError(
                f"a bucket must hold at most {capacity} rows of a class; one holds {largest}. Use "
                "more bits."
            )
        n_neg, n_pos = counts.sum(axis=1).tolist()
        ranks = rank_metrics([counts[::-1]], (n_pos, n_neg), options.rates)
        rows, losses, bounds = self._rows(used, table), {}, {}
        for surrogate in options.surrogates:
            value, bound = self._loss(rows, surrogate, options.margin)
            losses[surrogate.name], bounds[surrogate.name] = value, bound
        return of_ranks(ranks, (n_pos, n_neg), options, losses, bounds)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the buckets that are used, as values that JSON can hold and arrays."""
        used = np.flatnonzero(self.table[0, :, 0] | self.table[1, :, 0])
        plain = {"bits": self.bits, "is_rounded": bool(self.is_rounded)}
        return plain, {"used": used, "table": self.table[:, used]}

    def restore(self, plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Check what `state` returned, and fill an empty table with it."""
        used, table, shift = arrays["used"], arrays["table"], 32 - self.bits
        require("used buckets", used, (np.int64,), (used.size,), 0, (1 << self.bits) - 1)
        if len(arrays) > 2 or not (np.diff(used) > 0).all():
            raise ValueError("its buckets are not in order, or it has other arrays")
        # With k from 0 to `largest`, the sums of 1, k and k^2 over the rows of a bucket.
        largest = (1 << shift) - 1
        is_finite = (used >= _FINITE[0] >> shift) & (used <= _FINITE[1] >> shift)
        count, total, _ = moments = np.moveaxis(table, -1, 0)
        low = 0, 0, total
        high = is_finite * _max_rows(self.bits), count * largest, total * largest
        for moment, *limits in zip(moments, low, high, strict=True):
            require("moments", moment, (np.int64,), (2, used.size), *limits)
        self.table[:, used] = table
        self.is_rounded = bool(plain["is_rounded"])

    def _loss(self, rows: _Rows, surrogate: Surrogate, margin: float | None) -> tuple[float, float]:
        """Return a loss and its largest error."""
        jumps = [abs(term.b0) > 0.0 for term in surrogate.at_knots(0.0) if term.truncated]
        if not surrogate.is_polynomial or any(jumps):
            raise ValueError(
                "surrogates must be made of polynomials and must not jump for mode='bounded' (the "
                f"square and the hinges are); got {surrogate.name!r}. Use mode='exact'."
            )
        lead = surrogate.default_margin if margin is None else margin
        labels, scores, counts, variances = rows
        value = pair_loss(scores, labels, weights=counts, surrogate=surrogate, margin=margin)

        classes = slice(np.count_nonzero(~labels)), slice(np.count_nonzero(~labels), None)

        def sum_of_means(x: Floats) -> float:
            """Return the sum over both classes of the mean over their rows."""
            return sum(float(np.average(x[part], weights=counts[part])) for part in classes)

        terms = sorted(surrogate.at_knots(lead), key=lambda term: -term.shift)
        knots = [term for term in terms if term.truncated]
        everywhere = sum(term.b2 for term in terms if not term.truncated)
        curvatures = 2.0 * np.cumsum([everywhere, *(term.b2 for term in knots)])
        low, high = float(curvatures.min()), float(curvatures.max())
        kinks = sum(abs(term.b1) for term in knots)
        variance, spread = sum_of_means(variances), sum_of_means(np.sqrt(variances))
        bound = (high - low) / 4.0 * variance + kinks * spread / 2.0
        value += (high + low) / 4.0 * variance
        if self.is_rounded:
            ends = [lead + np.ptp(scores), lead - np.ptp(scores)]
            max_slope = float(np.abs(surrogate.slope(ends)).max())
            bound += max_slope * _HALF_ULP * (sum_of_means(np.abs(scores)) + 2.0**-125) * 1.01
        return value, bound * (1.0 + _SLACK) + abs(value) * _SLACK

    def _rows(self, used: NDArray[np.int64], table: NDArray[np.int64]) -> _Rows:
        """Return whether used buckets are positive, their mean scores, counts and variances."""
        labels, rows = np.nonzero(table[..., 0])
        counts, first, second = table[labels, rows].T.astype(np.float64)
        start = used[rows].astype(np.uint32) << np.uint32(32 - self.bits)
        base = _score(start).astype(np.float64)
        step = _score(start + np.uint32(1)).astype(np.float64) - base
        mean = first / counts
        variances = step**2 * np.maximum(second / counts - mean**2, 0.0)
        return labels > 0, base + step * mean, counts, variances


def _max_rows(bits: int) -> int:
    """Return how many rows of a class a bucket holds at most, so that its moments are exact."""
    return 1 << (63 - 2 * (32 - bits))


def _score(ordered: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return the float32 score with this place in the order of all scores."""
    return np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered).view(np.float32)

"""Exact results from two passes over the rows, with the smaller class in memory.

The first pass collects one class and sorts it. The second pass compares each row of the other class
with it: how many lie below each of its distinct scores, and how many tie. These counts and the sums
of losses can be added, so that many machines can share the second pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches
from everypair.kernel import choose
from everypair.losses import pair_loss
from everypair.streaming.accumulator import PairAccumulator
from everypair.streaming.exchange import Workers
from everypair.streaming.rank_sums import counts_at, distinct, gap_blocks, rank_metrics
from everypair.streaming.results import Options, StreamResult, of_ranks
from everypair.streaming.score_buckets import Buckets
from everypair.streaming.stream_rows import Column

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from everypair.streaming.results import ResultOptions

Chunks = Iterable[tuple[ArrayLike, ArrayLike]]

_LEAST_ROWS = 1 << 20  # of the larger class that are compared at once, if memory allows


@dataclass(frozen=True)
class Totals:
    """Sums over rows of the larger class; they can be added.

    Attributes
    ----------
    n_rows : int
    counts : (2, k) int64
        Rows below each distinct score of the smaller class, and rows up to it.
    loss_sums : list of lists of float
        For each surrogate, sums over parts of the pairs.
    """

    n_rows: int
    counts: NDArray[np.int64]
    loss_sums: list[list[float]]

    def __add__(self, other: Totals) -> Totals:
        sums = [a + b for a, b in zip(self.loss_sums, other.loss_sums, strict=True)]
        return Totals(self.n_rows + other.n_rows, self.counts + other.counts, sums)


class MajorityCounts:
    """The second pass: rows of one class, counted between the scores of the other.

    Parameters
    ----------
    minority : (m,) floating
        All scores of the smaller class, in any order.
    positive : bool
        Whether the smaller class is the positive one.
    **options
        Those of `PairAccumulator.result`.

    Examples
    --------
    >>> counts = MajorityCounts(np.array([0.5, 2.0]), positive=True)
    >>> counts.add(np.array([0.0]))
    >>> counts.add(np.array([1.0]))
    >>> counts.result().auc
    0.75
    """

    def __init__(
        self, minority: NDArray[Any], *, positive: bool, **options: Unpack[ResultOptions]
    ) -> None:
        self.positive, self.options = positive, Options(**options)
        self.minority = np.sort(minority)
        self.values, self.sizes = distinct(self.minority)
        counts = np.zeros((2, self.values.shape[0]), np.int64)
        self.sums = Totals(0, counts, [[] for _ in self.options.surrogates])
        self._waiting = Column(np.float32)

    def add(self, majority: NDArray[Any]) -> None:
        """Count rows of the larger class: finite scores, (n,)."""
        self._waiting.extend(majority)
        if self._waiting.size >= max(_LEAST_ROWS, self.minority.shape[0]):
            self.totals()

    def merge(self, other: MajorityCounts) -> None:
        """Add the counts of another part of the larger class; the smaller class must be equal."""
        if not np.array_equal(self.minority, other.minority) or self.positive != other.positive:
            raise ValueError(
                "other must have been made with the same smaller class; it was not. Collect the "
                "smaller class from all parts first."
            )
        self.sums = self.totals() + other.totals()

    def totals(self) -> Totals:
        """Return the sums over all rows, which another machine with the same class can add."""
        rows, self._waiting = self._waiting.values(), Column(np.float32)
        if rows.shape[0]:
            rows.sort()
            # In float64, because sums over different parts are to agree to 1e-12.
            scores = np.concatenate([self.minority, rows], dtype=np.float64)
            labels = (np.arange(scores.shape[0]) < self.minority.shape[0]) == self.positive
            margin = self.options.margin
            losses = [
                pair_loss(scores, labels, surrogate=surrogate, margin=margin, reduction="sum")
                for surrogate in self.options.surrogates
            ]
            counts = counts_at(rows, self.values)
            self.sums += Totals(rows.shape[0], counts, [[loss] for loss in losses])
        return self.sums

    def result(self) -> StreamResult:
        """Return the losses and metrics of all rows."""
        totals, options = self.totals(), self.options
        sizes = self.minority.shape[0], totals.n_rows
        blocks = gap_blocks(self.sizes, totals.counts, 0, totals.n_rows)
        if not self.positive:
            blocks, sizes = blocks[::-1], sizes[::-1]
        ranks = rank_metrics([blocks], sizes, options.rates)
        losses = {
            surrogate.name: math.fsum(parts) / (sizes[0] * sizes[1])
            for surrogate, parts in zip(options.surrogates, totals.loss_sums, strict=True)
        }
        return of_ranks(ranks, sizes, options, losses)


def evaluate_twice(
    open_chunks: Callable[[], Chunks],
    *,
    rare: Literal["positive", "negative"] = "positive",
    **options: Unpack[ResultOptions],
) -> StreamResult:
    """Compute the exact losses and metrics of a source that can be read twice.

    Memory is that of the rows of one class and of one chunk (at least a million rows).

    Parameters
    ----------
    open_chunks : callable
        Called twice without arguments; returns an iterable of (scores, labels), the same each time.
    rare : {"positive", "negative"}
        The class to keep in memory. The result does not depend on it.
    **options
        Those of `PairAccumulator.result`: `surrogates`, `margin`, `max_fpr`, `min_tpr` and
        `confidence`.

    Returns
    -------
    StreamResult

    Raises
    ------
    ValueError
        If a class has no rows, the two passes differ, or an argument is not as described.

    Examples
    --------
    >>> chunks = [([0.5, 0.0], [1, 0]), ([2.0, 1.0], [1, 0])]
    >>> evaluate_twice(lambda: chunks).auc
    0.75
    """
    if rare not in ("positive", "negative"):
        raise ValueError(f"rare must be 'positive' or 'negative'; got {rare!r}.")
    is_positive, rare_scores, n_other = rare == "positive", Column(np.float32), 0
    for chunk in open_chunks():
        of_rare, of_other = split_chunk(*chunk, positive=is_positive)
        rare_scores.extend(of_rare)
        n_other += of_other.shape[0]
    counts, n_rare = MajorityCounts(rare_scores.values(), positive=is_positive, **options), 0
    for chunk in open_chunks():
        of_rare, of_other = split_chunk(*chunk, positive=is_positive)
        counts.add(of_other)
        n_rare += of_rare.shape[0]
    first, second = (rare_scores.size, n_other), (n_rare, counts.totals().n_rows)
    if first != second:
        raise ValueError(
            "open_chunks must return the same rows each time; got (rare, other) rows "
            f"{first} and then {second}."
        )
    return counts.result()


def split_chunk(
    scores: ArrayLike, labels: ArrayLike, *, positive: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check rows, if there are any; return the scores of one class and those of the other."""
    if not (np.size(scores) or np.size(labels)):
        return np.empty(0, np.float32), np.empty(0, np.float32)
    parts = choose.split_classes(batches.batch_from(scores, labels))
    return parts if positive else parts[::-1]


def evaluate_across(
    rows: PairAccumulator,
    allreduce: Callable[[NDArray[Any]], NDArray[Any]],
    *,
    rank: int,
    world_size: int,
    **options: Unpack[ResultOptions],
) -> StreamResult:
    """Return the losses and metrics of the rows of all workers; each gets the same result.

    Every worker must call this with the same options. In the mode "exact", O(min(n_pos, n_neg))
    numbers are sent, where n counts the rows of all workers; in the mode "bounded", the table of
    buckets is.

    Parameters
    ----------
    rows : PairAccumulator
        The rows of this worker, without weights and groups; there may be none.
    allreduce : callable
        Maps an int64 or float64 array to the element-wise sum over all workers.
    rank, world_size : int
        The number of this worker, from 0, and the number of workers.
    **options
        Those of `PairAccumulator.result`: `surrogates`, `margin`, `max_fpr`, `min_tpr` and
        `confidence`.

    Raises
    ------
    ValueError
        On all workers, if there is no pair or if a worker has weights, groups or other targets.

    Examples
    --------
    >>> rows = PairAccumulator()
    >>> rows.add([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
    >>> evaluate_across(rows, lambda array: array, rank=0, world_size=1).auc
    0.75
    """
    workers, store, checked = Workers(rank, world_size, allreduce), rows.store, Options(**options)
    bits = store.bits if isinstance(store, Buckets) else 0
    has_columns = not isinstance(store, Buckets) and any(len(table) > 1 for table in store.tables)
    facts = workers.facts(rows.n_pos, rows.n_neg, bits, has_columns)
    if facts[3].any():
        raise ValueError(
            "rows must have no weights, no groups and no ordered or survival targets; worker "
            f"{int(np.argmax(facts[3]))} has them. Merge the accumulators instead."
        )
    if (facts[2] != bits).any():
        raise ValueError(
            f"mode and bits must be equal on all workers; got bits {facts[2].tolist()}, where 0 "
            "is the mode 'exact'. Make all accumulators with the same arguments."
        )
    if isinstance(store, Buckets):
        return store.over(workers).result(checked)
    scores, labels = rows.rows().scores.astype(np.float64), rows.rows().labels
    positive, minority = workers.smaller_class(scores[None], labels, facts[:2])
    counts = MajorityCounts(minority[0], positive=positive, **options)
    counts.add(scores[labels != positive])
    totals = counts.totals()
    sums = np.array([[math.fsum(parts)] for parts in totals.loss_sums]).reshape(-1, 1)
    loss_sums = workers.gather(sums, np.ones(world_size, np.int64)).tolist()
    n_rows = int(facts[1 if positive else 0].sum())
    counts.sums = Totals(n_rows, workers.sum(totals.counts), loss_sums)
    return counts.result()

"""Exact results from two passes over the rows, with the smaller class in memory.

The first pass collects one class and sorts it. The second pass compares each row of the other class
with it: how many lie below each of its distinct scores, and how many tie. These counts and the sums
of losses can be added, so that many machines can share the second pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches, binary
from everypair.losses import pair_loss
from everypair.streaming._rank_sums import RankSums, counts_at, distinct, gap_blocks
from everypair.streaming._result import Options, StreamResult, Surrogates, from_ranks, options
from everypair.streaming._rows import Column

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
        All scores of the smaller class, in any order; at least one.
    positive : bool
        Whether the smaller class is the positive one.
    surrogates, margin
        The losses to sum.

    Examples
    --------
    >>> counts = MajorityCounts(np.array([0.5, 2.0]), positive=True)
    >>> counts.add(np.array([0.0]))
    >>> counts.add(np.array([1.0]))
    >>> counts.result().auc
    0.75
    """

    def __init__(
        self,
        minority: NDArray[Any],
        *,
        positive: bool,
        surrogates: Surrogates = "squared_hinge",
        margin: float | None = None,
    ) -> None:
        self.positive = positive
        self.options = options(surrogates, margin)
        self.minority = np.sort(minority)
        self.values, self.own = distinct(self.minority)
        # Rows below each value, and rows up to each value.
        self.counts = np.zeros((2, self.values.shape[0]), np.int64)
        self.n_rows = 0
        self.loss_sums: list[list[float]] = [[] for _ in self.options.surrogates]
        self._waiting = Column(np.float32)

    def add(self, majority: NDArray[Any]) -> None:
        """Count rows of the larger class: finite scores, (n,)."""
        self._waiting.extend(majority)
        self.n_rows += majority.shape[0]
        if self._waiting.size >= max(_LEAST_ROWS, self.minority.shape[0]):
            self.flush()

    def merge(self, other: MajorityCounts) -> None:
        """Add the counts of another part of the larger class; the smaller class must be equal."""
        if not np.array_equal(self.minority, other.minority) or self.positive != other.positive:
            raise ValueError(
                "other must have been made with the same smaller class; it was not. Collect the "
                "smaller class from all parts first."
            )
        self.add_totals(other.totals())

    def totals(self) -> Totals:
        """Return what another machine needs of this object, which has the same smaller class."""
        self.flush()
        return Totals(self.n_rows, self.counts, self.loss_sums)

    def add_totals(self, other: Totals) -> None:
        """Add the totals of another part of the larger class."""
        mine = self.totals() + other
        self.n_rows, self.counts, self.loss_sums = mine.n_rows, mine.counts, mine.loss_sums

    def flush(self) -> None:
        """Compare the rows that wait with the smaller class."""
        if not self._waiting.size:
            return
        rows = np.empty(self._waiting.size, self._waiting.dtype)
        self._waiting.move_to(rows)
        self._waiting = Column(np.float32)
        rows.sort()
        self.counts += counts_at(rows, self.values)
        if not self.options.surrogates:
            return
        # In float64, because sums over different parts are to agree to 1e-12.
        scores = np.concatenate([self.minority, rows]).astype(np.float64)
        labels = np.full(scores.shape[0], not self.positive)
        labels[: self.minority.shape[0]] = self.positive
        for surrogate, sums in zip(self.options.surrogates, self.loss_sums, strict=True):
            sums.append(
                pair_loss(
                    scores, labels, surrogate=surrogate, margin=self.options.margin, reduction="sum"
                )
            )

    def result(
        self,
        *,
        max_fpr: float | None = None,
        min_tpr: float | None = None,
        confidence: float = 0.95,
    ) -> StreamResult:
        """Return the losses and metrics of all rows; the parameters of `PairAccumulator.result`."""
        self.flush()
        n_rows, n_minor = self.n_rows, self.minority.shape[0]
        if n_rows == 0:
            binary.raise_no_pairs(np.full(n_minor, self.positive), None, "result")
        n_pos, n_neg = (n_minor, n_rows) if self.positive else (n_rows, n_minor)
        sums = RankSums(n_pos, n_neg, max_fpr, min_tpr)
        below, up_to = self.counts
        minor, major = gap_blocks(self.own, below, up_to, n_rows)
        minor, major = np.append(minor, 0), np.append(major, below[0])
        sums.add(*((minor, major) if self.positive else (major, minor)))
        losses = {
            surrogate.name: math.fsum(parts) / (n_pos * n_neg)
            for surrogate, parts in zip(self.options.surrogates, self.loss_sums, strict=True)
        }
        chosen = self.options
        wanted = Options(chosen.surrogates, chosen.margin, max_fpr, min_tpr, confidence)
        return from_ranks(sums, wanted, losses)


def evaluate_twice(
    open_chunks: Callable[[], Chunks],
    *,
    surrogates: Surrogates = "squared_hinge",
    margin: float | None = None,
    max_fpr: float | None = None,
    min_tpr: float | None = None,
    confidence: float = 0.95,
    rare: Literal["positive", "negative"] = "positive",
) -> StreamResult:
    """Compute the exact losses and metrics of a source that can be read twice.

    Memory is that of the rows of one class and of one chunk (at least a million rows).

    Parameters
    ----------
    open_chunks : callable
        Called twice without arguments; returns an iterable of (scores, labels), the same each time.
    surrogates, margin, max_fpr, min_tpr, confidence
        Those of `PairAccumulator.result`.
    rare : {"positive", "negative"}
        The class to keep in memory. The result does not depend on it.

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
    is_positive, kept, n_other = rare == "positive", Column(np.float32), 0
    for scores, is_rare in _split(open_chunks(), is_positive):
        kept.extend(scores[is_rare])
        n_other += int(scores.shape[0] - is_rare.sum())
    if min(kept.size, n_other) == 0:
        labels = np.arange(kept.size + n_other) < (kept.size if is_positive else n_other)
        binary.raise_no_pairs(labels, None, "evaluate_twice")
    minority = np.concatenate(list(kept.blocks()))
    counts = MajorityCounts(minority, positive=is_positive, surrogates=surrogates, margin=margin)
    n_rare = 0
    for scores, is_rare in _split(open_chunks(), is_positive):
        counts.add(scores[~is_rare])
        n_rare += int(is_rare.sum())
    if (n_rare, counts.n_rows) != (minority.shape[0], n_other):
        raise ValueError(
            "open_chunks must return the same rows each time; got (rare, other) rows "
            f"{(minority.shape[0], n_other)} and then "
            f"{(n_rare, counts.n_rows)}."
        )
    return counts.result(max_fpr=max_fpr, min_tpr=min_tpr, confidence=confidence)


def _split(chunks: Chunks, positive: bool) -> Iterable[tuple[NDArray[Any], NDArray[np.bool_]]]:
    """Check each chunk; return its scores and which rows are of the class."""
    for scores, labels in chunks:
        batch = batches.batch_from(scores, labels)
        yield batch.scores, batches.positives(batch) == positive

"""Exact results of rows that lie on many machines, over any library's sum of arrays.

Only the smaller class travels: its scores, then two counts for each of its distinct scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.streaming._accumulator import PairAccumulator
from everypair.streaming._result import StreamResult, Surrogates, options
from everypair.streaming._two_passes import MajorityCounts


def evaluate_across(
    rows: PairAccumulator,
    allreduce: Callable[[NDArray[Any]], NDArray[Any]],
    *,
    rank: int,
    world_size: int,
    surrogates: Surrogates = "squared_hinge",
    margin: float | None = None,
    max_fpr: float | None = None,
    min_tpr: float | None = None,
    confidence: float = 0.95,
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
    surrogates, margin, max_fpr, min_tpr, confidence
        Those of `PairAccumulator.result`.

    Raises
    ------
    ValueError
        On all workers, if there is no pair or if a worker has weights or groups.

    Examples
    --------
    >>> rows = PairAccumulator()
    >>> rows.add([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
    >>> evaluate_across(rows, lambda array: array, rank=0, world_size=1).auc
    0.75
    """
    wanted = options(surrogates, margin, max_fpr, min_tpr, confidence)
    plain, arrays = rows.state()
    bits, has_columns = plain.get("bits", 0), len(arrays) > 2
    # One line for each worker: its sizes, its mode, and whether it has weights or groups.
    lines = np.zeros((world_size, 4), np.int64)
    lines[rank] = rows.n_pos, rows.n_neg, bits, has_columns
    lines = allreduce(lines)
    if lines[:, 3].any():
        raise ValueError(
            "rows must have no weights and no groups on any worker; worker "
            f"{int(np.argmax(lines[:, 3]))} has them. Merge the accumulators instead."
        )
    if (lines[:, 2] != bits).any():
        raise ValueError(
            f"mode and bits must be equal on all workers; got bits {lines[:, 2].tolist()}, where 0 "
            "is the mode 'exact'. Make all accumulators with the same arguments."
        )
    if bits:
        return _sum_of_tables(rows, allreduce).result(
            wanted.surrogates, margin=margin, max_fpr=max_fpr, min_tpr=min_tpr,
            confidence=confidence,
        )  # fmt: skip
    scores, labels = np.empty(0, np.float32), np.empty(0, bool)
    if rows.n_rows:
        scores, labels = rows.rows().scores, rows.rows().labels
    n_pos, n_neg = lines[:, :2].sum(axis=0).tolist()
    positive = n_pos <= n_neg
    sizes = lines[:, 0 if positive else 1]
    start = int(sizes[:rank].sum())
    minority = np.zeros(int(sizes.sum()))
    minority[start : start + int(sizes[rank])] = scores[labels == positive]
    # A sum with zeros is exact, so that this gathers the scores.
    minority = allreduce(minority) if minority.shape[0] else np.zeros(1)
    counts = MajorityCounts(
        minority, positive=positive, surrogates=wanted.surrogates, margin=margin
    )
    counts.add(scores[labels != positive].astype(np.float64))
    counts.flush()
    counts.counts = allreduce(counts.counts)
    counts.n_rows = max(n_pos, n_neg) if min(n_pos, n_neg) else 0
    if wanted.surrogates:
        sums = np.zeros((world_size, len(wanted.surrogates)))
        sums[rank] = [sum(parts) for parts in counts.loss_sums]
        counts.loss_sums = allreduce(sums).T.tolist()
    return counts.result(max_fpr=max_fpr, min_tpr=min_tpr, confidence=confidence)


def _sum_of_tables(
    rows: PairAccumulator, allreduce: Callable[[NDArray[Any]], NDArray[Any]]
) -> PairAccumulator:
    """Return an accumulator with the buckets of all workers."""
    plain, arrays = rows.state()
    bits = plain["bits"]
    table = np.zeros((2, 1 << bits, 3), np.int64)
    table[:, arrays["used"]] = arrays["table"]
    is_rounded = allreduce(np.array([plain["is_rounded"]], np.int64))
    state = {"mode": "bounded", "bits": bits, "is_rounded": bool(is_rounded[0])}
    return PairAccumulator.from_state(
        state, {"used": np.arange(1 << bits), "table": allreduce(table)}
    )

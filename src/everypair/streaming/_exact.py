"""Exact results of a stream whose rows are all kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.inputs import binary
from everypair.losses import pair_loss
from everypair.metrics import auc, delong, partial_auc
from everypair.streaming._rank_sums import RankSums, sorted_blocks
from everypair.streaming._result import Options, StreamResult, from_ranks
from everypair.streaming._rows import SortedRows, is_parallel


def result(rows: SortedRows, wanted: Options) -> StreamResult:
    """Compute the losses and metrics of sorted rows."""
    n_pos, n_neg = rows.n_pos, rows.scores.shape[0] - rows.n_pos
    if min(n_pos, n_neg) == 0:
        binary.raise_no_pairs(rows.labels, rows.weights, "result")
    if rows.weights is None and rows.groups is None:
        if not is_parallel(rows.scores.shape[0]):
            return from_ranks(_rank_sums(rows, wanted), wanted, _losses(rows, wanted))
        # Ranks need one thread. Losses use several, but not all of the time.
        with ThreadPoolExecutor(1) as pool:
            ranks = pool.submit(_rank_sums, rows, wanted)
            losses = _losses(rows, wanted)
            return from_ranks(ranks.result(), wanted, losses)
    labels, losses, part = rows.labels, _losses(rows, wanted), None
    given: dict[str, Any] = {"weights": rows.weights, "groups": rows.groups}
    if wanted.is_partial:
        rates = {"max_fpr": wanted.max_fpr, "min_tpr": wanted.min_tpr}
        given_rates: dict[str, Any] = {k: v for k, v in rates.items() if v is not None}
        part = partial_auc(rows.scores, labels, **given_rates, **given)
    variance, low, high = _interval(rows, wanted)
    return StreamResult(
        n_pos, n_neg, auc(rows.scores, labels, **given), 0.0, variance, low, high,
        part, None if part is None else 0.0, losses, dict.fromkeys(losses, 0.0),
    )  # fmt: skip


def _losses(rows: SortedRows, wanted: Options) -> dict[str, float]:
    given: dict[str, Any] = {"weights": rows.weights, "groups": rows.groups}
    return {
        surrogate.name: pair_loss(
            rows.scores, rows.labels, surrogate=surrogate, margin=wanted.margin, **given
        )
        for surrogate in wanted.surrogates
    }


def _rank_sums(rows: SortedRows, wanted: Options) -> RankSums:
    n_pos, n_neg = rows.n_pos, rows.scores.shape[0] - rows.n_pos
    sums = RankSums(n_pos, n_neg, wanted.max_fpr, wanted.min_tpr)
    for pos, neg in sorted_blocks(rows.scores[:n_pos], rows.scores[n_pos:]):
        sums.add(pos, neg)
    return sums


def result_by_group(
    rows: SortedRows, groups: NDArray[np.int64], keys: list[Any], wanted: Options
) -> dict[Any, StreamResult]:
    """Compute the result of each group that has both classes; `groups` are those of the rows."""
    found = {}
    numbers = np.arange(len(keys))
    bounds = [
        offset + np.searchsorted(part, [numbers, numbers + 1])
        for offset, part in (
            (0, groups[: rows.n_pos]),
            (rows.n_pos, groups[rows.n_pos :]),
        )
    ]
    for i, key in enumerate(keys):
        slices = [slice(*of_class[:, i].tolist()) for of_class in bounds]
        scores = np.concatenate([rows.scores[part] for part in slices])
        weights = _take(rows.weights, slices)
        n_pos = slices[0].stop - slices[0].start
        kept = np.ones(scores.shape[0], bool) if weights is None else weights > 0.0
        if kept[:n_pos].any() and kept[n_pos:].any():
            found[key] = result(SortedRows(scores, n_pos, weights), wanted)
    return found


def _take(column: NDArray[Any] | None, slices: list[slice]) -> NDArray[Any] | None:
    return None if column is None else np.concatenate([column[part] for part in slices])


def _interval(rows: SortedRows, wanted: Options) -> tuple[float | None, float | None, float | None]:
    labels = rows.labels
    kept = slice(None) if rows.weights is None else rows.weights > 0.0
    if rows.groups is not None or min(labels[kept].sum(), (~labels[kept]).sum()) < 2:
        return None, None, None
    found = delong(rows.scores, labels, weights=rows.weights, confidence=wanted.confidence)
    return found.variance, found.low, found.high

"""Collect the scores of one split during an epoch, and evaluate them at its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from everypair.inputs import batches
from everypair.kernel import choose
from everypair.kernel.request import Request
from everypair.metrics import delong
from everypair.metrics.tie_blocks import bounded
from everypair.surrogates import Surrogate
from everypair.torch._inputs import Labels, check_data, each_row, in_rows, survival_labels
from everypair.torch.training.divergence import Finding, check_scores


class Rows(NamedTuple):
    """The rows of all batches, in float64 on the CPU.

    Each has the shape (n,), or (tasks, n) with several tasks; `known` has False where the label of
    a task is missing.
    """

    known: Tensor
    scores: Tensor
    labels: Tensor
    weights: Tensor | None
    groups: Tensor | None

    def tasks(self) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Yield scores, labels, weights and groups of each task that has labels, as arrays."""
        shape = self.known.shape
        for known, *data in zip(*(each_row(t, shape) for t in self), strict=True):
            if known.any():
                arrays = (None if t is None else t[known].numpy() for t in data)
                scores, labels, weights, groups = arrays
                yield scores, labels, weights, groups


class EpochScores:
    """Batches of scores (n,) or (n, tasks) of one split, with labels, weights and groups.

    `pairs` and `censoring` are those of `pair_loss`.
    """

    def __init__(self, pairs: str = "binary", censoring: str = "harrell") -> None:
        self._pairs, self._censoring = pairs, censoring
        self._batches: list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = []

    def add(
        self, scores: Tensor, labels: Labels, weights: Tensor | None, groups: Tensor | None
    ) -> None:
        """Keep a batch, on its device."""
        target: Tensor = labels  # type: ignore[assignment]
        if self._pairs == "survival":
            target = survival_labels(scores, labels, None)
        check_data(scores, target, weights, groups)
        rows, target, weights, groups = in_rows(scores.detach(), target, weights, groups)
        shape = rows.shape
        before = self._batches[0][0].shape[:-1] if self._batches else shape[:-1]
        if shape[:-1] != before:
            raise ValueError(
                "scores must have the same number of tasks in every batch of an epoch; got the "
                f"shape {tuple(scores.shape)} after batches of {math.prod(before)} tasks."
            )
        weights = None if weights is None else weights.expand(shape)
        # A copy, because compiled models write the next batch's scores to the same memory.
        self._batches.append((rows.clone(), target.detach().expand(shape), weights, groups))

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    def extend(self, other: EpochScores) -> None:
        """Add the batches of another object, whose options are the same."""
        self._batches += other._batches

    def cpu(self) -> EpochScores:
        """Return a copy with all batches on the CPU."""
        found = EpochScores(self._pairs, self._censoring)
        for scores, labels, *others in self._batches:
            weights, groups = (None if column is None else column.cpu() for column in others)
            found._batches.append((scores.cpu(), labels.cpu(), weights, groups))
        return found

    def rows(self) -> Rows:
        """Join the batches."""
        arguments = ("scores", "labels", "weights", "groups")
        columns = zip(*self._batches, strict=True)
        scores, labels, weights, groups = map(_concatenated, arguments, columns)
        scores, labels = cast("Tensor", scores).double(), cast("Tensor", labels).double()
        # With one task, a label that is NaN is an error and not a missing label.
        known = ~labels.isnan() if scores.ndim == 2 else torch.ones_like(labels, dtype=torch.bool)
        return Rows(known, scores, labels, weights, groups)

    @property
    def largest_loss(self) -> float:
        """The largest finite loss in the type that the training computes it in."""
        return torch.finfo(torch.promote_types(self._batches[0][0].dtype, torch.float32)).max

    def evaluate(
        self,
        epoch: int,
        split: str,
        surrogates: Sequence[Surrogate],
        margin: float | None,
        confidence: float | None = None,
    ) -> tuple[dict[str, float], Finding | None]:
        """Return the losses by name and the AUC, over all pairs, and the problem of the scores.

        With several tasks these are means over the tasks that have a pair; NaN if none has. With a
        confidence, the bounds of the AUC follow, which are NaN with several tasks or with groups.
        """
        rows = self.rows()
        known, scores, labels = rows[:3]
        sizes = [batch.shape[-1] for batch, *_ in self._batches]
        binary = labels if self._pairs == "binary" else None
        finding = check_scores(epoch, split, scores, binary, known, sizes)
        by_task = []
        if finding is None or finding.kind != "not finite":
            for arrays in rows.tasks():
                batch = batches.batch_from(*arrays, self._pairs, self._censoring)
                by_task.append(_metrics(batch, surrogates, margin))
                if confidence is not None:
                    kinds = self._pairs, self._censoring
                    by_task[-1] |= _interval(arrays, kinds, confidence)
        with_pairs = [task for task in by_task if not math.isnan(task["auc"])]
        names = [*(surrogate.name for surrogate in surrogates), "auc"]
        names += [] if confidence is None else ["auc_low", "auc_high"]
        if not with_pairs:
            return dict.fromkeys(names, math.nan), finding
        means = {name: math.fsum(t[name] for t in with_pairs) / len(with_pairs) for name in names}
        if confidence is not None and scores.ndim == 2:
            means |= {"auc_low": math.nan, "auc_high": math.nan}
        return means, finding


def _metrics(
    batch: batches.Batch, surrogates: Sequence[Surrogate], margin: float | None
) -> dict[str, float]:
    """Return losses and AUC of one task, or an AUC of NaN alone if it has no pair."""
    concordant, pair_weight = choose.concordance(batch)
    if pair_weight == 0.0:
        return {"auc": math.nan}
    metrics = {"auc": bounded(concordant / pair_weight)}
    for surrogate in surrogates:
        terms = surrogate.at_margin(surrogate.default_margin if margin is None else margin)
        try:
            metrics[surrogate.name] = choose.pair_sums(Request(batch, terms, True)).value
        except OverflowError:
            metrics[surrogate.name] = math.inf
    return metrics


def _interval(
    arrays: tuple[Any, Any, Any, Any], kinds: tuple[str, str], confidence: float
) -> dict[str, float]:
    """Return the bounds of `delong`; NaN with groups, or with less than two rows of a class.

    `arrays` are scores, labels, weights and groups, which are known to be valid, and `kinds` are
    the arguments `pairs` and `censoring`.
    """
    scores, labels, weights, groups = arrays
    low = high = math.nan
    if groups is None:
        options: Any = dict(zip(("pairs", "censoring"), kinds, strict=True))
        with suppress(ValueError):  # less than two rows
            found = delong(scores, labels, weights=weights, confidence=confidence, **options)
            low, high = found.low, found.high
    return {"auc_low": low, "auc_high": high}


def _concatenated(name: str, parts: Sequence[Tensor | None]) -> Tensor | None:
    """Join the batches of one argument on the CPU; None if no batch has it."""
    given = [part for part in parts if part is not None]
    if given and len(given) < len(parts):
        raise ValueError(
            f"{name} must come with every batch of an epoch or with none; {len(given)} of "
            f"{len(parts)} batches had them."
        )
    return torch.cat(given, dim=-1).detach().cpu() if given else None

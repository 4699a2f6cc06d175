"""The scores of many batches, kept on their device until they are evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everypair.streaming import PairAccumulator
from everypair.torch._inputs import Labels, check_data, each_row, in_rows, survival_labels


class EpochRows(NamedTuple):
    """The rows of all batches on the CPU, each (n,), or (tasks, n) with several tasks."""

    scores: Tensor
    labels: Tensor
    weights: Tensor | None
    groups: Tensor | None

    @property
    def known(self) -> Tensor:
        """False where the label of one of several tasks is missing, coded as NaN."""
        if self.labels.ndim == 1:
            return torch.ones_like(self.labels, dtype=torch.bool)
        return ~self.labels.isnan()


class EpochScores:
    """Batches of scores (n,) or (n, tasks), with labels, weights and groups.

    `pairs` and `censoring` are those of `pair_loss`.
    """

    def __init__(self, pairs: Any = "binary", censoring: Any = "harrell") -> None:
        self._kinds = {"pairs": pairs, "censoring": censoring}
        self._batches: list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = []

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    def add(
        self, scores: Tensor, labels: Labels, weights: Tensor | None, groups: Tensor | None
    ) -> None:
        """Keep a batch, without waiting for its device."""
        target: Tensor = labels  # type: ignore[assignment]
        if self._kinds["pairs"] == "survival":
            target = survival_labels(scores, labels, None)
        check_data(scores, target, weights, groups)
        rows, target, weights, groups = in_rows(scores.detach(), target, weights, groups)
        shape = rows.shape
        n_tasks = self._batches[0][0].shape[:-1] if self._batches else shape[:-1]
        if shape[:-1] != n_tasks:
            raise ValueError(
                "scores must have the same number of tasks in every batch of an epoch; got the "
                f"shape {tuple(scores.shape)} after batches of {math.prod(n_tasks)} tasks."
            )
        weights = None if weights is None else weights.expand(shape)
        # A copy, because compiled models write the next batch's scores to the same memory.
        self._batches.append((rows.clone(), target.detach().expand(shape), weights, groups))

    def extend(self, other: EpochScores) -> None:
        """Add the batches of another object, whose options are the same."""
        self._batches += other._batches

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each batch."""
        return [scores.shape[-1] for scores, *_ in self._batches]

    @property
    def largest_loss(self) -> float:
        """The largest finite loss in the type that the training computes it in."""
        return torch.finfo(torch.promote_types(self._batches[0][0].dtype, torch.float32)).max

    def rows(self) -> EpochRows:
        """Join the batches."""
        columns = zip(*self._batches, strict=True)
        scores, labels, weights, groups = map(_joined, EpochRows._fields, columns)
        return EpochRows(scores.double(), labels.double(), weights, groups)

    def tasks(self, rows: EpochRows) -> Iterator[PairAccumulator]:
        """Check the values of all rows and yield those of each task."""
        for known, *task in zip(
            *(each_row(t, rows.scores.shape) for t in (rows.known, *rows)), strict=True
        ):
            accumulator = PairAccumulator(**self._kinds)
            columns: list[Any] = [None if t is None else t[known].numpy() for t in task]
            accumulator.add(*columns)
            yield accumulator


def _joined(name: str, parts: Sequence[Tensor | None]) -> Any:
    """Join the batches of one argument on the CPU; None if no batch has it."""
    tensors = [part for part in parts if part is not None]
    if tensors and len(tensors) < len(parts):
        raise ValueError(
            f"{name} must come with every batch of an epoch or with none; {len(tensors)} of "
            f"{len(parts)} batches had them."
        )
    return torch.cat(tensors, dim=-1).detach().cpu() if tensors else None

"""The scores of many batches, kept on their device until they are evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from everypair.streaming import PairAccumulator
from everypair.torch._inputs import Labels, check_data, each_row, in_rows, survival_labels

Columns = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Scores, labels, weights and groups, each (n,), or (tasks, n) with several tasks."""


class EpochScores:
    """Batches of scores (n,) or (n, tasks), with labels, weights and groups.

    `pairs` and `censoring` are those of `pair_loss`.
    """

    def __init__(self, pairs: Any = "binary", censoring: Any = "harrell") -> None:
        self._kinds = {"pairs": pairs, "censoring": censoring}
        self.batches: list[Columns] = []

    def add(
        self,
        scores: Tensor,
        labels: Labels,
        weights: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> None:
        """Keep a batch, without waiting for its device."""
        target: Tensor = labels  # type: ignore[assignment]
        if self._kinds["pairs"] == "survival":
            target = survival_labels(scores, labels, None)
        check_data(scores, target, weights, groups)
        rows, target, weights, groups = in_rows(scores.detach(), target, weights, groups)
        # A copy, because compiled models write the next batch's scores to the same memory.
        rows, target = rows.clone(), target.detach().expand(rows.shape)
        weights = None if weights is None else weights.detach().expand(rows.shape)
        self.extend([(rows, target, weights, groups)])

    def extend(self, batches: Iterable[Columns]) -> None:
        """Keep batches of other objects, whose options are the same."""
        for batch in batches:
            first = self.batches[0] if self.batches else batch
            tasks, first_tasks = (math.prod(part[0].shape[:-1]) for part in (batch, first))
            if tasks != first_tasks:
                raise ValueError(
                    "scores must have the same number of tasks in every batch of an epoch; got "
                    f"{tasks} after batches of {first_tasks}."
                )
            for name, column, of_first in zip(
                ("weights", "groups"), batch[2:], first[2:], strict=True
            ):
                if (column is None) != (of_first is None):
                    raise ValueError(
                        f"{name} must come with every batch of an epoch or with none; got a batch "
                        f"{'without' if column is None else 'with'} {name} after others."
                    )
            self.batches.append(batch)

    def joined(self) -> Columns:
        """Return the rows of all batches, on the CPU."""
        columns: list[Any] = [
            None if parts[0] is None else torch.cat(parts, dim=-1).cpu()
            for parts in zip(*self.batches, strict=True)
        ]
        scores, labels, weights, groups = columns
        return scores.double(), labels.double(), weights, groups

    def tasks(self, rows: Columns) -> list[PairAccumulator]:
        """Check the values of joined rows and return those of each task."""
        accumulators = []
        columns = (each_row(column, rows[0].shape) for column in (known(rows), *rows))
        for is_known, *task in zip(*columns, strict=True):
            arrays: list[Any] = [None if t is None else t[is_known].numpy() for t in task]
            accumulators.append(PairAccumulator(**self._kinds))
            accumulators[-1].add(*arrays)
        return accumulators


def known(rows: Columns) -> Tensor:
    """Return False where the label of one of several tasks is missing, coded as NaN."""
    labels = rows[1]
    return labels.isnan().logical_not() if labels.ndim > 1 else torch.ones(labels.shape).bool()

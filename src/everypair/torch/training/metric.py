"""The AUC, the AUC per group, the concordance index or the partial AUC of many batches."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from everypair import metrics
from everypair.inputs import pair_options
from everypair.metrics.tie_blocks import Average, check_average
from everypair.streaming.stream_rows import SortedRows
from everypair.torch._inputs import Labels
from everypair.torch.training.epoch_scores import EpochScores


class AUCMetric:
    """AUC of all rows of many batches, in the style of torchmetrics.

    A mean of the AUCs of batches is not the AUC. This metric keeps the scores and computes
    `everypair.auc` or `everypair.partial_auc` of all of them, exactly.

    Parameters
    ----------
    average : {"pairs", "groups", "rows"}
        The weight of a group in the mean over the groups that have pairs, as in `everypair.auc`:
        its pairs; 1; or its rows (the *GAUC* of recommender systems). Pass `groups` to `update`.
    pairs, censoring
        What labels are, as in `pair_loss`. For ordered and survival pairs the value is the
        concordance index.
    max_fpr, min_tpr, standardise
        The part of the ROC curve, as in `everypair.partial_auc`. Binary pairs only.
    process_group : ProcessGroup or "world", optional
        Ranks whose rows are evaluated together; "world" is all of them. `compute` then sends the
        rows of each rank to all others and must be called on all ranks. By default the value is
        that of the rows of this process.

    See Also
    --------
    everypair.torch.metrics.PairMetric : A metric for TorchMetrics, with losses and an interval.

    Notes
    -----
    Scores are kept on their device until `compute`; `update` does not wait for the device.

    Examples
    --------
    >>> import torch
    >>> gauc = AUCMetric(average="rows")
    >>> users = torch.tensor([7, 7, 7, 8, 8])
    >>> gauc.update(torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1, 0, 1]), groups=users[:3])
    >>> gauc.update(torch.tensor([0.1, 0.3]), torch.tensor([1, 0]), groups=users[3:])
    >>> gauc.compute().item()  # user 7 has three rows and an AUC of 1, user 8 two rows and 0
    0.6
    """

    def __init__(
        self,
        *,
        average: Average = "pairs",
        pairs: Literal["binary", "ordered", "survival"] = "binary",
        censoring: Literal["harrell", "uno"] = "harrell",
        max_fpr: float = 1.0,
        min_tpr: float = 0.0,
        standardise: bool = False,
        process_group: dist.ProcessGroup | Literal["world"] | None = None,
    ) -> None:
        check_average(average)
        pair_options.check_pairs(pairs, censoring)
        self.average, self.pairs, self.censoring = average, pairs, censoring
        self.max_fpr = pair_options.check_rate(max_fpr, "max_fpr", 1.0, closed=False)
        self.min_tpr = pair_options.check_rate(min_tpr, "min_tpr", 0.0)
        self.standardise = bool(standardise)
        if (max_fpr, min_tpr) != (1.0, 0.0):
            pair_options.check_rates(max_fpr, min_tpr, pairs)
        if isinstance(process_group, str) and process_group != "world":
            raise ValueError(
                f"process_group must be a ProcessGroup, 'world' or None; got {process_group!r}."
            )
        self.process_group = process_group
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._scores = EpochScores(self.pairs, self.censoring)

    def update(
        self,
        scores: Tensor,
        labels: Labels,
        weights: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> None:
        """Add a batch.

        Parameters
        ----------
        scores : (n,), (n, 1) or (n, tasks) floating
        labels : of the shape of the scores
            According to `pairs`; NaN where the label of one of several tasks is missing.
        weights, groups : (n,), optional
            As in the loss. With every batch or with none.
        """
        self._scores.add(scores, labels, weights, groups)

    def compute(self) -> Tensor:
        """Return the value of all batches since the last `reset`, a float64 scalar on the CPU.

        With several tasks it is the mean over the tasks that have a pair. It is NaN if there is no
        pair, for example if all rows have one class.

        Raises
        ------
        ValueError
            If there is no batch, a score is not finite, or labels are not as described.
        """
        scores = self._scores
        if self.process_group is not None:
            group = None if self.process_group == "world" else self.process_group
            parts: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(parts, scores.batches and [scores.joined()], group=group)
            scores = EpochScores(self.pairs, self.censoring)
            scores.extend(rows for part in parts for rows in part)
        if not scores.batches:
            raise ValueError("AUCMetric must have at least one batch; call update() first.")
        tasks = [task.rows() for task in scores.tasks(scores.joined()) if task.n_rows]
        values = [self._value(rows) for rows in tasks if rows.has_pairs]
        mean = math.fsum(values) / len(values) if values else math.nan
        return torch.tensor(mean, dtype=torch.float64)

    def __call__(self, *columns: Any, **optional_columns: Any) -> Tensor:
        """Add a batch as `update` does; return the value of this batch, on this rank, alone."""
        batch = AUCMetric(**{**self._options(), "process_group": None})
        batch.update(*columns, **optional_columns)
        self._scores.extend(batch._scores.batches)
        return batch.compute()

    def merge(self, *others: AUCMetric) -> None:
        """Add the batches of other metrics with the same options, for example of other ranks."""
        for other in others:
            if other._options() != self._options():
                raise ValueError(
                    "metrics must have the same options to be merged; got "
                    f"{other._options()} and {self._options()}. Make all metrics alike."
                )
            self._scores.extend(other._scores.batches)

    def __repr__(self) -> str:
        return f"AUCMetric({', '.join(f'{k}={v!r}' for k, v in self._options().items())})"

    def _options(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def _value(self, rows: SortedRows) -> float:
        """Return the value of one task, which has pairs."""
        if (self.max_fpr, self.min_tpr) == (1.0, 0.0):
            return metrics.auc(rows.scores, rows.labels, average=self.average, **rows.options)
        return metrics.partial_auc(
            rows.scores, rows.labels, max_fpr=self.max_fpr, min_tpr=self.min_tpr,
            standardise=self.standardise, weights=rows.weights, groups=rows.groups,
            average=self.average,
        )  # fmt: skip

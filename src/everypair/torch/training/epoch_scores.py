"""The scores of one split in one epoch: kept batch by batch, measured together at its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from everypair import _dispatch, _inputs
from everypair.torch._inputs import check_data, score_rows

if TYPE_CHECKING:
    from everypair.surrogates import Surrogate

__all__ = ["EpochScores", "Summary"]


@dataclass(frozen=True)
class Summary:
    """What the scores of an epoch look like.

    Attributes
    ----------
    n : int
        Scores that have a label.
    n_bad : int
        How many of them are NaN or infinite.
    first_bad : int
        The batch of the first of those.
    constant : bool
        Whether all are equal.
    n_pos, n_neg : int
        Labels of either class.
    largest_loss : float
        The largest that a loss of such scores can be in training.
    """

    n: int
    n_bad: int
    first_bad: int
    constant: bool
    n_pos: int
    n_neg: int
    largest_loss: float


class EpochScores:
    """Batches of scores and labels of one split, (n,) or (n, tasks)."""

    def __init__(self) -> None:
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._weights: list[Tensor | None] = []
        self._groups: list[Tensor | None] = []

    def add(
        self, scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None
    ) -> None:
        """Keep a batch, on its device."""
        label_rows, weight_rows, group_rows = check_data(scores, labels, weights, groups)
        rows = score_rows(scores.detach())
        before = self._scores[0].shape[:-1] if self._scores else rows.shape[:-1]
        if rows.shape[:-1] != before:
            raise ValueError(
                "scores must have as many tasks in every batch of an epoch; got the shape "
                f"{tuple(scores.shape)} after batches of {math.prod(before)} tasks."
            )
        # Compiled models write the next batch's scores where this batch's were.
        self._scores.append(rows.clone())
        self._labels.append(label_rows.detach().expand(rows.shape))
        self._weights.append(None if weight_rows is None else weight_rows.expand(rows.shape))
        self._groups.append(group_rows)

    def measured(
        self, surrogates: Sequence[Surrogate], margin: float
    ) -> tuple[dict[str, float], Summary]:
        """Return the losses by name and the AUC, over all pairs, and how the scores look."""
        scores, labels = _joined(self._scores).double(), _joined(self._labels).double()
        # Only tasks may lack labels: a label that is missing in a single column is a mistake.
        here = ~labels.isnan() if scores.ndim == 2 else torch.ones_like(labels, dtype=torch.bool)
        summary = self._summary(scores, labels, here)
        names = [*(surrogate.name for surrogate in surrogates), "auc"]
        if summary.n_bad:
            return dict.fromkeys(names, math.nan), summary
        groups, weights = _told("groups", self._groups), _told("weights", self._weights)
        by_task = [
            _measured(batch, surrogates, margin)
            for batch in _tasks(here, scores, labels, weights, groups)
        ]
        ranked = [task for task in by_task if not math.isnan(task["auc"])]
        if not ranked:
            return dict.fromkeys(names, math.nan), summary
        return {name: math.fsum(t[name] for t in ranked) / len(ranked) for name in names}, summary

    def _summary(self, scores: Tensor, labels: Tensor, here: Tensor) -> Summary:
        bad = here & ~scores.isfinite()
        first_row = int(bad.reshape(-1, bad.shape[-1]).any(0).int().argmax())
        ends = torch.tensor([batch.shape[-1] for batch in self._scores]).cumsum(0)
        known = scores[here]
        dtype = torch.promote_types(self._scores[0].dtype, torch.float32)
        return Summary(
            n=len(known),
            n_bad=int(bad.sum()),
            first_bad=int(torch.searchsorted(ends, first_row, right=True)),
            constant=len(known) > 1 and bool((known == known[0]).all()),
            n_pos=int((labels[here] > 0).sum()),
            n_neg=int((labels[here] <= 0).sum()),
            largest_loss=torch.finfo(dtype).max,
        )


def _tasks(
    here: Tensor, scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None
) -> Iterator[_inputs.Batch]:
    """Yield each task that has labels, without the rows that have none."""
    shape = (-1, here.shape[-1])
    for i, rows in enumerate(here.reshape(shape)):
        if rows.any():
            yield _inputs.batch_from(
                scores.reshape(shape)[i][rows].numpy(),
                labels.reshape(shape)[i][rows].numpy(),
                None if weights is None else weights.reshape(shape)[i][rows].numpy(),
                None if groups is None else groups[rows].numpy(),
            )


def _measured(
    batch: _inputs.Batch, surrogates: Sequence[Surrogate], margin: float
) -> dict[str, float]:
    concordant, pair_weight = _dispatch.concordance(batch)
    if pair_weight == 0.0:
        return {"auc": math.nan}
    losses = {
        surrogate.name: _dispatch.evaluate(batch, surrogate.at_knots(margin), True).value
        for surrogate in surrogates
    }
    # Finite scores whose loss is not a number have left the range of float64 on the way.
    losses = {name: math.inf if math.isnan(value) else value for name, value in losses.items()}
    return {**losses, "auc": concordant / pair_weight}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), dim=-1).detach().cpu()


def _told(name: str, parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    if known and len(known) < len(parts):
        raise ValueError(
            f"{name} must come with every batch of an epoch or with none; {len(known)} of "
            f"{len(parts)} batches had them."
        )
    return _joined(known) if known else None

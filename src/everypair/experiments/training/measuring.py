"""Exact loss and AUC of subtrain and validation after every epoch, of the test part at the end.

The device computes scores and losses (`Measuring.scores`, `Measuring.start`), the CPU computes AUCs
(`Measuring.finish`). On a GPU the CPU does that while the device trains the next epoch. The test
part is scored once, by the model of the best epoch (`Measuring.test_result`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import everypair as ep
from everypair.experiments.data import augment
from everypair.experiments.data.splits import Part, Split
from everypair.experiments.seeds import derived

CHUNK_VALUES = {"cpu": 2**17, "cuda": 2**22}
"""How many input values are scored at once, by type of device. On a CPU the activations then fit
into the cache; on a GPU they keep it busy."""

ROC_POINTS = 200
"""The largest number of points of an ROC curve in a record; a figure shows no more."""

Roc = tuple[list[float], list[float]]
"""False and true positive rates at the points of a curve."""


@dataclass(frozen=True)
class Measured:
    """Scores and losses of an epoch, which may still be on their way from the device."""

    epoch: int
    whole: bool
    values: Tensor  # on the CPU: the scores of subtrain and validation, then the losses
    arrived: torch.cuda.Event | None


class Measuring:
    """Measures a model on the parts of a split, which is on the device of the training.

    The methods take `whole`: whether all rows of subtrain are measured, or only the sample.

    Parameters
    ----------
    split : Split
    seed : int
        Of the crops, if the parts are measured on augmented images, and of the sample.
    sample : int
        Number of rows of subtrain in the sample; 0 means all. Both classes are in proportion, and
        the rows are the same in every epoch. If there are groups, the sample is all rows.
    """

    def __init__(self, split: Split, *, seed: int, sample: int = 0) -> None:
        whole, subtrain = split.parts(), split.subtrain
        self._test = whole.pop("test")
        self._seed, self._augmented = seed, split.augmentation.evaluation
        if 0 < sample < len(subtrain) and subtrain.groups is None:
            rows = sampled_rows(subtrain.labels.cpu().numpy() > 0, sample, seed)
            chosen = torch.from_numpy(rows).to(subtrain.labels.device)
            subtrain = Part(subtrain.inputs[chosen], subtrain.labels[chosen])
        self._parts = {True: whole, False: {**whole, "subtrain": subtrain}}
        self._truth = {
            whole: {name: _truth(part) for name, part in parts.items()}
            for whole, parts in self._parts.items()
        }

    def numbers(self, epoch: int, *, whole: bool) -> dict[str, Tensor | None]:
        """Draw the random numbers of the crops of each part; None if there are no crops."""
        return {name: self._crops(name, part, epoch) for name, part in self._parts[whole].items()}

    def _crops(self, name: str, part: Part, epoch: int) -> Tensor | None:
        own = derived(self._seed, f"crops of {name}", epoch)
        generator = torch.Generator().manual_seed(own)
        return augment.draw(len(part), generator) if self._augmented else None

    def scores(
        self, model: nn.Module, numbers: Mapping[str, Tensor | None], *, whole: bool
    ) -> dict[str, Tensor]:
        """Score subtrain and validation in evaluation mode. Random numbers are on the device."""
        model.eval()
        with torch.no_grad():
            found = {
                name: scores_of(model, part.inputs, numbers[name])
                for name, part in self._parts[whole].items()
            }
        model.train()
        return found

    def start(
        self, epoch: int, scores: Mapping[str, Tensor], objective: nn.Module, *, whole: bool
    ) -> Measured:
        """Compute the losses and send them with the scores to the CPU, without waiting."""
        parts = self._parts[whole]
        with torch.no_grad():
            losses = [
                objective(scores[name], part.labels, part.groups) for name, part in parts.items()
            ]
            values = torch.cat([*(scores[name] for name in parts), torch.stack(losses).float()])
        if not values.is_cuda:
            return Measured(epoch, whole, values, None)
        pinned = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(values.device))
        return Measured(epoch, whole, pinned, arrived)

    def finish(self, measured: Measured) -> dict[str, float] | None:
        """Return an epoch's row of the history, None if a score or a loss is not finite."""
        if measured.arrived is not None:
            measured.arrived.synchronize()
        values = measured.values.numpy()
        if not np.isfinite(values).all():
            return None
        parts, truth = self._parts[measured.whole], self._truth[measured.whole]
        *scores, losses = np.split(values, np.cumsum([len(part) for part in parts.values()]))
        row = {"epoch": float(measured.epoch)}
        for name, own, loss in zip(parts, scores, losses, strict=True):
            row[f"{name}_loss"] = float(loss)
            positive, groups = truth[name]
            row[f"{name}_auc"] = ep.auc(own, positive, groups=groups)
        return row

    def test_result(self, model: nn.Module, epoch: int) -> tuple[float, Roc] | None:
        """Return AUC and ROC curve of the test part, None if a score is not finite.

        The crops, if there are any, are those of `epoch`.
        """
        part, crops = self._test, self._crops("test", self._test, epoch)
        model.eval()
        with torch.no_grad():
            placed = None if crops is None else crops.to(part.labels.device)
            scores = scores_of(model, part.inputs, placed).cpu().numpy()
        model.train()
        if not np.isfinite(scores).all():
            return None
        positive, groups = _truth(part)
        return ep.auc(scores, positive, groups=groups), thinned_roc(scores, positive)


def _truth(part: Part) -> tuple[NDArray[np.bool_], NDArray[np.int64] | None]:
    """Return which rows are positive, and the groups, as arrays on the CPU."""
    groups = None if part.groups is None else part.groups.cpu().numpy()
    return part.labels.cpu().numpy() > 0, groups


def sampled_rows(positive: NDArray[np.bool_], n: int, seed: int) -> NDArray[np.int64]:
    """Choose about `n` rows at random, of each class the same share, rounded up; sorted.

    >>> rows = sampled_rows(np.arange(1000) < 10, 100, seed=0)
    >>> len(rows), int((rows < 10).sum())
    (100, 1)
    """
    generator = np.random.default_rng(derived(seed, "measured rows"))
    chosen = []
    for rows in (np.flatnonzero(positive), np.flatnonzero(~positive)):
        share = -(-len(rows) * n // len(positive))
        chosen.append(generator.permutation(rows)[:share])
    return np.sort(np.concatenate(chosen))


def scores_of(model: nn.Module, inputs: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Score all rows, in chunks. Whether the model is in training mode is left as it is.

    All chunks have the same size, so the last one may repeat a few rows of the one before it.
    Shapes: see `augment.prepare`.
    """
    values = CHUNK_VALUES.get(inputs.device.type, CHUNK_VALUES["cpu"])
    n, largest = len(inputs), max(1, values // max(1, inputs.shape[1:].numel()))
    n_chunks = max(1, -(-n // largest))
    size = max(1, -(-n // n_chunks))
    chunks = []
    for begin in range(0, n, size):
        at = slice(max(0, min(begin, n - size)), begin + size)
        crops = None if numbers is None else numbers[:, at]
        chunks.append(model(augment.prepare(inputs[at], crops))[begin - at.start :])
    return torch.cat(chunks) if chunks else model(augment.prepare(inputs, numbers))


def thinned_roc(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> Roc:
    """Return false and true positive rates at the corners of the curve, at most `ROC_POINTS`.

    >>> thinned_roc(np.float32([4, 3, 2, 1]), np.array([True, True, False, False]))
    ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    """
    fpr, tpr, _ = ep.roc_curve(scores, positive)
    # Of points on a straight line only the two ends are kept.
    turns = np.diff(fpr[:-1]) * np.diff(tpr[1:]) != np.diff(fpr[1:]) * np.diff(tpr[:-1])
    corners = np.flatnonzero(np.concatenate([[True], turns, [True]]))
    if len(corners) > ROC_POINTS:
        # Points at equal distances along the curve, measured by fpr + tpr, which ends at 2.
        length = (fpr + tpr)[corners]
        kept = np.searchsorted(length, np.linspace(0.0, length[-1], ROC_POINTS))
        corners = corners[np.unique(np.minimum(kept, len(corners) - 1))]
    return fpr[corners].tolist(), tpr[corners].tolist()

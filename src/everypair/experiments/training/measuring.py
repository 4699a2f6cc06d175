"""Exact loss and AUC of the three parts of a split, after every epoch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import everypair as ep
from everypair.experiments.data import augment
from everypair.experiments.data.splits import Split
from everypair.experiments.seeds import derived

CHUNK_VALUES = {"cpu": 2**17, "cuda": 2**22}
"""How many input values are scored at once, by type of device. On a CPU the activations then fit
into the cache; on a GPU they keep it busy."""

ROC_POINTS = 200
"""The largest number of points of an ROC curve in a record; a figure shows no more."""


class Measuring:
    """Measures a model on the parts of a split, which is on the device of the training.

    `seed` is that of the crops, if the parts are measured on augmented images.
    """

    def __init__(self, split: Split, *, seed: int) -> None:
        self._parts, self._augmented = split.parts(), split.augmentation.evaluation
        self._seed = seed
        self.positive = {name: part.labels.cpu().numpy() > 0 for name, part in self._parts.items()}
        self._groups = {
            name: None if part.groups is None else part.groups.cpu().numpy()
            for name, part in self._parts.items()
        }

    def __call__(
        self, epoch: int, model: nn.Module, objective: nn.Module
    ) -> tuple[dict[str, float], NDArray[np.float32]] | None:
        """Return an epoch's row of the history and the scores of the test part.

        None if a score or a loss is not finite.
        """
        scores, losses = [], []
        model.eval()
        with torch.no_grad():
            for name, part in self._parts.items():
                scores.append(scores_of(model, part.inputs, self._numbers(name, epoch)))
                losses.append(objective(scores[-1], part.labels, part.groups))
        model.train()
        # A single transfer, so that the device is waited for only once.
        values = torch.cat([*scores, torch.stack(losses).to(scores[0].dtype)]).cpu().numpy()
        if not np.isfinite(values).all():
            return None
        ends = np.cumsum([len(part) for part in self._parts.values()])
        by_part = dict(zip(self._parts, np.split(values, ends), strict=False))
        row = {"epoch": float(epoch)}
        for (name, own), loss in zip(by_part.items(), values[ends[-1] :].tolist(), strict=True):
            row[f"{name}_loss"] = loss
            row[f"{name}_auc"] = ep.auc(own, self.positive[name], groups=self._groups[name])
        del row["test_loss"]
        return row, by_part["test"]

    def _numbers(self, name: str, epoch: int) -> Tensor | None:
        if not self._augmented:
            return None
        inputs = self._parts[name].inputs
        generator = torch.Generator().manual_seed(derived(self._seed, f"crops of {name}", epoch))
        return augment.draw(len(inputs), generator, inputs.device)


def scores_of(model: nn.Module, inputs: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Score all rows, in chunks. Whether the model is in training mode is left as it is.

    Shapes: see `augment.prepare`.
    """
    values = CHUNK_VALUES.get(inputs.device.type, CHUNK_VALUES["cpu"])
    size = max(1, values // max(1, inputs.shape[1:].numel()))
    chunks = torch.split(inputs, size)
    crops = [None] * len(chunks) if numbers is None else torch.split(numbers, size, dim=1)
    return torch.cat([model(augment.prepare(*both)) for both in zip(chunks, crops, strict=True)])


def thinned_roc(
    scores: NDArray[np.float32], positive: NDArray[np.bool_]
) -> tuple[list[float], list[float]]:
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

"""Loss and AUC of the three parts of a split, exactly, after every epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import everypair as ep
from everypair.experiments.data import augment
from everypair.experiments.seeds import derived

if TYPE_CHECKING:
    from everypair.experiments.data.splits import Split

__all__ = ["Measured", "Measuring", "scores_of", "thinned_roc"]

CHUNK_VALUES = {"cpu": 2**17, "cuda": 2**22}
"""Numbers in the inputs that are scored at once: layers stay in the CPU's cache, and fill a GPU."""

ROC_POINTS = 200
"""The most that a record keeps: more than a picture shows."""


class Measured(NamedTuple):
    """One epoch: its row of the history, and the scores of the test part."""

    row: dict[str, float]
    test_scores: NDArray[np.float32]


class Measuring:
    """The parts of a split, to be scored again and again.

    Parameters
    ----------
    split : Split
        On the device of the training.
    seed : int
        Of the crops, where the parts are measured on augmented images.
    """

    def __init__(self, split: Split, *, seed: int) -> None:
        self._parts = split.parts()
        self._augmented = split.augmentation.evaluation
        self._seed = seed
        self._positive = {name: part.labels.cpu().numpy() > 0 for name, part in self._parts.items()}
        self._groups = {
            name: None if part.groups is None else part.groups.cpu().numpy()
            for name, part in self._parts.items()
        }

    def __call__(self, epoch: int, model: nn.Module, objective: nn.Module) -> Measured | None:
        """Return the epoch's row; None where a score or a loss is not finite."""
        scores, losses = [], []
        model.eval()
        with torch.no_grad():
            for name, part in self._parts.items():
                scores.append(scores_of(model, part.inputs, self._numbers(name, epoch)))
                losses.append(objective(scores[-1], part.labels, part.groups))
        model.train()
        # One transfer, so that a device is waited for once.
        values = torch.cat([*scores, torch.stack(losses).to(scores[0].dtype)]).cpu().numpy()
        if not np.isfinite(values).all():
            return None
        ends = np.cumsum([len(part) for part in self._parts.values()])
        by_part = dict(zip(self._parts, np.split(values, ends), strict=False))
        auc = {
            name: ep.auc(part, self._positive[name], groups=self._groups[name])
            for name, part in by_part.items()
        }
        subtrain_loss, validation_loss, _ = values[ends[-1] :].tolist()
        row = {
            "epoch": float(epoch),
            "subtrain_loss": subtrain_loss,
            "subtrain_auc": auc["subtrain"],
            "validation_loss": validation_loss,
            "validation_auc": auc["validation"],
            "test_auc": auc["test"],
        }
        return Measured(row, by_part["test"])

    def roc(self, test_scores: NDArray[np.float32]) -> tuple[list[float], list[float]]:
        """Return the ROC curve of the test part, all groups together, as a picture needs it."""
        return thinned_roc(test_scores, self._positive["test"])

    def _numbers(self, name: str, epoch: int) -> Tensor | None:
        if not self._augmented:
            return None
        inputs = self._parts[name].inputs
        generator = torch.Generator().manual_seed(derived(self._seed, f"crops of {name}", epoch))
        return augment.draw(len(inputs), generator, inputs.device)


def scores_of(model: nn.Module, inputs: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Return the scores of all rows, computed in chunks, in the mode that the model is in.

    Parameters
    ----------
    model : Module
    inputs : (n, d) float32 or (n, c, h, w) uint8
    numbers : (3, n) tensor, optional
        Crop and mirror the images by these random numbers.
    """
    values = CHUNK_VALUES.get(inputs.device.type, CHUNK_VALUES["cpu"])
    chunk = max(1, values // max(1, inputs[0].numel()))
    return torch.cat(
        [
            model(
                augment.prepare(inputs[i : i + chunk])
                if numbers is None
                else augment.apply(inputs[i : i + chunk], numbers[:, i : i + chunk])
            )
            for i in range(0, len(inputs), chunk)
        ]
    )


def thinned_roc(
    scores: NDArray[np.float32], positive: NDArray[np.bool_]
) -> tuple[list[float], list[float]]:
    """Return false and true positive rates: corners of the curve, at most `ROC_POINTS` of them.

    >>> thinned_roc(np.float32([4, 3, 2, 1]), np.array([True, True, False, False]))
    ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    """
    fpr, tpr, _ = ep.roc_curve(scores, positive)
    # On a straight stretch only its ends are kept.
    turns = np.diff(fpr[:-1]) * np.diff(tpr[1:]) != np.diff(fpr[1:]) * np.diff(tpr[:-1])
    corners = np.flatnonzero(np.concatenate([[True], turns, [True]]))
    if len(corners) > ROC_POINTS:
        # Evenly along the curve, whose length is 2 with this measure.
        way = (fpr + tpr)[corners]
        kept = np.searchsorted(way, np.linspace(0.0, way[-1], ROC_POINTS))
        corners = corners[np.unique(np.minimum(kept, len(corners) - 1))]
    return fpr[corners].tolist(), tpr[corners].tolist()

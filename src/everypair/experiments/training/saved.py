"""Save a trained model in one file, with all that is needed to score new rows.

The file holds tensors, strings and numbers only, so that loading it cannot run foreign code.

>>> import tempfile
>>> import numpy as np
>>> from everypair.experiments.training import models
>>> from everypair.experiments.plan import Cell, Settings, Trial
>>> trial = Trial(Cell("digits", 0.1, "squared_hinge", "sgd", seed=0), batch=50, rate=0.1)
>>> state = models.build("linear", (1, 8, 8), sigmoid=False, seed=0).state_dict()
>>> path = Path(tempfile.mkdtemp()) / "model.pt"
>>> settings = Settings(model="linear")
>>> save(path, model_state=state, settings=settings, trial=trial, input_shape=(1, 8, 8))
>>> load(path).score(np.zeros((3, 1, 8, 8), np.uint8)).shape
(3,)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from everypair.experiments._atomic import replacing
from everypair.experiments.data import _tables, image_datasets
from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.errors import UserError, missing
from everypair.experiments.plan import Settings, Trial
from everypair.experiments.seen_rows import SeenRows
from everypair.experiments.training import models
from everypair.experiments.training.measuring import scores_of
from everypair.experiments.training.objectives import ends_in_sigmoid

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

VERSION = 1
"""The version of the file format; files of another version are refused."""

_MARK = "everypair model"


@dataclass(frozen=True)
class SavedModel:
    """A model that scores new rows.

    Parameters
    ----------
    state : dict of tensors
        The weights.
    settings, trial : Settings, Trial
        The settings and hyper-parameters of the training.
    input_shape : tuple of int
        Shape of one row, as the network takes it.
    encoder : TableEncoder, optional
        Encodes the columns of a table.
    validation_auc : float
    threshold : float, optional
        Rows with at least this score count as positive; None if no threshold was chosen.
    notes : dict
        Further information: strings, numbers, lists and dicts of them.
    seen : SeenRows
        Recognises rows of a table that the model was fitted on; models of older versions recognise
        none.
    """

    state: Mapping[str, Tensor]
    settings: Settings
    trial: Trial
    input_shape: tuple[int, ...]
    encoder: TableEncoder | None = None
    validation_auc: float = float("nan")
    threshold: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    seen: SeenRows = field(default_factory=SeenRows)

    def score(self, rows: str | Path | pd.DataFrame | NDArray[Any]) -> NDArray[np.float32]:
        """Return one score per row, (n,) float32; larger means more positive.

        `rows` is a table with the columns of the training (others are ignored), or images
        (n, c, h, w) uint8. For files see `read`. UserError is raised if the rows do not have the
        columns or the shape that the model needs.
        """
        if isinstance(rows, str | Path):
            rows = self.read(rows)
        with torch.no_grad():
            scores: NDArray[np.float32] = scores_of(self._network, self._inputs(rows)).numpy()
        return scores

    def predict_scores(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float32]:
        """Return one score per row, (n,) float32; see `score`."""
        return self.score(rows)

    def predict_proba(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float32]:
        """Raise UserError: the scores of these networks are not calibrated."""
        raise UserError(
            "this network was saved without calibrated probabilities; use predict_scores, or "
            "train on the table with everypair experiment table --models mlp"
        )

    def describe(self) -> str:
        """Return a text about the model: what it is, how it was trained and how good it is."""
        cell = self.trial.cell
        return (
            f"{self.settings.model} trained on {cell.data} with the loss {cell.loss} and "
            f"{cell.optimiser}, {self.trial.name}, {self.settings.epochs} epochs\n"
            f"validation AUC {self.validation_auc:.4f}"
        )

    def read(self, path: str | Path) -> pd.DataFrame | NDArray[Any]:
        """Read rows from a file: CSV or Parquet for a table, Parquet or .npy for images."""
        path = Path(path)
        if self.encoder is not None:
            frame = _tables.read(path)
            _tables.require_columns(frame, [c.name for c in self.encoder.columns], path)
            return frame
        if not path.is_file():
            raise UserError(missing(path))
        if path.suffix != ".npy":
            return image_datasets.read_images(path, self.input_shape[-1])
        try:
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read as a NumPy array: {error}") from None
        return array

    @cached_property
    def _network(self) -> torch.nn.Module:
        sigmoid = ends_in_sigmoid(self.trial.cell.loss, self.settings)
        network = models.build(self.settings.model, self.input_shape, sigmoid=sigmoid, seed=0)
        network.load_state_dict(dict(self.state))
        return network.eval()

    def _inputs(self, rows: pd.DataFrame | NDArray[Any]) -> Tensor:
        if self.encoder is not None:
            if isinstance(rows, np.ndarray):
                raise UserError(
                    "this model scores tables with named columns; got an array. Pass a DataFrame"
                )
            return torch.from_numpy(self.encoder.transform(rows))
        array = np.asarray(rows)
        wanted = np.uint8 if len(self.input_shape) == 3 else np.float32
        if array.shape[1:] != self.input_shape or (wanted is np.uint8) != (array.dtype == wanted):
            raise UserError(
                f"this model scores rows of shape {self.input_shape} and type {wanted.__name__}; "
                f"got {array.shape[1:]} of {array.dtype}"
            )
        return torch.from_numpy(np.ascontiguousarray(array, wanted).copy())


def save(
    path: str | Path,
    *,
    model_state: Mapping[str, Tensor],
    settings: Settings,
    trial: Trial,
    input_shape: tuple[int, ...] | None = None,
    encoder: TableEncoder | None = None,
    validation_auc: float = float("nan"),
    threshold: float | None = None,
    notes: Mapping[str, Any] | None = None,
    seen: SeenRows | None = None,
) -> None:
    """Write a model to a file, atomically.

    `input_shape` is the shape of one row, ``part.inputs.shape[1:]``. It is not needed with an
    encoder.
    """
    if encoder is not None:
        input_shape = (len(encoder.names),)
    if input_shape is None:
        raise ValueError("input_shape must be given for a model without an encoder")
    plain = {
        "format": _MARK,
        "version": VERSION,
        "state": {name: value.detach().cpu() for name, value in model_state.items()},
        "settings": asdict(settings),
        "trial": asdict(trial),
        "input_shape": list(input_shape),
        "encoder": None if encoder is None else encoder.to_dict(),
        "validation_auc": float(validation_auc),
        "threshold": threshold,
        "notes": dict(notes or {}),
        "seen": list(seen.hashes) if seen else [],
    }
    with replacing(path) as temporary:
        torch.save(plain, temporary)


def load(path: str | Path) -> SavedModel:
    """Load a model that `save` wrote; raise UserError if the file is missing or is none."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name the model in it: {path / 'model.pt'}")
    if not path.is_file():
        raise UserError(f"{missing(path)}; an experiment saves its best model as model.pt")
    try:
        plain = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises errors of many types for files that it did not write
        plain = None
    if not isinstance(plain, dict) or plain.pop("format", None) != _MARK:
        raise UserError(f"{path} is not a model that an experiment saved, or it is damaged")
    if (version := plain.pop("version")) != VERSION:
        raise UserError(
            f"{path} is a model of version {version}, and this everypair reads version "
            f"{VERSION}; use the everypair that wrote it, or train again"
        )
    plain["settings"] = Settings.from_dict(plain["settings"])
    plain["trial"] = Trial.from_dict(plain["trial"])
    plain["input_shape"] = tuple(plain["input_shape"])
    plain["encoder"] = plain["encoder"] and TableEncoder.from_dict(plain["encoder"])
    plain["seen"] = SeenRows(tuple(plain.get("seen", ())))
    return SavedModel(**plain)

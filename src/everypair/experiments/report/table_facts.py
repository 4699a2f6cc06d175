"""Facts about a table for its report: the data, the winner, and its test scores.

Three files in the folder of an experiment hold them, and each may be missing: ``data.json`` (see
`everypair.experiments.data.profile`), ``winner/summary.json`` (winner, contenders, importance of
the columns) and ``winner/test_scores.npz`` (scores, labels and probabilities of the test rows).
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import everypair as ep
from everypair.experiments.data import profile

Array = NDArray[np.float64]

ALERTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""The rows of the threshold table: alerts per 1,000 rows."""

GRID = np.linspace(0.0, 1.0, 101)
_RESAMPLES = 200
_MOST_RESAMPLED = 10_000  # rows of the test part; the band of a larger one is narrow
_FEWEST_IN_BIN = 20


class Threshold(NamedTuple):
    """One row of the threshold table."""

    alerts_per_1000: float
    score: float  # alert at or above it
    alerts: int
    caught: int  # positives among the alerts
    recall: float  # share of all positives that are caught
    precision: float  # share of the alerts that are positive


class Bin(NamedTuple):
    """Test rows of similar predicted probability, with the 95 % interval of their share."""

    predicted: float
    observed: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class HeldOutScores:
    """Scores of the winner on the test rows.

    Parameters
    ----------
    scores, labels, probabilities : (n,)
        Labels are 0 or 1. Probabilities may be empty.
    """

    scores: Array
    labels: NDArray[np.bool_]
    probabilities: Array

    @property
    def share(self) -> float:
        """Return the share of positives."""
        return float(self.labels.mean())

    def auc(self) -> tuple[float, float, float]:
        """Return the AUC and its 95 % interval (DeLong), NaN if there is none."""
        try:
            found = ep.delong(self.scores, self.labels)
        except ValueError:  # fewer than two rows of a class
            return float(ep.auc(self.scores, self.labels)), math.nan, math.nan
        return found.auc, found.low, found.high

    def average_precision(self) -> float:
        """Return the average precision."""
        return float(ep.average_precision(self.scores, self.labels))

    def roc(self) -> tuple[Array, Array, Array]:
        """Return true positive rates at `GRID` with the ends of a pointwise 95 % band.

        The band comes from resampled rows, both classes separately.
        """
        curve = _tpr(self.scores, self.labels)
        rng = np.random.default_rng(0)
        pos, neg = (np.flatnonzero(self.labels == side) for side in (True, False))
        shrink = min(1.0, _MOST_RESAMPLED / len(self.labels))
        drawn = []
        for _ in range(_RESAMPLES):
            rows = np.concatenate(
                [rng.choice(side, max(2, round(shrink * len(side)))) for side in (pos, neg)]
            )
            drawn.append(_tpr(self.scores[rows], self.labels[rows]))
        low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
        return curve, low, high

    def precision_recall(self) -> Array:
        """Return the precision at which each recall of `GRID` is reached, (101,)."""
        _, alerts, caught = _cumulative(self.scores, self.labels)
        first = np.searchsorted(caught, GRID * self.labels.sum() - 1e-9)
        first = np.minimum(first, len(caught) - 1)
        return np.asarray(caught[first] / alerts[first], np.float64)

    def thresholds(self) -> list[Threshold]:
        """Return how many positives are caught by a given number of alerts."""
        cuts, alerts, caught = _cumulative(self.scores, self.labels)
        n, n_pos = len(self.labels), int(self.labels.sum())
        rows: list[Threshold] = []
        for wanted in ALERTS:
            if wanted * n < 1000:
                continue  # less than one row
            # The threshold with the most alerts, at most as many as wanted.
            place = int(np.searchsorted(alerts, wanted * n / 1000 + 1e-9, side="right")) - 1
            if place < 0 or (rows and rows[-1].alerts == alerts[place]):
                continue  # the highest scores are tied
            found, hits = int(alerts[place]), int(caught[place])
            rate = 1000 * found / n
            rows.append(
                Threshold(rate, float(cuts[place]), found, hits, hits / n_pos, hits / found)
            )
        return rows

    def calibration(self) -> list[Bin]:
        """Return at most ten bins of equally many rows, by predicted probability."""
        if not len(self.probabilities):
            return []
        n_bins = max(1, min(10, len(self.labels) // _FEWEST_IN_BIN))
        order = np.argsort(self.probabilities, kind="stable")
        bins = []
        for rows in np.array_split(order, n_bins):
            hits, n = int(self.labels[rows].sum()), len(rows)
            bins.append(Bin(float(self.probabilities[rows].mean()), hits / n, *_wilson(hits, n), n))
        return bins


@dataclass(frozen=True)
class TableFacts:
    """Everything that is known about a table's experiment beyond its trials."""

    data: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None
    scores: HeldOutScores | None = None
    warnings: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        data = self.data or {}
        found = [data.get("few_positives", ""), *data.get("warnings", ())]
        if self.summary and (auc := self.summary["winner"]["test_auc"]) >= profile.TOO_GOOD:
            found.append(
                f"A test AUC of {auc:.3f} is rare. Check that no column knows the label, for "
                "example one that is filled in after the event."
            )
        object.__setattr__(self, "warnings", tuple(filter(None, found)))


def read(folder: str | Path, fingerprint: str = "") -> TableFacts:
    """Read the files of an experiment's folder; what is missing or unreadable is None.

    A record about other data than those of the `fingerprint` is left out.
    """
    folder = Path(folder)
    data = profile.read(folder)
    if data and fingerprint and data.get("fingerprint") != fingerprint:
        data = None
    return TableFacts(data, read_summary(folder), _scores(folder))


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the comparison of the models; None if it is missing or unreadable."""
    try:
        found = json.loads((folder / "winner" / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    names = {"winner", "contenders", "skipped", "importance"}
    return found if isinstance(found, dict) and names <= found.keys() else None


def _scores(folder: Path) -> HeldOutScores | None:
    try:
        path = folder / "winner" / "test_scores.npz"
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: np.asarray(arrays[name]) for name in arrays.files}
            scores, labels = found["scores"].astype(np.float64), found["labels"] > 0
            probabilities = found.get("probabilities", np.empty(0)).astype(np.float64)
    except (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile, zlib.error):
        return None
    if labels.all() or not labels.any():
        return None
    return HeldOutScores(scores, labels, probabilities)


def _cumulative(
    scores: Array, labels: NDArray[np.bool_]
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct scores, the highest first, and the rows and positives at or above each."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    caught = np.cumsum(labels[order])[ends]
    return scores[order][ends], ends + 1, caught.astype(np.int64)


def _tpr(scores: Array, labels: NDArray[np.bool_]) -> Array:
    """Return the true positive rate at the false positive rates of `GRID`."""
    curve = ep.roc_curve(scores, labels)
    return np.asarray(np.interp(GRID, curve.fpr, curve.tpr), np.float64)


def _wilson(hits: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    z = 1.959964
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)

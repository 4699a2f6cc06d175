"""Evaluate files of predictions of any size: exact AUC, pairwise losses and ROC curve.

>>> rows = ep.PairAccumulator()
>>> rows.add([0.9, 0.2, 0.6, 0.6], [1, 0, 0, 1])
>>> evaluate(Predictions(rows)).auc
0.875
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import everypair as ep
from everypair.experiments.data import _chunks, _tables
from everypair.experiments.errors import UserError
from everypair.experiments.figures.output import styled
from everypair.experiments.figures.prediction_columns import (
    Classes,
    group_values,
    numbers,
    recognised,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Column names, in lower case, that are recognised if no column is given.
SCORES = ("score", "scores", "prediction", "predictions", "y_score", "y_pred", "probability")
LABELS = ("label", "labels", "target", "y_true", "y", "class")
# The losses of more rows than this take minutes, so that only one is computed if none is named.
ALL_LOSSES_UP_TO = 10_000_000
_POINTS_DRAWN = 2000  # at most, of an ROC curve


@dataclass(frozen=True)
class Predictions:
    """All rows of the files, and the names of their columns."""

    rows: ep.PairAccumulator
    columns: dict[str, str] = field(default_factory=dict)
    groups: int | None = None  # how many


@dataclass(frozen=True)
class Evaluation:
    """Measures of the scores. `losses` holds the mean over the pairs that count, by surrogate.

    `auc_interval` is DeLong's 95 % confidence interval; None with groups, or if a class has fewer
    than two rows of positive weight. `auc_bound` and `loss_bounds` are the largest errors, 0 if the
    results are exact. `by_group` holds the measures of each group that has pairs, if
    they were asked for.
    """

    rows: int
    positives: int
    negatives: int
    groups: int | None
    auc: float
    auc_interval: tuple[float, float] | None
    margin: float | None  # None: that of each surrogate
    losses: dict[str, float]
    auc_bound: float = 0.0
    loss_bounds: dict[str, float] = field(default_factory=dict)
    by_group: dict[int | str, Evaluation] | None = None


def read(
    paths: str | Path | Sequence[str | Path],
    *,
    scores: str | None = None,
    labels: str | None = None,
    weights: str | None = None,
    group: str | None = None,
    positive: str | None = None,
    bounded: bool = False,
    advance: Callable[[float], None] = lambda amount: None,
) -> Predictions:
    """Read predictions from CSV, Parquet or Arrow files, chunk by chunk.

    Memory is that of the rows (4 bytes each for float32 scores, 8 for float64) and of two chunks.

    Parameters
    ----------
    paths : path, or several
        Files, or patterns such as ``"part-*.parquet"``. All must have the same columns.
    scores, labels : str, optional
        Columns. The default is a column with a usual name: see `SCORES` and `LABELS`.
    weights, group : str, optional
        Columns. By default all rows have the same weight, and all pairs count.
    positive : str, optional
        The positive label. The default is 1, true or yes, or else the rarer label.
    bounded : bool
        Whether to count scores in buckets instead of keeping them: constant memory, and results
        with bounds of their errors. Not with weights or groups.
    advance : callable
        Called with the number of bytes of each chunk.
    """
    if bounded and (weights is not None or group is not None):
        raise UserError("--bounded must be used without --weights and --group.")
    files = _chunks.files_of([paths] if isinstance(paths, str | Path) else paths)
    present = _chunks.column_names(files[0])
    scores = scores or recognised(present, SCORES, "scores", files[0])
    labels = labels or recognised(present, LABELS, "labels", files[0])
    named = {"scores": scores, "labels": labels, "weights": weights, "group": group}
    columns = {role: name for role, name in named.items() if name is not None}
    for path in files:
        names = present if path is files[0] else _chunks.column_names(path)
        _tables.require_columns(names, list(columns.values()), path)
    rows = ep.PairAccumulator(mode="bounded" if bounded else "exact")
    classes, groups = Classes(labels), set[Any]()
    for path in files:
        done, size = 0.0, path.stat().st_size
        for chunk in _chunks.chunks(path, list(columns.values())):
            frame, where = chunk.frame, chunk.start
            given = {
                "weights": None if weights is None else numbers(frame[weights], "weights", chunk),
                "groups": None if group is None else group_values(frame[group], chunk),
            }
            found = numbers(frame[scores], "scores", chunk)
            is_second = classes.numbers(frame[labels], chunk)
            if given["groups"] is not None:
                groups.update(np.unique(given["groups"]).tolist())
            try:
                rows.add(found, is_second, **given)
            except ValueError as error:  # infinite scores, negative weights
                raise UserError(f"{path}, rows from {where + 1}: {error}") from error
            advance((chunk.share - done) * size)
            done = chunk.share
    name, swap = classes.positive(positive, rows, files[0])
    if swap:
        rows.swap_classes()
    columns["positive"] = f"{labels} = {name}"
    return Predictions(rows, columns, None if group is None else len(groups))


def evaluate(
    predictions: Predictions,
    *,
    margin: float | None = None,
    losses: Sequence[str] | None = None,
    by_group: bool = False,
) -> Evaluation:
    """Return the exact AUC and the mean of surrogates over all pairs.

    Parameters
    ----------
    predictions : Predictions
    margin : float, optional
        The default is that of each surrogate.
    losses : sequence of str, optional
        The surrogates. By default all of them (of buckets: those made of polynomials), or the
        squared hinge alone for more than `ALL_LOSSES_UP_TO` rows.
    by_group : bool
        Whether to evaluate each group as well.
    """
    rows = predictions.rows
    if losses is None:
        losses = ep.surrogates.names()
        if rows.mode == "bounded":
            losses = tuple(name for name in losses if ep.surrogates.get(name).is_polynomial)
        elif rows.n_rows > ALL_LOSSES_UP_TO:
            losses = ("squared_hinge",)
    found = _evaluation(rows.result(losses, margin=margin), predictions.groups, margin)
    if not by_group:
        return found
    each = rows.result_by_group(losses, margin=margin)
    parts = {key: _evaluation(result, None, margin) for key, result in each.items()}
    return Evaluation(**{**vars(found), "by_group": parts})


def curve(predictions: Predictions) -> ep.RocCurve:
    """Return the ROC curve of all rows, across groups."""
    scores, positive, weights = predictions.rows.rows()
    return ep.roc_curve(scores, positive, weights=weights)


def _evaluation(result: ep.StreamResult, groups: int | None, margin: float | None) -> Evaluation:
    interval = None
    if result.low is not None and result.high is not None:
        interval = (result.low, result.high)
    n_pos, n_neg = result.n_pos, result.n_neg
    return Evaluation(
        n_pos + n_neg, n_pos, n_neg, groups, result.auc, interval, margin, result.losses,
        result.auc_bound, result.loss_bounds,
    )  # fmt: skip


def draw(curve: ep.RocCurve, found: Evaluation) -> Figure:
    """Draw the ROC curve."""
    from matplotlib.figure import Figure

    fpr, tpr = curve.fpr, curve.tpr
    if fpr.size > _POINTS_DRAWN:  # points at about equal distances along the curve
        length = fpr + tpr
        kept = np.unique(np.searchsorted(length, np.linspace(0.0, length[-1], _POINTS_DRAWN)))
        fpr, tpr = fpr[kept], tpr[kept]
    # With groups, the AUC counts pairs inside groups and is not the area under this curve.
    within = "" if found.groups is None else " inside groups; the curve is over all rows"
    with styled():
        figure = Figure(figsize=(5.2, 5), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle="--")
        axes.plot(fpr, tpr, color="#0b62c4", linewidth=2)
        if not within:
            axes.fill_between(fpr, tpr, color="#0b62c4", alpha=0.08)
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
        axes.set_xlabel(f"false positive rate ({found.negatives:,} negatives)")
        axes.set_ylabel(f"true positive rate ({found.positives:,} positives)")
        axes.set_title(f"AUC {found.auc:.4f}{within}", fontsize=9 if within else 11)
    return figure


def curve_rows(curve: ep.RocCurve) -> bytes:
    """Return every point of the curve as CSV."""
    text, header = io.BytesIO(), "fpr,tpr,threshold"
    columns = np.column_stack([np.asarray(column, np.float64) for column in curve])
    np.savetxt(text, columns, fmt="%.17g", delimiter=",", header=header, comments="")
    return text.getvalue()

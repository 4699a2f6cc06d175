"""Evaluate a file of predictions: exact AUC or concordance, pairwise losses and ROC curve.

>>> scored = Predictions(np.array([0.9, 0.2, 0.6, 0.6]), np.array([True, False, False, True]))
>>> evaluate(scored).auc
0.875
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import everypair as ep
from everypair.experiments.data import _tables
from everypair.experiments.errors import UserError
from everypair.experiments.figures.output import styled
from everypair.experiments.plan import TableFile

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# Column names, in lower case, that are recognised if no column is given.
SCORES = ("score", "scores", "prediction", "predictions", "y_score", "y_pred", "probability")
LABELS = ("label", "labels", "target", "y_true", "y", "class")
TIMES = ("time", "times", "duration", "survival_time", "label", "labels", "target", "y_true", "y")
EVENTS = ("event", "events", "observed", "died", "death", "status")
Pairs = Literal["binary", "ordered", "survival"]
_POINTS_DRAWN = 2000  # at most, of an ROC curve


@dataclass(frozen=True)
class Predictions:
    """Scores and labels of the rows, and the names of their columns in the file.

    Labels are bools, True for positive rows; real targets if `pairs` is "ordered"; columns (time,
    event), or times that are negative where they are censored, if it is "survival".
    """

    scores: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[Any] | None = None
    groups: NDArray[np.int64] | None = None
    columns: dict[str, str] | None = None
    pairs: Pairs = "binary"


@dataclass(frozen=True)
class Evaluation:
    """Measures of the scores. `losses` holds the mean over the pairs that count, by surrogate.

    `auc` is the concordance index if `pairs` is not "binary"; then the numbers of positives and
    negatives are None. `auc_interval` is DeLong's 95 % confidence interval; None with groups,
    without two classes, or if a class has fewer than two rows of positive weight. With groups,
    `group_aucs` has the means of the AUCs of the groups: "groups", and "rows" weighted by rows.
    """

    rows: int
    positives: int | None
    negatives: int | None
    groups: int | None
    auc: float
    auc_interval: tuple[float, float] | None
    margin: float | None  # None: that of each surrogate
    losses: dict[str, float]
    pairs: Pairs = "binary"
    group_aucs: dict[str, float] | None = None


def read(
    path: str | Path,
    *,
    scores: str | None = None,
    labels: str | None = None,
    weights: str | None = None,
    group: str | None = None,
    positive: str | None = None,
    pairs: Pairs = "binary",
    events: str | None = None,
) -> Predictions:
    """Read predictions from a CSV or Parquet file.

    Parameters
    ----------
    path : path
    scores, labels : str, optional
        Columns. The default is a column with a usual name: see `SCORES`, `LABELS` and `TIMES`.
    weights, group : str, optional
        Columns. By default all rows have the same weight, and all pairs count.
    positive : str, optional
        The positive label. The default is 1, true or yes, or else the rarer label.
    pairs : {"binary", "ordered", "survival"}
        What the labels are: two classes, real targets, or times.
    events : str, optional
        Column with 1 for an event and 0 for a censored time. The default is the column with a usual
        name, see `EVENTS`; without one, negative times are censored.
    """
    frame = _tables.read(path)
    survival = pairs == "survival"
    scores = scores or _recognised(frame, SCORES, "scores", path)
    labels = labels or _recognised(frame, TIMES if survival else LABELS, "labels", path)
    if events is not None and not survival:
        raise UserError(f"--events must come with --pairs survival; got --pairs {pairs}.")
    if survival and events is None and any(str(name).lower() in EVENTS for name in frame):
        events = _recognised(frame, EVENTS, "events", path)
    named = {"scores": scores, "labels": labels, "events": events}
    named |= {"weights": weights, "group": group}
    columns = {role: name for role, name in named.items() if name is not None}
    _tables.require_columns(frame, list(columns.values()), path)
    target: NDArray[Any]
    if pairs == "binary":
        table = TableFile(str(path), labels, positive=positive)
        target, columns["positive"] = _tables.two_classes(frame[labels], table)
    else:
        target = _numbers(frame[labels], f"{path}: labels column")
    if events is not None:
        target = np.column_stack([target, _numbers(frame[events], f"{path}: events column")])
    return Predictions(
        scores=_numbers(frame[scores], f"{path}: scores column"),
        labels=target,
        weights=None if weights is None else _numbers(frame[weights], f"{path}: weights column"),
        groups=None if group is None else _tables.group_codes(frame[group], path),
        columns=columns,
        pairs=pairs,
    )


def evaluate(predictions: Predictions, *, margin: float | None = None) -> Evaluation:
    """Return the exact AUC and the mean of every surrogate over all pairs."""
    p = predictions
    options: dict[str, Any] = {"weights": p.weights, "groups": p.groups, "pairs": p.pairs}
    losses = {
        name: ep.pair_loss(p.scores, p.labels, surrogate=name, margin=margin, **options)
        for name in ep.surrogates.names()
    }
    n, n_pos = len(p.labels), int(p.labels.sum()) if p.pairs == "binary" else None
    auc, groups, means = ep.auc(p.scores, p.labels, **options), None, None
    if p.groups is not None:
        groups = len(np.unique(p.groups))
        means = {
            "groups": ep.auc(p.scores, p.labels, average="groups", **options),
            "rows": ep.auc(p.scores, p.labels, average="rows", **options),
        }
    return Evaluation(
        rows=n, positives=n_pos, negatives=None if n_pos is None else n - n_pos, groups=groups,
        auc=auc, auc_interval=_interval(p), margin=margin, losses=losses,
        pairs=p.pairs, group_aucs=means,
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


def _interval(p: Predictions) -> tuple[float, float] | None:
    if p.pairs != "binary" or p.groups is not None:
        return None
    kept = slice(None) if p.weights is None else p.weights > 0
    n_pos, n_neg = p.labels[kept].sum(), (~p.labels[kept]).sum()
    if min(n_pos, n_neg) < 2:
        return None
    found = ep.delong(p.scores, p.labels, weights=p.weights)
    return found.low, found.high


def _recognised(frame: pd.DataFrame, names: tuple[str, ...], role: str, path: str | Path) -> str:
    present = {str(column).lower(): str(column) for column in frame.columns}
    found = [present[name] for name in names if name in present]
    if len(found) == 1:
        return found[0]
    columns = ", ".join(map(repr, found or map(str, frame.columns[:12])))
    reason = "several columns have a usual name" if found else "no column has a usual name"
    raise UserError(f"{path}: --{role} must name a column, because {reason}: {columns}.")


def _numbers(column: pd.Series[Any], where: str) -> NDArray[Any]:
    """Convert a column to floating-point numbers; raise UserError if a row holds none."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    missing = np.flatnonzero(numbers.isna().to_numpy())
    if missing.size:
        got = column.iloc[missing[0]]
        what = "nothing" if pd.isna(got) else repr(str(got))
        raise UserError(
            f"{where} {column.name!r} must hold a number in every row; got {what} in row "
            f"{missing[0] + 1} ({missing.size} such rows). Remove them, or choose another column."
        )
    array: NDArray[Any] = numbers.to_numpy()
    return array if array.dtype.kind == "f" else array.astype(np.float64)

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

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

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
    than two rows of positive weight. `by_group` holds the measures of each group that has pairs, if
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
    by_group: dict[int | str, Evaluation] | None = None


def read(
    paths: str | Path | Sequence[str | Path],
    *,
    scores: str | None = None,
    labels: str | None = None,
    weights: str | None = None,
    group: str | None = None,
    positive: str | None = None,
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
    advance : callable
        Called with the number of bytes of each chunk.
    """
    files = _chunks.files_of([paths] if isinstance(paths, str | Path) else paths)
    present = _chunks.column_names(files[0])
    scores = scores or _recognised(present, SCORES, "scores", files[0])
    labels = labels or _recognised(present, LABELS, "labels", files[0])
    named = {"scores": scores, "labels": labels, "weights": weights, "group": group}
    columns = {role: name for role, name in named.items() if name is not None}
    for path in files:
        names = present if path is files[0] else _chunks.column_names(path)
        _tables.require_columns(names, list(columns.values()), path)
    rows, classes, groups = ep.PairAccumulator(), _Classes(labels), set[Any]()
    for path in files:
        done, size = 0.0, path.stat().st_size
        for chunk in _chunks.chunks(path, list(columns.values())):
            frame, where = chunk.frame, chunk.start
            given = {
                "weights": None if weights is None else _numbers(frame[weights], "weights", chunk),
                "groups": None if group is None else _groups(frame[group], chunk),
            }
            numbers = _numbers(frame[scores], "scores", chunk)
            is_second = classes.numbers(frame[labels], chunk)
            if given["groups"] is not None:
                groups.update(np.unique(given["groups"]).tolist())
            try:
                rows.add(numbers, is_second, **given)
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
        The surrogates. By default all of them, or the squared hinge alone for more than
        `ALL_LOSSES_UP_TO` rows.
    by_group : bool
        Whether to evaluate each group as well.
    """
    rows = predictions.rows
    if losses is None:
        is_large = rows.n_rows > ALL_LOSSES_UP_TO
        losses = ("squared_hinge",) if is_large else ep.surrogates.names()
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
        n_pos + n_neg, n_pos, n_neg, groups, result.auc, interval, margin, result.losses
    )


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


class _Classes:
    """The two values of a label column, found as the chunks arrive."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.values: list[str] = []

    def numbers(self, labels: pd.Series[Any], chunk: _chunks.Chunk) -> NDArray[np.bool_]:
        """Return whether each row has the second of the values found so far."""
        where = f"{chunk.path}: label column {self.column!r}"
        if labels.isna().any():
            first = chunk.start + int(labels.isna().argmax()) + 1
            raise UserError(f"{where} is empty in row {first}; remove such rows, or fill them in")
        array = labels.to_numpy()
        if array.dtype.kind not in "biuf":
            array = labels.astype(str).to_numpy()
        rest, is_second = np.ones(array.shape[0], bool), np.zeros(array.shape[0], bool)
        while rest.any():
            value = array[rest.argmax()]
            same = array == value
            is_second[same] = self._number(str(value), where, chunk.start + int(rest.argmax()) + 1)
            rest &= ~same
        return is_second

    def _number(self, value: str, where: str, row: int) -> int:
        for i, known in enumerate(self.values):
            if known == value or _tables.same_number(known, value):
                return i
        if len(self.values) == 2:
            first, second = self.values
            raise UserError(
                f"{where} must hold exactly two values; it holds {first!r}, {second!r} and, in row "
                f"{row}, {value!r}. Make it two classes, or choose another column"
            )
        self.values.append(value)
        return len(self.values) - 1

    def positive(
        self, wanted: str | None, rows: ep.PairAccumulator, path: Path
    ) -> tuple[str, bool]:
        """Return the positive value, and whether it is the first of the two."""
        where = f"{path}: label column {self.column!r}"
        if len(self.values) < 2:
            raise UserError(
                f"{where} must hold exactly two values; it holds 1: {self.values[0]!r} "
                f"({rows.n_rows}). Make it two classes, or choose another column"
            )
        counts = dict(zip(self.values, (rows.n_neg, rows.n_pos), strict=True))
        value = _tables.positive_value(counts, wanted, where)
        return value, value == self.values[0]


def _recognised(present: list[str], names: tuple[str, ...], role: str, path: Path) -> str:
    lower = {column.lower(): column for column in present}
    found = [lower[name] for name in names if name in lower]
    if len(found) == 1:
        return found[0]
    columns = ", ".join(map(repr, found or present[:12]))
    reason = "several columns have a usual name" if found else "no column has a usual name"
    raise UserError(f"{path}: --{role} must name a column, because {reason}: {columns}.")


def _groups(column: pd.Series[Any], chunk: _chunks.Chunk) -> NDArray[Any]:
    """Return the groups as integers or strings; raise UserError if a row has none."""
    if column.isna().any():
        raise UserError(
            f"{chunk.path}: group column {column.name!r} must hold a value in every row; got "
            f"nothing in row {chunk.start + int(column.isna().argmax()) + 1}"
        )
    array = column.to_numpy()
    return array if array.dtype.kind in "iu" else np.asarray(column.astype(str), dtype=np.str_)


def _numbers(column: pd.Series[Any], role: str, chunk: _chunks.Chunk) -> NDArray[Any]:
    """Convert a column to floating-point numbers; raise UserError if a row holds none."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    if numbers.isna().any():
        i = int(numbers.isna().argmax())
        got = column.iloc[i]
        what = "nothing" if pd.isna(got) else repr(str(got))
        raise UserError(
            f"{chunk.path}: {role} column {column.name!r} must hold a number in every row; got "
            f"{what} in row {chunk.start + i + 1}. Remove such rows, or choose another column."
        )
    array: NDArray[Any] = numbers.to_numpy()
    return array if array.dtype.kind == "f" else array.astype(np.float64)

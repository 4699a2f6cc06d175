"""The ROC curve of a file of predictions: its points, and the plot."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

import everypair as ep
from everypair.experiments.figures.output import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from everypair.experiments.figures.evaluation import Evaluation, Predictions

_POINTS_DRAWN = 2000  # at most


def curve(predictions: Predictions) -> ep.RocCurve:
    """Return the ROC curve of all rows, across groups."""
    rows = predictions.rows.rows()
    return ep.roc_curve(rows.scores, rows.labels, weights=rows.weights)


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

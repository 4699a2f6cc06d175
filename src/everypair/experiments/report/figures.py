"""The report's pictures for papers and slides: figure 3, learning curves, ROC curves."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from everypair.experiments.report import curves, wording
from everypair.experiments.report.selection import Contender
from everypair.experiments.report.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "saved"]

# The page's colours on white: apart for colour-blind readers too.
COLOURS = ("#0b6bb8", "#c2570c", "#0f8a6d", "#8a4fb0", "#8f7200", "#b8325f")
STYLES = {"subtrain": "--", "validation": "-", "test": ":"}


def figure3(study: Study) -> Figure:
    """Draw the paper's figure 3: test AUC, mean ± sd and seeds, a panel a task."""
    n_who = len(study.contenders)
    figure = _figure(3.0, 0.75 + 0.32 * n_who, study, columns=_n_columns(study))
    for axes, (task, summed) in zip(figure.axes, study.by_task.items(), strict=False):
        for summary in summed:
            height = -study.contenders.index(summary.contender)
            shade = _colour(study, summary.contender)
            values = [record.test_auc for record in summary.chosen]
            axes.plot(values, [height] * len(values), ".", color=shade, alpha=0.5, markersize=5)
            axes.errorbar(
                summary.mean,
                height,
                xerr=None if math.isnan(summary.sd) else summary.sd,
                fmt="o",
                color=shade,
                capsize=3,
            )
        names = [wording.contender(who) for who in study.contenders]
        axes.set_yticks([-k for k in range(n_who)], names)
        axes.set_title(wording.task(task, study.settings), fontsize=9)
        axes.set_ylim(-n_who + 0.4, 0.6)
        axes.locator_params(axis="x", nbins=5)  # more would run into each other
        axes.label_outer()
        axes.tick_params(labelbottom=True)
    figure.supxlabel("test AUC at the greatest validation AUC, mean ± sd over seeds", fontsize=9)
    return figure


def learning_curves(study: Study) -> Figure:
    """Draw AUC by epoch of the selected trials: a row a task, a column a contender."""
    figure = _figure(2.6, 1.9, study, columns=len(study.contenders), cells="contender")
    for row, (task, summed) in enumerate(study.by_task.items()):
        for summary in summed:
            column = study.contenders.index(summary.contender)
            axes = figure.axes[row * len(study.contenders) + column]
            shade = _colour(study, summary.contender)
            for record in summary.chosen:
                values = curves.column(record, "validation_auc")
                axes.plot(values, color=shade, alpha=0.3, linewidth=0.7)
            for part, style in STYLES.items():
                values = curves.mean_column(summary, f"{part}_auc")
                axes.plot(values, style, color=shade, label=f"{part} AUC")
            axes.set_title(wording.contender(summary.contender), fontsize=8)
            if column == 0:
                axes.set_ylabel(wording.task(task, study.settings), fontsize=8)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("epoch", fontsize=9)
    return figure


def roc(study: Study) -> Figure:
    """Draw the mean ROC curves of the selected models, a panel a task."""
    figure = _figure(3.0, 3.0, study, columns=_n_columns(study))
    for axes, (task, summed) in zip(figure.axes, study.by_task.items(), strict=False):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, linestyle="--")
        for summary in summed:
            if curve := curves.mean_roc(summary):
                label = f"{wording.contender(summary.contender)}, {wording.auc(summary.mean)}"
                axes.plot(curves.FPR, curve, color=_colour(study, summary.contender), label=label)
        axes.set_title(wording.task(task, study.settings), fontsize=9)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="lower right", fontsize=7, frameon=False)
    figure.supxlabel("false positive rate on the test set", fontsize=9)
    figure.supylabel("true positive rate, mean over seeds", fontsize=9)
    return figure


FIGURES: dict[str, Callable[[Study], Figure]] = {
    "figure3": figure3,
    "curves": learning_curves,
    "roc": roc,
}


def saved(figure: Figure, kind: str) -> bytes:
    """Return the picture as a file's contents, the same for the same records."""
    import matplotlib

    undated = {"svg": {"Date": None}, "png": {}}[kind]
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "everypair"}):
        figure.savefig(content, format=kind, dpi=150, metadata=undated)
    return content.getvalue()


def _n_columns(study: Study) -> int:
    """Return the number of imratios where there are several data sets, else at most three."""
    n_data = len({task.data for task in study.by_task})
    return math.ceil(len(study.by_task) / n_data) if n_data > 1 else min(3, len(study.by_task))


def _figure(
    width: float, height: float, study: Study, *, columns: int, cells: str = "task"
) -> Figure:
    """Return a grid of panels, one a task or one a task and contender; spare ones are hidden."""
    from matplotlib.figure import Figure

    n = len(study.by_task) * (columns if cells == "contender" else 1)
    rows = math.ceil(n / columns)
    figure = Figure(figsize=(1.6 + width * columns, 0.6 + height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for k, axes in enumerate(panels.flat):
        axes.set_visible(k < n)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
    return figure


def _colour(study: Study, who: Contender) -> str:
    return COLOURS[study.contenders.index(who) % len(COLOURS)]

"""The plots about a table's winner: each function draws one panel on matplotlib axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from everypair.experiments.report.panels import CARD, COLOURS, SOFT
from everypair.experiments.report.table_facts import GRID, HeldOutScores

MOST_COLUMNS = 15
"""The plot of importance shows so many columns."""

_SHADE = COLOURS[0]


def roc(axes: Axes, scores: HeldOutScores) -> None:
    """Draw the ROC curve with its 95 % band."""
    curve, low, high = scores.roc()
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle="--")
    axes.fill_between(GRID, low, high, color=_SHADE, alpha=0.2, linewidth=0)
    axes.plot(GRID, curve, color=_SHADE, label="share of positives caught")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set(xlabel="share of negatives flagged", ylabel="share of positives caught")


def precision_recall(axes: Axes, scores: HeldOutScores) -> None:
    """Draw precision against recall, and the share of positives, which is that of chance."""
    axes.axhline(scores.share, color=SOFT, linewidth=1, linestyle="--")
    axes.plot(GRID, scores.precision_recall(), color=_SHADE, label="precision")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.set(xlabel="share of positives caught (recall)", ylabel="precision of the alerts")


def calibration(axes: Axes, scores: HeldOutScores) -> None:
    """Draw observed shares of positives against predicted probabilities."""
    bins = scores.calibration()
    predicted = [one.predicted for one in bins]
    top = 1.05 * max([*predicted, *(one.high for one in bins)])
    axes.plot([0, top], [0, top], color=SOFT, linewidth=1, linestyle="--")
    for one in bins:
        axes.plot([one.predicted] * 2, [one.low, one.high], color=_SHADE, alpha=0.4, linewidth=4)
    axes.plot(
        *(predicted, [one.observed for one in bins]),
        "o",
        color=_SHADE,
        markeredgecolor=CARD,
        markersize=8,
    )
    axes.set(xlim=(0, top), ylim=(0, top))
    axes.set(xlabel="predicted probability", ylabel="observed share of positives")


def importance(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Draw the drop of the test AUC when the values of a column are permuted."""
    shown = list(rows[:MOST_COLUMNS])
    places = [-k for k in range(len(shown))]
    axes.barh(places, [row["drop"] for row in shown], 0.55, color=_SHADE, alpha=0.75)
    across = axes.get_yaxis_transform()
    box = {"facecolor": CARD, "edgecolor": "none", "pad": 0}  # hides the lines behind the text
    for place, row in zip(places, shown, strict=True):
        for x, text, side in (
            (0, _short(row["column"]), "left"),
            (1, f"{row['drop']:.3f}", "right"),
        ):
            axes.text(
                *(x, place + 0.45, text),
                transform=across,
                va="center",
                ha=side,
                fontsize=10.5,
                bbox=box,
            )
    axes.axvline(0, color=SOFT, linewidth=1)
    axes.set(yticks=[], ylim=(-len(shown) + 0.4, 0.8), xlabel="drop of the test AUC")
    axes.spines["left"].set_visible(False)


def importance_height(n: int) -> float:
    """Return the height of the plot of `n` columns, in points."""
    return 30.0 * min(n, MOST_COLUMNS) + 12


def _short(name: str) -> str:
    return name if len(name) <= 34 else name[:33] + "…"

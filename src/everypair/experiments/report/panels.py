"""The plots of the report: each function draws one panel on matplotlib axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from everypair.experiments.plan import Record
from everypair.experiments.report import wording
from everypair.experiments.report.selection import Comparison, Contender, Summary
from everypair.experiments.report.study import Study

# The colours of losses, distinct for colour-blind readers; page.css has them for both themes.
COLOURS = ("#0b6bb8", "#c2570c", "#0f8a6d", "#8a4fb0", "#8f7200", "#b8325f")
INK, SOFT, LINE, CARD, GOOD = "#1c2128", "#57606a", "#e3e0da", "#ffffff", "#0f7a5f"
STYLES = {"subtrain": "--", "validation": "-"}
Strip = tuple[str, str, str, float, tuple[float, float], Sequence[float]]
FPR = tuple(k / 100 for k in range(101))


def results(axes: Axes, study: Study, comparison: Comparison) -> None:
    """Draw test AUCs: mean, one standard deviation, and every seed."""
    rows = []
    for one in study.by_comparison[comparison]:
        ends = (one.mean - one.sd, one.mean + one.sd)
        names = wording.contender(one.contender), wording.spread(one.mean, one.sd)
        seeds = [record.test_auc for record in one.chosen]
        rows.append((*names, _colour(study, one.contender), one.mean, ends, seeds))
    _strips(axes, rows, within=(0, 1))
    axes.set_xlabel("test AUC")


def differences(axes: Axes, study: Study, comparison: Comparison) -> None:
    """Draw paired differences: mean, 95 % interval (cut off if very wide), and every seed."""
    gaps = [gap for gap in study.gaps if gap.comparison == comparison]
    widest = max((abs(x) for gap in gaps for x in (4 * gap.mean, *gap.values) if gap.n), default=1)
    rows = []
    for gap in gaps:
        name = f"{study.called(gap.first)} − {study.called(gap.second)}"
        shade = GOOD if gap.verdict in ("first", "second") else SOFT
        low, high = gap.interval or (math.nan, math.nan)
        ends = max(low, -widest), min(high, widest)
        rows.append((name, wording.signed(gap.mean), shade, gap.mean, ends, gap.values))
    axes.axvline(0, color=SOFT, linewidth=1)
    _strips(axes, rows, within=(-1, 1))
    axes.set_xlabel("difference in test AUC")


def learning(axes: Axes, study: Study, summary: Summary) -> None:
    """Draw AUC by epoch: means over seeds, and the validation AUC of each seed."""
    shade = _colour(study, summary.contender)
    for record in summary.chosen:
        auc, best = column(record, "validation_auc"), record.best_epoch
        axes.plot(auc, color=shade, alpha=0.4, linewidth=1)
        if 0 <= best < len(auc):
            [ring] = axes.plot(best, auc[best], "o", color=shade, zorder=3, markersize=6)
            ring.set(markerfacecolor=CARD, markeredgewidth=1.6)
    _means(axes, summary, "auc", shade)
    values = [
        value
        for other in study.by_comparison[summary.comparison]
        for record in other.chosen
        for part in STYLES
        for value in column(record, f"{part}_auc")
    ]
    axes.set(ylabel="AUC", ylim=limits(values, within=(0, 1)))


def training_loss(axes: Axes, study: Study, summary: Summary) -> None:
    """Draw the loss by epoch, means over seeds, on a log scale if it falls by a factor of 10."""
    values = _means(axes, summary, "loss", _colour(study, summary.contender))
    axes.set_ylabel("loss")
    low, high = min(values, default=0), max(values, default=0)
    if 0 < 10 * low < high:
        axes.set_yscale("log", nonpositive="mask")
        axes.set(ylabel="loss, log scale", ylim=(low / 1.1, high * 1.1))
        steps = (1.0, 3.0) if high < 300 * low else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=steps, numticks=5))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()


def roc(axes: Axes, study: Study, comparison: Comparison) -> None:
    """Draw the mean ROC curves of the selected models on the test set."""
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle="--")
    for k, one in enumerate(study.by_comparison[comparison]):
        if curve := mean_roc(one):
            name = f"{wording.contender(one.contender)}, AUC {wording.auc(one.mean)}"
            shade, style = _colour(study, one.contender), ("-", "--", ":")[k % 3]
            axes.plot(FPR, curve, style, color=shade, label=name)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="false positive rate", ylabel="true positive rate")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="lower right")


def strips_height(n: int) -> float:
    """Return the height of a panel of `n` strips, in points."""
    return 44.0 * n + 4


def column(record: Record, name: str) -> list[float]:
    """Return one column of a history, with NaN for missing values."""
    values = record.history.get(name) or [math.nan] * len(record.history.get("epoch", ()))
    return [math.nan if value is None else float(value) for value in values]


def mean_column(summary: Summary, name: str) -> list[float]:
    """Return the mean of the chosen trials by epoch, up to the last epoch that all of them have."""
    columns = [column(record, name) for record in summary.chosen]
    return [fmean(values) for values in zip(*columns, strict=False)]


def mean_roc(summary: Summary) -> list[float]:
    """Return the mean true positive rate of the chosen models at `FPR`; empty without curves."""
    found = [record.roc for record in summary.chosen if len(record.roc[0])]
    if not found:
        return []
    heights = np.mean([np.interp(FPR, *curve) for curve in found], axis=0)
    return [0.0, *map(float, heights[1:])]


def limits(values: Iterable[float], *, within: tuple[float, float]) -> tuple[float, float]:
    """Return a range that holds the finite values with a small margin, inside given bounds."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return within
    low, high = min(finite), max(finite)
    margin = 0.08 * (high - low) or 0.01
    return max(within[0], low - margin), min(within[1], high + margin)


def _strips(axes: Axes, rows: Sequence[Strip], within: tuple[float, float]) -> None:
    """Draw rows of (name, value, colour, mean, interval, seeds), with the texts above the marks."""
    across = axes.get_yaxis_transform()  # x from 0 to 1 across the panel
    for k, (name, verdict, shade, mean, ends, seeds) in enumerate(rows):
        axes.plot(ends, (-k, -k), color=shade, linewidth=5, alpha=0.4, solid_capstyle="round")
        axes.plot(seeds, [-k] * len(seeds), "o", color=shade, alpha=0.55, markersize=5, mew=0)
        axes.plot(mean, -k, "o", color=shade, markersize=12, markeredgecolor=CARD, mew=2)
        for x, text, side in ((0, name, "left"), (1, verdict, "right")):
            covering = {"facecolor": CARD, "edgecolor": "none", "pad": 1}
            axes.text(x, 0.4 - k, text, transform=across, va="center", ha=side, bbox=covering)
    reached = [value for *_, mean, ends, seeds in rows for value in (mean, *ends, *seeds)]
    if within[0] < 0:  # differences are shown against zero
        reached.append(0.0)
    axes.set(xlim=limits(reached, within=within), ylim=(0.6 - len(rows), 0.65), yticks=[])
    axes.spines["left"].set_visible(False)


def _means(axes: Axes, summary: Summary, what: str, shade: str) -> list[float]:
    """Draw the means over seeds of the AUC or the loss by epoch; return the finite values."""
    drawn: list[float] = []
    for part, style in STYLES.items():
        values = mean_column(summary, f"{part}_{what}")
        if finite := [value for value in values if math.isfinite(value)]:
            axes.plot(values, style, color=shade, label=wording.PARTS[part])
            drawn += finite
    lengths = [len(column(record, f"validation_{what}")) for record in summary.chosen]
    axes.set(xlabel="epoch", xlim=(0, max([2, *lengths]) - 1))
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    return drawn


def _colour(study: Study, who: Contender) -> str:
    return COLOURS[study.contenders.index(who) % len(COLOURS)]

"""Plot time, and time relative to BCE, against the size of the batch, from the rows."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.rows import ROOT, KernelRow, Row

ASSETS = ROOT / "docs" / "assets"

# backend: label, colour, marker, line width
STYLES = {
    "torch naive": ("double sum, torch", "#c44e52", "v", 1.4),
    "LibAUC AUCM": ("LibAUC's AUCM", "#8172b3", "D", 1.4),
    "torch AUCM": ("AUCM's formula, torch", "#b8aed6", "d", 1.4),
    "everypair NumPy": ("everypair, NumPy only", "#7fb2e5", "o", 1.4),
    "torch paper": ("paper's algorithm, torch", "#dd8452", "s", 1.4),
    "torch BCE": ("logistic loss (torch BCE)", "#555555", "^", 1.8),
    "everypair": ("everypair", "#0b62c4", "o", 2.8),
}
# With a fixed salt and no date the same rows give the same file.
STYLE = {"font.size": 10, "svg.hashsalt": "everypair", "axes.edgecolor": "#999999"}
TICKS = ((1e-6, "1 µs"), (1e-5, "10 µs"), (1e-4, "100 µs"), (1e-3, "1 ms"))
TICKS += ((1e-2, "10 ms"), (1e-1, "100 ms"), (1.0, "1 s"), (10.0, "10 s"))


def panel(axes: Axes, rows: list[Row], share: float) -> None:
    for backend, (label, colour, marker, width) in STYLES.items():
        line = sorted((r for r in rows if r.backend == backend), key=lambda r: r.n)
        if not line:
            continue
        n = [r.n for r in line]
        axes.plot(
            n,
            [r.median for r in line],
            color=colour,
            marker=marker,
            markersize=3 + width,
            linewidth=width,
            label=label,
            zorder=2 + width,
        )
        low, high = [r.p20 for r in line], [r.p80 for r in line]
        axes.fill_between(n, low, high, color=colour, alpha=0.15, linewidth=0)
    finish(axes, f"{share:.3g} % positives".replace(" %", "\u2009%"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: dict(TICKS).get(value, "")))


def finish(axes: Axes, title: str) -> None:
    """Set title, logarithmic scales and grid."""
    axes.set(xscale="log", yscale="log", xlabel="rows in the batch")
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(LogLocator(numticks=9))
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw_kernel(rows: list[KernelRow], share: float = 0.1) -> list[Path]:
    """Draw docs/assets/kernel.svg: time relative to BCE, one panel for each instruction set."""
    rows = sorted((r for r in rows if r.positives == share), key=lambda r: r.n)
    if not rows:
        return []
    sets = list(dict.fromkeys(r.isa for r in rows))
    questions = list(dict.fromkeys(r.question for r in rows))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        grid = figure.subplots(1, len(sets), sharex=True, sharey=True, squeeze=False)[0]
        colours = mpl.colormaps["tab20"].colors
        for axes, isa in zip(grid, sets, strict=True):
            for question, colour in zip(questions, colours, strict=False):
                line = [r for r in rows if (r.isa, r.question) == (isa, question)]
                axes.plot(
                    [r.n for r in line],
                    [r.ratio for r in line],
                    color=colour,
                    marker="o",
                    markersize=3,
                    linewidth=2.6 if question == "squared_hinge" else 1.3,
                    label=question,
                )
            axes.axhline(1, color="#555555", linewidth=0.8, linestyle=":")
            finish(axes, isa)
        grid[0].set_ylabel(f"time / time of BCE, one thread, {100 * share:g} % positives")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
        path = ASSETS / "kernel.svg"
        figure.savefig(path, metadata={"Date": None})
    return [path]


def draw(rows: list[Row]) -> list[Path]:
    """Draw docs/assets/time.svg and .png."""
    timed = [r for r in rows if r.suite == "loss_and_grad" and r.threads == 1]
    if not timed:
        return []
    shares = sorted({r.positives for r in timed}, reverse=True)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        grid = figure.subplots(1, len(shares), sharex=True, sharey=True, squeeze=False)[0]
        for axes, share in zip(grid, shares, strict=True):
            panel(axes, [r for r in timed if r.positives == share], 100 * share)
        grid[0].set_ylabel("loss + gradient, one thread")
        handles, labels = grid[-1].get_legend_handles_labels()
        figure.legend(
            handles[::-1], labels[::-1], loc="outside upper center", ncols=4, frameon=False
        )
        where = timed[0]
        figure.supxlabel(
            f"{where.machine}, {where.isa}, float32, torch {where.torch}; median, band p20 to p80",
            fontsize=8,
            color="#777777",
        )
        ASSETS.mkdir(parents=True, exist_ok=True)
        paths = [ASSETS / "time.svg", ASSETS / "time.png"]
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=160)
    return paths

"""Timings as a log-log plot and as rows of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everypair.experiments.figures.output import styled
from everypair.experiments.figures.timing import CONTENDERS, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour, marker, line width. A contender that is not listed gets matplotlib's next colour.
_STYLES: dict[str, tuple[str | None, str, float]] = {
    "naive": ("#c44e52", "v", 1.4),
    "paper": ("#b5651d", "P", 1.8),
    "numpy": ("#7fb2e5", "o", 1.4),
    "native": ("#0b62c4", "o", 2.6),
    "torch": ("#2a9d8f", "s", 1.8),
    "naive_cuda": ("#dd8452", "v", 1.4),
    "cuda": ("#76b900", "s", 1.8),
    "logistic": ("#555555", "^", 1.8),
    "logistic_cuda": ("#aaaaaa", "^", 1.8),
    "aucm": ("#8172b3", "D", 1.4),
}
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def duration(seconds: float) -> str:
    """Format seconds in a suitable unit.

    >>> duration(0.00123), duration(12.0), duration(0.1)
    ('1.2 ms', '12 s', '100 ms')
    """
    size, unit = next((u for u in _UNITS if seconds >= u[0]), _UNITS[-1])
    return f"{seconds / size:.{1 if seconds < 9.95 * size else 0}f} {unit}".replace(".0 ", " ")


def rows(results: Sequence[Result]) -> bytes:
    """Return the timings as CSV with one row per surrogate, contender and size."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["contender", "n", "seconds", "p20", "p80", "repeats", "slope", "surrogate", "threads"]
    )
    for result in results:
        for t in result.timings:
            shared = (result.slopes[t.contender], result.surrogate, result.threads)
            writer.writerow([t.contender, t.n, t.median, t.low, t.high, t.repeats, *shared])
    return text.getvalue().encode()


def draw(results: Sequence[Result]) -> Figure:
    """Draw time against n, both logarithmic, with fitted slopes: a panel for each surrogate."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(7.0 * len(results), 4.8), layout="constrained")
        for i, result in enumerate(results):
            _panel(figure.add_subplot(1, len(results), i + 1), result)
    return figure


def _panel(axes: Axes, result: Result) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for name, contender in CONTENDERS.items():
        timings = result.of(name)
        if not timings:
            continue
        colour, marker, width = _STYLES.get(name, (None, "x", 1.4))
        exponent = result.slopes[name]
        label = contender.label + ("" if exponent is None else f" (slope {exponent:.2f})")
        points = [(t.n, t.median, t.low, t.high) for t in timings]
        n, medians, low, high = zip(*points, strict=True)
        (line,) = axes.plot(n, medians, color=colour, marker=marker, linewidth=width)
        line.set(label=label, markersize=3 + width, zorder=2 + width)
        axes.fill_between(n, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="rows n, half of them positive")
    axes.set_ylabel("time of loss and gradient")
    threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
    axes.set_title(f"{result.surrogate.replace('_', ' ')}, {threads} on the CPU")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=14))
        axis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    axes.legend(loc="upper left", fontsize=8.5)

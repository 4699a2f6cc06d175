"""All plots of the report, drawn by matplotlib.

A plot is a function that draws one panel. The page shows panels as inline SVG, and the files for
papers and slides are grids of the same panels. Matplotlib is the one plotting system because those
files need it in any case; a second one for the page would have to repeat every plot.

On the page a panel takes its colours from CSS variables, so that it follows the light and the dark
theme, and its text stays text. Sizes are in points, and one point is one CSS pixel on the page.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everypair.experiments.report import panels, table_panels, wording
from everypair.experiments.report.panels import CARD, COLOURS, GOOD, INK, LINE, SOFT
from everypair.experiments.report.study import Study
from everypair.experiments.report.table_facts import HeldOutScores

Panel = Callable[[Axes], None]
Titled = Sequence[tuple[str, Panel | None]]

CSS = {colour: f"var(--c{k})" for k, colour in enumerate(COLOURS)}
CSS |= {INK: "var(--ink)", SOFT: "var(--soft)", LINE: "var(--line)"}
CSS |= {CARD: "var(--card)", GOOD: "var(--good)"}
RC: dict[Any, Any] = {
    **dict.fromkeys(("axes.edgecolor", "grid.color"), LINE),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), SOFT),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.titlesize": 12,
    "font.size": 11.5,
    "legend.fontsize": 11,
    "lines.linewidth": 2,
    "svg.hashsalt": "everypair",
    "text.color": INK,
    "text.parse_math": False,  # names of files and losses may hold dollar signs
}


def figure(
    titled: Titled, width: float, height: float, left: float = 54, *, columns: int = 1
) -> Figure:
    """Draw titled panels of equal size in a grid.

    Parameters
    ----------
    titled : sequence of (title, function that draws on axes)
        Row by row; None leaves a place empty.
    width, height : float
        Size of one panel inside its axes, in points.
    left : float
        Room for tick labels at the left of each panel, in points.
    """
    right, bottom = 12, 38
    top = 10 + 20 * max(len(title.splitlines()) for title, _ in titled)
    wide, high = left + width + right, top + height + bottom
    total = columns * wide, math.ceil(len(titled) / columns) * high
    with matplotlib.rc_context(RC):
        drawn = Figure(figsize=(total[0] / 72, total[1] / 72))
        for place, (title, draw) in enumerate(titled):
            if draw is not None:
                row, column = divmod(place, columns)
                corner = column * wide + left, total[1] - row * high - top - height
                box = np.divide([*corner, width, height], [*total, *total])
                axes = drawn.add_axes(tuple(box))
                axes.set_title(title)
                axes.locator_params(nbins=5, min_n_ticks=3)
                draw(axes)
    return drawn


def file_results(study: Study) -> Figure:
    """Draw the paper's figure 3: the test AUCs of all comparisons."""
    n = max(map(len, study.by_comparison.values()))
    return _by_comparison(study, panels.results, 300, panels.strips_height(n), left=14)


def file_learning(study: Study) -> Figure:
    """Draw AUC by epoch: one row for each comparison, one column for each contender."""
    found = {(one.comparison, one.contender): one for one in study.summed}
    titled = [
        (
            f"{wording.comparison(comparison, study.settings)}\n{wording.contender(who)}",
            partial(panels.learning, study=study, summary=one) if one else None,
        )
        for comparison in study.by_comparison
        for who in study.contenders
        for one in [found.get((comparison, who))]
    ]
    drawn = figure(titled, 250, 150, columns=len(study.contenders))
    if drawn.axes[0].get_legend_handles_labels()[1]:
        drawn.axes[0].legend(loc="lower right", fontsize=9, frameon=False)
    return drawn


def file_roc(study: Study) -> Figure:
    """Draw the ROC curves of all comparisons."""
    return _by_comparison(study, panels.roc, 300, 300)


def file_winner(scores: HeldOutScores) -> Figure:
    """Draw the curves of a table's winner on the test rows."""
    titled: list[tuple[str, Panel | None]] = [
        ("ROC curve", partial(table_panels.roc, scores=scores)),
        ("Precision and recall", partial(table_panels.precision_recall, scores=scores)),
    ]
    if scores.calibration():
        titled.append(("Calibration", partial(table_panels.calibration, scores=scores)))
    return figure(titled, 280, 250, columns=len(titled))


FIGURES = {"figure3": file_results, "curves": file_learning, "roc": file_roc}


def saved(drawn: Figure, kind: str, style: dict[Any, Any] = RC) -> bytes:
    """Return the figure as the content of a file, the same for the same records."""
    content = io.BytesIO()
    with matplotlib.rc_context(style):
        undated = {"Date": None} if kind == "svg" else {}
        drawn.savefig(content, format=kind, dpi=110, metadata=undated)
    return content.getvalue()


def inline(drawn: Figure, name: str) -> str:
    """Return the figure as an SVG element for the page.

    The names must differ between the figures of a page, so that the ids inside them differ.
    """
    for patch in (drawn.patch, *(axes.patch for axes in drawn.axes)):
        patch.set_visible(False)  # the page has its own background
    style = {**RC, "svg.fonttype": "none", "svg.hashsalt": name}
    text = saved(drawn, "svg", style).decode()
    # Nothing is drawn outside the axes, so clip paths can go as well.
    unused = r"^.*?(?=<svg)|<metadata>.*?</metadata>|<defs>\s*<(?:style|clipPath).*?</defs>"
    text = re.sub(unused, "", text, flags=re.DOTALL)
    return re.sub(r"\s*(<[^>]*>)\s*", lambda found: _tidy(found[1]), text)


def readout(axes: Axes) -> dict[str, Any]:
    """Return the labelled lines of a panel, for the values that the page shows at the pointer."""
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    x = np.ravel([line.get_xdata() for line in lines[:1]])
    values = [np.asarray(line.get_ydata(), float) for line in lines]
    return {
        "frame": axes.get_position().bounds,
        "x": axes.get_xlim(),
        "y": axes.get_ylim(),
        "log": axes.get_yscale() == "log",
        "name": axes.get_xlabel(),
        "step": float(x[1] - x[0]) if len(x) > 1 else 1.0,
        "lines": [
            {
                "name": line.get_label(),
                "colour": CSS[str(line.get_color())],
                "values": [float(f"{y:.4g}") if math.isfinite(y) else None for y in heights],
            }
            for line, heights in zip(lines, values, strict=True)
        ],
    }


def _by_comparison(
    study: Study, panel: Callable[..., None], width: float, height: float, **more: Any
) -> Figure:
    """Draw one panel for each comparison; with several data sets, one row for each."""
    titled = [
        (wording.comparison(one, study.settings), partial(panel, study=study, comparison=one))
        for one in study.by_comparison
    ]
    n_data = len({comparison.data for comparison in study.by_comparison})
    columns = math.ceil(len(titled) / n_data) if n_data > 1 else min(3, len(titled))
    return figure(titled, width, height, columns=columns, **more)


def _tidy(tag: str) -> str:
    """Shorten a tag of matplotlib's SVG, and let the page's style sheet give fonts and colours."""
    if tag.startswith("<svg"):
        box = re.search('viewBox="[^"]*"', tag)
        return f'<svg {box[0] if box else ""} aria-hidden="true">'
    if tag.startswith("<g id"):
        return "" if tag.endswith("/>") else "<g>"
    tag = re.sub(r'font-family: [^;"]*;? ?| (?:clip-path="|transform="rotate\(-0)[^"]*"', "", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag.replace("xlink:href", "href"))
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: CSS.get(colour[0], "currentColor"), tag)

"""Pieces of inline SVG that keep their text size at any width.

Strips place everything in per cent. Plots stretch a 100 x 100 drawing under HTML labels, and carry
their numbers as JSON, from which the page's script reads what to say under the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from everypair.experiments.report import curves, wording
from everypair.experiments.report.selection import Difference, Summary

__all__ = [
    "Axis",
    "Line",
    "axis_labels",
    "difference_strip",
    "key",
    "plot",
    "said_range",
    "strip",
]


@dataclass(frozen=True)
class Axis:
    """A range of values and its labelled places."""

    low: float
    high: float
    name: str
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies, from 0 to 100."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return 100 * min(1.0, max(0.0, (value - low) / (high - low)))

    def places(self) -> Sequence[float]:
        """Return the values that get a label."""
        if self.log:
            decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            whole = [10.0**k for k in decades]
            return whole if len(whole) > 1 else [self.low, self.high]
        return curves.ticks(self.low, self.high)


@dataclass(frozen=True)
class Line:
    """One line of a plot; those with a name tell their values under the pointer."""

    values: Sequence[float]  # at x = 0, 1, 2, ... times the plot's step
    colour: str  # CSS class
    style: str = ""  # CSS class
    name: str = ""
    marks: Sequence[int] = ()  # places that get a ring


def embedded(value: object) -> str:
    """Return JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def strip(summary: Summary, colour: str, axis: Axis) -> str:
    """Draw mean, standard deviation and every seed's test AUC on one line."""
    drawn = [
        f'<circle class="seed" cx="{axis.share(record.test_auc):.2f}%" cy="50%" r="2.5"/>'
        for record in summary.chosen
    ]
    if not math.isnan(summary.sd):
        left, right = (axis.share(summary.mean + sign * summary.sd) for sign in (-1, 1))
        bar = f'<line class="sd" x1="{left:.2f}%" x2="{right:.2f}%" y1="50%" y2="50%"/>'
        drawn.insert(0, bar)
    if summary.n:
        drawn.append(f'<circle class="mean" cx="{axis.share(summary.mean):.2f}%" cy="50%" r="6"/>')
    return f'<svg class="strip {colour}" aria-hidden="true">{"".join(drawn)}</svg>'


def difference_strip(gap: Difference, limit: float) -> str:
    """Draw the interval of a difference about zero, cut off at the limit."""
    axis = Axis(-limit, limit, "")
    ends = [axis.share(end) for end in gap.interval or ()]
    drawn = ['<line class="zero" x1="50%" x2="50%" y1="0" y2="100%"/>']
    if ends:
        drawn.append(
            f'<line class="sd" x1="{ends[0]:.2f}%" x2="{ends[1]:.2f}%" y1="50%" y2="50%"/>'
        )
    if gap.n:
        drawn.append(f'<circle class="mean" cx="{axis.share(gap.mean):.2f}%" cy="50%" r="5"/>')
    return f'<svg class="strip gap {gap.verdict}" aria-hidden="true">{"".join(drawn)}</svg>'


def axis_labels(axis: Axis, side: str) -> str:
    """Return the labels of an axis as spans placed in per cent from a side."""
    return "".join(
        f'<span class="tick" style="{side}:{axis.share(value):.2f}%">{value:.3g}</span>'
        for value in axis.places()
    )


def plot(lines: Sequence[Line], x: Axis, y: Axis, *, step: float, label: str) -> str:
    """Draw lines over a grid, with labels around and numbers inside for the pointer."""
    drawn = [f'<path class="rule" d="M0 {100 - y.share(v):.2f}H100"/>' for v in y.places()]
    drawn += [
        f'<path class="{line.colour} {line.style}" d="{_path(line.values, x, y, step)}"/>'
        for line in lines
    ]
    rings = "".join(
        f'<i class="ring {line.colour}" style="left:{x.share(place * step):.2f}%;'
        f'bottom:{y.share(line.values[place]):.2f}%"></i>'
        for line in lines
        for place in line.marks
        if place < len(line.values) and _drawable(line.values[place], y)
    )
    told = {
        "x": [x.low, x.high, x.name],
        "y": [y.low, y.high, y.log],
        "step": step,
        "lines": [
            {
                "name": line.name,
                "class": line.colour,
                "values": [
                    None if not math.isfinite(v) else float(f"{v:.4g}") for v in line.values
                ],
            }
            for line in lines
            if line.name
        ],
    }
    return (
        f'<div class="plot" role="img" tabindex="0" aria-label="{escape(label)}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(drawn)}</svg>{rings}"
        f'<div class="y" aria-hidden="true">{axis_labels(y, "bottom")}</div>'
        f'<div class="x" aria-hidden="true">{axis_labels(x, "left")}</div>'
        f'<div class="name" aria-hidden="true">{escape(x.name)}</div>'
        f'<script type="application/json">{embedded(told)}</script></div>'
    )


def key(entries: Sequence[tuple[str, str, str]]) -> str:
    """Return a legend of (colour class, style class, text)."""
    items = "".join(
        f'<li><svg viewBox="0 0 22 8" aria-hidden="true"><path class="{colour} {style}" '
        f'd="M1 4H21"/></svg>{escape(text)}</li>'
        for colour, style, text in entries
    )
    return f'<ul class="key">{items}</ul>'


def said_range(name: str, values: Sequence[float]) -> str:
    """Say a line in words, for those who do not see it."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return f"{name}: no values"
    return f"{name} from {wording.auc(finite[0])} to {wording.auc(finite[-1])}"


def _drawable(value: float, y: Axis) -> bool:
    return math.isfinite(value) and (value > 0 or not y.log)


def _path(values: Sequence[float], x: Axis, y: Axis, step: float) -> str:
    """Return a path that leaves a gap at whatever cannot be drawn."""
    parts, pen = [], "M"
    for place, value in enumerate(values):
        if _drawable(value, y):
            parts.append(f"{pen}{x.share(place * step):.2f} {100 - y.share(value):.2f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(parts)

"""Plot the curves of a training: one panel per quantity, one line per split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from everypair.torch.training.divergence import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(history: Sequence[Mapping[str, float]], findings: Sequence[Finding]) -> Figure:
    """Plot the history, with a dashed line at the epoch of each finding.

    The figure belongs to no window; save it, or show it in a notebook.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ImportError(
            "matplotlib is needed to plot curves: pip install matplotlib. "
            "Without it, to_csv() writes the same numbers."
        ) from None
    tags = dict.fromkeys(tag for record in history for tag in record if tag != "epoch")
    panels: dict[str, list[str]] = {}
    for tag in tags:
        split, _, name = tag.rpartition("/")
        panels.setdefault(name, []).append(split)
    figure = Figure(figsize=(4.5 * max(1, len(panels)), 3.2), layout="constrained")
    for place, (name, splits) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), place)
        drawn: list[float] = []
        for split in splits:
            points = [(r["epoch"], r[f"{split}/{name}"]) for r in history if f"{split}/{name}" in r]
            # NaN leaves a gap.
            axes.plot(*zip(*points, strict=True), marker=".", label=split)
            drawn += [value for _, value in points if math.isfinite(value)]
        for finding in findings:
            axes.axvline(finding.epoch, color="0.6", linestyle="--", linewidth=1)
        if name != "auc" and drawn and min(drawn) > 0 and max(drawn) > 100 * min(drawn):
            axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="epoch", ylabel=name.replace("_", " ") if name != "auc" else "AUC")
        axes.legend()
    return figure

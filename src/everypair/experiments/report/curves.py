"""Curves over seeds: what the page and the pictures draw of histories and ROC curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np

from everypair.experiments.plan import Record
from everypair.experiments.report.selection import Summary

__all__ = ["FPR", "PARTS", "column", "limits", "mean_column", "mean_roc", "ticks"]

PARTS = ("subtrain", "validation", "test")
FPR = tuple(k / 100 for k in range(101))


def column(record: Record, name: str) -> list[float]:
    """Return one column of a history; what is missing is NaN."""
    values = record.history.get(name) or [math.nan] * len(record.history.get("epoch", ()))
    return [math.nan if value is None else float(value) for value in values]


def mean_column(summary: Summary, name: str) -> list[float]:
    """Return the chosen trials' mean by epoch, as long as all seeds are there."""
    columns = [column(record, name) for record in summary.chosen]
    return [fmean(values) for values in zip(*columns, strict=False)]


def mean_roc(summary: Summary) -> list[float]:
    """Return the chosen models' mean true positive rate at each of `FPR`; empty without curves."""
    curves = [record.roc for record in summary.chosen if len(record.roc[0])]
    if not curves:
        return []
    heights = np.mean([np.interp(FPR, *curve) for curve in curves], axis=0)
    return [0.0, *map(float, heights[1:])]


def limits(values: Iterable[float], *, within: tuple[float, float]) -> tuple[float, float]:
    """Return a range with some air around the finite values, inside given bounds."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return within
    low, high = min(finite), max(finite)
    air = 0.08 * (high - low) or 0.01
    return max(within[0], low - air), min(within[1], high + air)


def ticks(low: float, high: float, about: int = 4) -> Sequence[float]:
    """Return round numbers inside a range.

    >>> ticks(0.87, 0.93)
    [0.88, 0.9, 0.92]
    """
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((power * k for k in (1, 2, 5, 10)), key=lambda size: abs(size - raw))
    digits = max(0, -math.floor(math.log10(step)))
    return [round(k * step, digits) for k in range(math.ceil(low / step), int(high / step) + 1)]

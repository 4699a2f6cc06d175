"""Evaluate files of predictions: exact AUC or concordance, and pairwise losses.

>>> rows = ep.PairAccumulator()
>>> rows.add([0.9, 0.2, 0.6, 0.6], [1, 0, 0, 1])
>>> evaluate(Predictions(rows)).auc
0.875
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

import everypair as ep
from everypair.experiments.data import _chunks, _tables
from everypair.experiments.errors import UserError
from everypair.experiments.figures.prediction_columns import (
    Classes,
    events_from,
    group_values,
    numbers,
    roles,
)

Pairs = Literal["binary", "ordered", "survival"]
_T = TypeVar("_T")
# The losses of more rows than this take minutes, so that only one is computed if none is named.
ALL_LOSSES_UP_TO = 10_000_000


@dataclass(frozen=True)
class Predictions:
    """All rows of the files, and the names of their columns.

    Binary rows are in `rows`. With other pairs, `arrays` holds them as arguments of `pair_loss`:
    labels are real targets if `pairs` is "ordered"; columns (time, event), or times that are
    negative where they are censored, if it is "survival". `compared` holds the scores of another
    model for the same rows; binary rows are then in `arrays` too, in the order of the files.
    """

    rows: ep.PairAccumulator
    columns: dict[str, str] = field(default_factory=dict)
    groups: int | None = None  # how many
    pairs: Pairs = "binary"
    arrays: dict[str, Any] = field(default_factory=dict)
    compared: NDArray[Any] | None = None


@dataclass(frozen=True)
class Comparison:
    """The AUC of another model, and the paired test: `difference` is `Evaluation.auc` - `auc`."""

    auc: float
    difference: float
    interval: tuple[float, float]
    p_value: float


@dataclass(frozen=True)
class Evaluation:
    """Measures of the scores. `losses` holds the mean over the pairs that count, by surrogate.

    A loss beyond float64 is infinite; in `by_group`, if it is beyond it in any of the groups.
    `auc` is the concordance index if `pairs` is not "binary"; then the numbers of positives and
    negatives are None. `auc_interval` is the 95 % confidence interval of `ep.delong`; None with
    groups, or if a class has fewer than two rows of positive weight. With groups, `group_aucs` has
    the means of the AUCs of the groups: "groups", and "rows" weighted by rows. `auc_bound` and
    `loss_bounds` are the largest errors, 0 if the results are exact. `by_group` holds the measures
    of each group that has pairs, if they were asked for. `comparison` is that with another model.
    """

    rows: int
    positives: int | None
    negatives: int | None
    groups: int | None
    auc: float
    auc_interval: tuple[float, float] | None
    margin: float | None  # None: that of each surrogate
    losses: dict[str, float]
    auc_bound: float = 0.0
    loss_bounds: dict[str, float] = field(default_factory=dict)
    pairs: Pairs = "binary"
    group_aucs: dict[str, float] | None = None
    by_group: dict[int | str, Evaluation] | None = None
    comparison: Comparison | None = None


def read(
    paths: str | Path | Sequence[str | Path],
    *,
    scores: str | None = None,
    labels: str | None = None,
    weights: str | None = None,
    group: str | None = None,
    positive: str | None = None,
    pairs: Pairs = "binary",
    events: str | None = None,
    bounded: bool = False,
    compare: str | None = None,
    advance: Callable[[float], None] = lambda amount: None,
) -> Predictions:
    """Read predictions from CSV, Parquet or Arrow files, chunk by chunk.

    Memory is that of the rows (4 bytes each for float32 scores of two classes, 8 for float64) and
    of two chunks.

    Parameters
    ----------
    paths : path, or several
        Files, or patterns such as ``"part-*.parquet"``. All must have the same columns.
    scores, labels : str, optional
        Columns. The default is a column with a usual name; see `prediction_columns`.
    weights, group : str, optional
        Columns. By default all rows have the same weight, and all pairs count.
    positive : str, optional
        The positive label. The default is 1, true or yes, or else the rarer label.
    pairs : {"binary", "ordered", "survival"}
        What the labels are: two classes, real targets, or times.
    events : str, optional
        Column with 1, true or yes for an event and 0, false or no for a censored time. The default
        is the column with a usual name; without one, negative times are censored.
    bounded : bool
        Whether to count scores in buckets instead of keeping them: constant memory, and results
        with bounds of their errors. Only for two classes without weights and groups.
    compare : str, optional
        Column of the scores of another model, to be compared with `scores`. Without groups only.
    advance : callable
        Called with the number of bytes of each chunk.
    """
    if bounded and (weights is not None or group is not None or pairs != "binary"):
        raise UserError("--bounded must be used without --weights, --group and --pairs.")
    if compare is not None and (bounded or group is not None):
        raise UserError("--compare must be used without --bounded and --group.")
    if events is not None and pairs != "survival":
        raise UserError(f"--events must come with --pairs survival; got --pairs {pairs}.")
    files = _chunks.files_of([paths] if isinstance(paths, str | Path) else paths)
    present = _chunks.column_names(files[0])
    scores, labels, events = roles(present, files[0], scores, labels, events, pairs)
    named = {"scores": scores, "labels": labels, "events": events}
    named |= {"weights": weights, "group": group, "compare": compare}
    columns = {role: name for role, name in named.items() if name is not None}
    if scores == compare:
        raise UserError(f"--compare must name another column than --scores; got {compare} twice.")
    for path in files:
        names = present if path is files[0] else _chunks.column_names(path)
        _tables.require_columns(names, list(columns.values()), path)
    rows = ep.PairAccumulator(mode="bounded" if bounded else "exact")
    classes, groups, kept = Classes(labels, positive), set[Any](), list[dict[str, Any]]()
    compared = []
    for path in files:
        done, size = 0.0, path.stat().st_size
        for chunk in _chunks.chunks(path, list(columns.values())):
            frame = chunk.frame
            part = {"scores": numbers(frame[scores], "scores", chunk)}
            if weights is not None:
                part["weights"] = numbers(frame[weights], "weights", chunk)
            if group is not None:
                part["groups"] = group_values(frame[group], chunk)
                groups.update(np.unique(part["groups"]).tolist())
            if pairs == "binary":
                part["labels"] = classes.numbers(frame[labels], chunk)
                try:
                    rows.add(**part)
                except ValueError as error:  # infinite scores, negative weights
                    raise UserError(f"{path}, rows from {chunk.start + 1}: {error}") from error
            else:
                part["labels"] = numbers(frame[labels], "labels", chunk)
                if events is not None:
                    happened = events_from(frame[events], chunk)
                    part["labels"] = np.column_stack([part["labels"], happened])
            if compare is not None:
                compared.append(numbers(frame[compare], "compared", chunk))
            if compare is not None or pairs != "binary":
                kept.append(part)
            advance((chunk.share - done) * size)
            done = chunk.share
    n_groups = None if group is None else len(groups)
    arrays = {name: np.concatenate([part[name] for part in kept]) for name in (kept or [{}])[0]}
    if pairs == "binary":
        name, swap = classes.positive(rows, files[0])
        if swap:
            rows.swap_classes()
            arrays |= {"labels": ~arrays["labels"]} if arrays else {}
        columns["positive"] = f"{labels} = {name}"
    others = np.concatenate(compared) if compared else None
    return Predictions(rows, columns, n_groups, pairs, arrays, others)


def evaluate(
    predictions: Predictions,
    *,
    margin: float | None = None,
    losses: Sequence[str] | None = None,
    by_group: bool = False,
) -> Evaluation:
    """Return the exact AUC and the mean of surrogates over all pairs.

    Parameters
    ----------
    predictions : Predictions
    margin : float, optional
        The default is that of each surrogate.
    losses : sequence of str, optional
        The surrogates. By default all of them (of buckets: those made of polynomials), or the
        squared hinge alone for more than `ALL_LOSSES_UP_TO` rows.
    by_group : bool
        Whether to evaluate each group as well.
    """
    p, rows = predictions, predictions.rows
    if losses is None:
        losses = ep.surrogates.names()
        if rows.mode == "bounded":
            losses = tuple(name for name in losses if ep.surrogates.get(name).is_polynomial)
        elif rows.n_rows > ALL_LOSSES_UP_TO:
            losses = ("squared_hinge",)
    comparison = None if p.compared is None else _comparison(p, p.compared)
    if p.pairs != "binary":
        found = _evaluated_arrays(p, margin, losses, by_group)
        return replace(found, comparison=comparison)
    result = _in_range(lambda names: rows.result(names, margin=margin), losses)
    found = _evaluation(result, margin, losses)
    more: dict[str, Any] = {"comparison": comparison}
    if p.groups is not None:
        held = rows.rows()
        given = {"weights": held.weights, "groups": held.groups}
        more |= {"groups": p.groups, "group_aucs": _means(held.scores, held.labels, **given)}
    if by_group:
        each = _in_range(lambda names: rows.result_by_group(names, margin=margin), losses)
        more["by_group"] = {key: _evaluation(one, margin, losses) for key, one in each.items()}
    return replace(found, **more)


def _in_range(compute: Callable[[Sequence[str]], _T], losses: Sequence[str]) -> _T:
    """Compute a result with those of the losses that are in the range of float64."""
    with suppress(OverflowError):
        return compute(losses)
    fit = []
    for name in losses:
        with suppress(OverflowError):
            compute((name,))
            fit.append(name)
    return compute(fit)


def _evaluation(result: ep.StreamResult, margin: float | None, losses: Sequence[str]) -> Evaluation:
    interval = None
    if result.low is not None and result.high is not None:
        interval = (result.low, result.high)
    values = {name: result.losses.get(name, math.inf) for name in losses}
    return Evaluation(
        result.n_rows, result.n_pos, result.n_neg, None, result.auc, interval, margin, values,
        result.auc_bound, result.loss_bounds,
    )  # fmt: skip


def _evaluated_arrays(
    p: Predictions, margin: float | None, losses: Sequence[str], by_group: bool
) -> Evaluation:
    """Evaluate real targets or survival times."""
    if by_group:
        raise ValueError(f"--by-group must be left out, because --pairs {p.pairs} has none.")
    given: dict[str, Any] = {**p.arrays, "pairs": p.pairs}
    values = _in_range(
        lambda names: {n: ep.pair_loss(**given, surrogate=n, margin=margin) for n in names}, losses
    )
    values = {name: values.get(name, math.inf) for name in losses}
    n, auc, interval, means = len(p.arrays["scores"]), ep.auc(**given), None, None
    if p.groups is None:
        interval = ep.delong(**given)[2:]
    else:
        means = _means(**given)
    return Evaluation(
        n, None, None, p.groups, auc, interval, margin, values, pairs=p.pairs, group_aucs=means
    )


def _comparison(p: Predictions, others: NDArray[Any]) -> Comparison:
    given = {"labels": p.arrays["labels"], "weights": p.arrays.get("weights"), "pairs": p.pairs}
    test = ep.delong_test(p.arrays["scores"], others, **given)
    return Comparison(test.auc_b, test.difference, (test.low, test.high), test.p_value)


def _means(scores: Any, labels: Any, **given: Any) -> dict[str, float]:
    """Return the mean AUC of the groups: each group once, and groups by their rows."""
    return {
        "groups": ep.auc(scores, labels, average="groups", **given),
        "rows": ep.auc(scores, labels, average="rows", **given),
    }

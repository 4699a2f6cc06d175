"""Validate input and convert it to a `Batch` of arrays that kernels can read.

`batch_from` checks types, shapes and lengths. Checking values (finite scores, two classes, weights
of at least 0) costs a pass over the data: the compiled kernel does it in its own first pass and
calls `raise_bad_values` only to report a bad value; all other code calls `positives`. Batches of
ordered or survival targets are checked at once, because they are sorted anyway.

Each error message names the argument, the rule, the value and its index, and what to do about it.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.arrays.numpy import NumpyArrays
from everypair.inputs import binary, convert, messages, pair_options, survival
from everypair.inputs.groups import group_numbers, group_runs, group_values
from everypair.inputs.hardest import hardest_weights
from everypair.inputs.ranked import RankedRows, target_from

_SCORE_DTYPES = frozenset(map(np.dtype, ("f4", "f8")))


class Batch:
    """Checked scores, labels and weights, in the caller's order of rows."""

    __slots__ = ("dtype", "labels", "offsets", "order", "ranked", "scores", "shape", "weights")

    # (n,) float32 or float64: contiguous, aligned, in native byte order.
    scores: NDArray[Any]
    # (n,) of one of `binary.LABEL_DTYPES`: positive where larger than zero, once the values have
    # been checked. Empty if the targets are ranked.
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None
    # An order of the rows in which each group is contiguous; None if the rows have it already.
    order: NDArray[np.intp] | None
    # (n_groups + 1,): the first ordered row of each group, then n; None without groups.
    offsets: NDArray[np.int64] | None
    # The rows sorted by their targets, if those are ordered or survival times.
    ranked: RankedRows | None
    # Those of the caller's scores, and of the derivatives that are returned.
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def batch_from(
    scores: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    pairs: str = "binary",
    censoring: str = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> Batch:
    """Check types, shapes and lengths; copy only arrays that kernels cannot read as they are."""
    batch = Batch()
    if _is_ready(scores, _SCORE_DTYPES):
        batch.dtype, batch.shape = scores.dtype, scores.shape
    else:
        scores, batch.dtype, batch.shape = _scores(scores, "scores")
    targets = events = None
    if pairs == "binary" and censoring == "harrell":
        if not _is_ready(labels, binary.LABEL_DTYPES):
            labels = binary.labels_from(labels)
        n_labels = labels.shape[0]
    else:
        pair_options.check_pairs(pairs, censoring)
        targets, events = (
            (target_from(labels), None) if pairs == "ordered" else survival.survival_from(labels)
        )
        n_labels = targets.shape[0]
        labels = np.empty(0, bool)
    n = scores.shape[0]
    if n == 0:
        messages.raise_no_rows()
    if n_labels != n:
        messages.raise_length("labels", n_labels, n)
    batch.scores = scores
    batch.labels = labels
    batch.weights = None if weights is None else _float_column(weights, "weights", n)
    batch.order = batch.offsets = batch.ranked = None
    if groups is not None:
        set_groups(batch, groups)
    if targets is not None:
        rank(batch, targets, events, censoring)
    if not (max_fpr is None and min_tpr is None):
        _keep_hardest(batch, pair_options.check_rates(max_fpr, min_tpr, pairs) or (1.0, 0.0))
    return batch


def set_groups(batch: Batch, groups: ArrayLike) -> None:
    """Check the groups of a batch, and set its `order` and `offsets`."""
    values, n = group_values(groups), batch.scores.shape[0]
    if values.shape[0] != n:
        messages.raise_length("groups", values.shape[0], n)
    batch.order, batch.offsets = group_runs(values)


def rank(
    batch: Batch, targets: NDArray[Any], events: NDArray[np.bool_] | None, censoring: str
) -> None:
    """Check the values of a batch, and rank its rows by their targets, which are checked."""
    check_values(batch)
    weights = winner = batch.weights
    if events is not None and censoring == "uno":
        w = np.ones(batch.scores.shape[0]) if weights is None else weights
        xp = NumpyArrays(compensated=False)
        winner = w * survival.censoring_weights(xp, targets, events, w)
    elif events is not None and weights is not None:
        winner = weights * events
    groups = None if batch.offsets is None else group_numbers(batch.order, batch.offsets)
    batch.ranked = RankedRows(targets, events, groups, winner, weights)


def _keep_hardest(batch: Batch, rates: tuple[float, float]) -> None:
    """Restrict a batch to the rows of a partial AUC, by its weights; see `hardest_weights`."""
    batch.labels = positives(batch)
    weights = np.ones(batch.scores.shape[0]) if batch.weights is None else batch.weights
    xp = NumpyArrays(compensated=batch.weights is not None)  # sums of ones are exact
    batch.weights = hardest_weights(
        xp, batch.scores, batch.labels, weights,
        group_numbers(batch.order, batch.offsets), *rates,
    )  # fmt: skip


def scores_from(values: ArrayLike, name: str = "scores") -> tuple[NDArray[Any], tuple[int, ...]]:
    """Check scores without labels, values included; return (n,) float32 or float64, and the shape.

    There may be no row at all.
    """
    scores, _, shape = _scores(values, name)
    _raise_if_not_finite(scores, name)
    return scores, shape


def finite_column(values: ArrayLike, name: str, n: int, *dtypes: type) -> NDArray[Any]:
    """Check n numbers of any sign, values included; return them as float64, or one of `dtypes`."""
    column = _float_column(values, name, n, *dtypes)
    _raise_if_not_finite(column, name)
    return column


def signed_weights_from(weights: ArrayLike | None, n: int) -> NDArray[np.float64]:
    """Check weights of any sign, values included; None stands for n ones."""
    return np.ones(n) if weights is None else finite_column(weights, "weights", n)


def check_values(batch: Batch) -> None:
    """Raise the error about the first score or weight that is not allowed."""
    # A finite sum means that all values are finite, and needs no temporary array. A sum of finite
    # values may overflow, so otherwise each value is checked.
    with np.errstate(all="ignore"):
        is_finite = math.isfinite(batch.scores.sum(dtype=np.float64))
    if not is_finite:
        _raise_if_not_finite(batch.scores, "scores")
    weights = batch.weights
    if weights is not None:
        valid = (weights >= 0.0) & (weights < math.inf)
        if not valid.all():
            i = int(np.argmin(valid))
            raise ValueError(
                f"weights must be finite and at least 0; got {weights[i].item()!r} (first at index "
                f"{i}). A weight of 0 leaves a row out."
            )


def positives(batch: Batch) -> NDArray[np.bool_]:
    """Check the values of a batch and return which rows are positive."""
    check_values(batch)
    return binary.positive_rows(batch.labels)


def raise_bad_values(batch: Batch) -> NoReturn:
    """Raise the error about the first bad value of a batch that a kernel rejected."""
    positives(batch)
    raise RuntimeError(
        "the compiled kernel rejected a valid batch. This is a bug in everypair; please report it, "
        "and set EVERYPAIR_BACKEND=numpy meanwhile."
    )


def _is_ready(values: ArrayLike, dtypes: frozenset[np.dtype[Any]]) -> TypeGuard[NDArray[Any]]:
    """Return whether kernels can read this (n,) array without a copy."""
    if type(values) is not np.ndarray or values.ndim != 1 or values.dtype not in dtypes:
        return False
    return values.flags.c_contiguous and values.flags.aligned


def _scores(values: ArrayLike, name: str) -> tuple[NDArray[Any], np.dtype[Any], tuple[int, ...]]:
    """Return scores as (n,) float32 or float64, and the dtype and shape of their gradient."""
    array = convert.to_real(values, name)
    column = convert.to_column(array, name)
    # Integer scores get a float64 gradient.
    dtype = array.dtype.newbyteorder("=") if array.dtype.kind == "f" else np.dtype(np.float64)
    kernel_dtype = np.float32 if dtype.itemsize <= 4 else np.float64
    column = column if array.dtype.kind == "f" else convert.to_float64(column, name)
    with np.errstate(over="ignore"):
        return np.require(column, kernel_dtype, ["C", "A"]), dtype, array.shape


def _float_column(values: ArrayLike, name: str, n: int, *dtypes: type) -> NDArray[Any]:
    """Return n numbers as float64, or one of the `dtypes`, in an array that the kernel can read."""
    column = convert.to_column(convert.to_real(values, name), name)
    if column.shape[0] != n:
        messages.raise_length(name, column.shape[0], n)
    # The same as np.require, in a fifth of its time.
    column = np.ascontiguousarray(column, column.dtype if column.dtype in dtypes else np.float64)
    return column if column.flags.aligned else column.copy()


def _raise_if_not_finite(values: NDArray[Any], name: str) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        i = int(np.argmin(finite))
        messages.raise_not_finite(name, values[i].item(), i)

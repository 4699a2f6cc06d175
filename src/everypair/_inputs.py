"""The one door: whatever arrives leaves as a `Batch` of plain arrays, or as a ValueError.

Types, shapes and lengths are checked here. Values (finite scores, two classes, weights) cost a
pass over the data, so the compiled kernel checks them during its own first pass and only asks
`raise_bad_values` to find the culprit; everyone else calls `positives`, which checks them.

An error names the argument, the rule, what arrived and where, and what to do about it.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from everypair import _conversion, _groups

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Batch",
    "batch_from",
    "check_margin",
    "check_reduction",
    "positives",
    "raise_bad_values",
    "raise_group_dtype",
    "raise_no_rows",
    "raise_not_floats",
    "raise_not_real",
    "vector_for",
]

_SCORE_DTYPES = frozenset(map(np.dtype, ("f4", "f8")))
_LABEL_DTYPES = frozenset(map(np.dtype, ("?", "i1", "u1", "i4", "i8", "f4", "f8")))
# Kernels read few types: the others travel in one that holds their values. uint64 goes to float
# because 2**64 - 1 would arrive in int64 as a valid label.
_LABEL_TRAVELS = {"i2": "i4", "u2": "i4", "u4": "i8", "u8": "f8", "f2": "f4"}


class Batch:
    """Scores, labels and weights as kernels want them, rows in the order of the caller.

    Attributes
    ----------
    scores : (n,) float32 or float64
        Contiguous, aligned, native byte order.
    labels : (n,) of a type that kernels read
        Larger than zero is positive, once the values have been checked.
    weights : (n,) float64 or None
    order : (n,) intp or None
        Rows gathered by it have each group in one run; None where they already have.
    offsets : (n_groups + 1,) int64 or None
        The runs' boundaries; None is one group.
    dtype, shape
        Of the caller's scores, for what goes back.
    """

    __slots__ = ("dtype", "labels", "offsets", "order", "scores", "shape", "weights")

    scores: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None
    order: NDArray[np.intp] | None
    offsets: NDArray[np.int64] | None
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def batch_from(
    scores: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Batch:
    """Check types, shapes and lengths, and copy only what kernels could not read as it is."""
    batch = Batch()
    if not (type(scores) is np.ndarray and scores.ndim == 1 and _is_ready(scores, _SCORE_DTYPES)):
        scores, batch.dtype, batch.shape = _scores(scores)
    else:
        batch.dtype = scores.dtype
        batch.shape = scores.shape
    if not (type(labels) is np.ndarray and labels.ndim == 1 and _is_ready(labels, _LABEL_DTYPES)):
        labels = _labels(labels)
    n = scores.shape[0]
    if n == 0:
        raise_no_rows()
    if labels.shape[0] != n:
        _raise_length("labels", labels.shape[0], n)
    batch.scores = scores
    batch.labels = labels
    batch.weights = None if weights is None else _column_of(weights, "weights", n)
    batch.order = batch.offsets = None
    if groups is not None:
        values = _conversion.column(
            _groups.values_from(groups)
            if isinstance(groups, list | tuple)
            else _conversion.plain(groups, "groups"),
            "groups",
        )
        if values.shape[0] != n:
            _raise_length("groups", values.shape[0], n)
        batch.order, batch.offsets = _groups.runs(values)
    return batch


def vector_for(batch: Batch, vector: ArrayLike) -> NDArray[np.float64]:
    """Check the vector of a Hessian-vector product, values included."""
    column = _column_of(vector, "vector", batch.scores.shape[0])
    _raise_if_not_finite(column, "vector")
    return column


def check_margin(margin: object) -> float:
    """Return the margin as a float, or say what is wrong with it."""
    if type(margin) is float and 0.0 <= margin < math.inf:
        return margin
    if isinstance(margin, Real) or getattr(margin, "shape", None) == ():
        try:
            number = float(margin)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if 0.0 <= number < math.inf:
            return number
    raise ValueError(
        f"margin must be a finite number of at least 0; got {margin!r}. "
        "It is the lead in score that a positive should have over a negative; 1.0 is usual."
    )


def check_reduction(reduction: str) -> bool:
    """Return whether the reduction is the mean."""
    if reduction == "mean":
        return True
    if reduction == "sum":
        return False
    raise ValueError(
        f"reduction must be 'mean' (divide by the total pair weight) or 'sum'; got {reduction!r}. "
        "There is no reduction per row: a loss belongs to pairs."
    )


def positives(batch: Batch) -> NDArray[np.bool_]:
    """Check the values of a batch and return which rows are positive."""
    _raise_if_not_finite(batch.scores, "scores")
    labels = batch.labels
    positive: NDArray[np.bool_] = labels == 1
    if labels.dtype != np.bool_:
        zero, minus = labels == 0, labels == -1
        if not (positive | zero | minus).all():
            i = int(np.argmin(positive | zero | minus))
            _raise_label(labels[i].item(), i)
        if zero.any() and minus.any():
            i, j = int(np.argmax(zero)), int(np.argmax(minus))
            raise ValueError(
                "labels must hold two classes coded {0, 1} or {-1, +1}, not a mix; got 0 (first at "
                f"index {i}) and -1 (first at index {j}). Pass labels == 1 if both mean negative."
            )
    weights = batch.weights
    if weights is not None:
        sound = (weights >= 0.0) & (weights < math.inf)
        if not sound.all():
            i = int(np.argmin(sound))
            raise ValueError(
                f"weights must be finite and at least 0; got {weights[i].item()!r} (first at index "
                f"{i}). A weight of 0 leaves a row out."
            )
    return positive


def raise_bad_values(batch: Batch) -> NoReturn:
    """Find and name the value that a kernel refused."""
    positives(batch)
    raise RuntimeError(
        "the compiled kernel refused a batch in which nothing is wrong; please report this, "
        "and set EVERYPAIR_BACKEND=numpy meanwhile."
    )


def _is_ready(array: NDArray[Any], dtypes: frozenset[np.dtype[Any]]) -> bool:
    flags = array.flags
    return array.dtype in dtypes and flags.c_contiguous and flags.aligned


def _scores(given: ArrayLike) -> tuple[NDArray[Any], np.dtype[Any], tuple[int, ...]]:
    array = _conversion.numbers(given, "scores")
    column = _conversion.column(array, "scores")
    # Integers have no type that could hold a gradient; kernels compute in single or in double.
    dtype = array.dtype.newbyteorder("=") if array.dtype.kind == "f" else np.dtype(np.float64)
    with np.errstate(over="ignore"):
        return (
            _conversion.ready(column, np.float32 if dtype.itemsize <= 4 else np.float64),
            dtype,
            array.shape,
        )


def _labels(given: ArrayLike) -> NDArray[Any]:
    array = _conversion.plain(given, "labels")
    if array.dtype.kind not in "biuf":
        array = _labels_from_objects(array)
    column = _conversion.column(array, "labels")
    dtype = column.dtype.newbyteorder("=")
    if dtype not in _LABEL_DTYPES:
        dtype = np.dtype(_LABEL_TRAVELS.get(dtype.str[1:], "f8"))
    return _conversion.ready(column, dtype)


def _labels_from_objects(array: NDArray[Any]) -> NDArray[Any]:
    for i, value in enumerate(array.ravel().tolist()):
        if not isinstance(value, Real):
            _raise_label(value, i)
    return array.astype(np.float64)


def _column_of(given: ArrayLike, name: str, n: int) -> NDArray[np.float64]:
    column = _conversion.ready(
        _conversion.column(_conversion.numbers(given, name), name), np.float64
    )
    if column.shape[0] != n:
        _raise_length(name, column.shape[0], n)
    return column


def _raise_if_not_finite(values: NDArray[Any], name: str) -> None:
    # A sum is finite only if every addend is, and costs no array of flags. It may also overflow,
    # so only the slow look decides.
    with np.errstate(all="ignore"):
        if math.isfinite(values.sum(dtype=np.float64)):
            return
    finite = np.isfinite(values)
    if not finite.all():
        i = int(np.argmin(finite))
        raise ValueError(
            f"{name} must be finite; got {values[i].item()!r} (first at index {i}). "
            "A model that returns it has diverged, or a row was empty."
        )


def _raise_label(value: object, i: int) -> NoReturn:
    hint = (
        f"Pass labels == {value!r} to make that value the positive class."
        if isinstance(value, str)
        else "For several classes, call once per class with labels == that class."
    )
    raise ValueError(
        f"labels must hold two classes coded {{0, 1}} or {{-1, +1}}; got {value!r} (first at index "
        f"{i}). {hint}"
    )


def _raise_length(name: str, got: int, n: int) -> NoReturn:
    raise ValueError(
        f"{name} must have one entry per score; got {got} for {n} scores. "
        "Check that both come from the same rows."
    )


# The messages below are shared with the torch and JAX adapters, which check their own arrays.


def raise_no_rows() -> NoReturn:
    """Raise the error about empty input."""
    raise ValueError("scores must hold at least one row; got none. Check the filter before it.")


def raise_not_floats(dtype: object, remedy: str) -> NoReturn:
    """Raise the error about scores that cannot have a gradient."""
    raise ValueError(
        f"scores must be floats, because they receive a gradient; got {dtype}. Pass {remedy}."
    )


def raise_not_real(name: str, dtype: object) -> NoReturn:
    """Raise the error about complex numbers."""
    raise ValueError(f"{name} must be real numbers; got {dtype}. Pass {name}.real.")


def raise_group_dtype(dtype: object, library: str) -> NoReturn:
    """Raise the error about groups that are not integers; `library` has a function `unique`."""
    raise ValueError(
        f"groups must be whole numbers, one for every row; got {dtype}. "
        f"Number them first: {library}.unique(groups, return_inverse=True)[1]."
    )

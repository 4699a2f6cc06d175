"""Define which pairs of rows count.

Today a pair is a positive row and a negative row (binary labels) of the same group. This module
converts and checks labels and groups, and holds the messages about them. Other kinds of targets,
such as ordered grades and survival times, are to be added here.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import _conversion

# The label types that kernels read.
LABEL_DTYPES = frozenset(map(np.dtype, ("?", "i1", "u1", "i4", "i8", "f4", "f8")))
# Other types are converted to one that holds all of their values. uint64 becomes float64, because
# 2**64 - 1 would become -1, a valid label, in int64.
_WIDER_DTYPE = {"i2": "i4", "u2": "i4", "u4": "i8", "u8": "f8", "f2": "f4"}


def labels_from(given: ArrayLike) -> NDArray[Any]:
    """Convert labels to an (n,) array of a type that kernels read; values are not checked."""
    array = _conversion.to_array(given, "labels")
    if array.dtype.kind not in "biuf":
        for i, value in enumerate(array.ravel().tolist()):
            if not isinstance(value, Real):
                _raise_label(value, i)
        array = array.astype(np.float64)
    column = _conversion.to_column(array, "labels")
    dtype = column.dtype.newbyteorder("=")
    if dtype not in LABEL_DTYPES:
        dtype = np.dtype(_WIDER_DTYPE.get(dtype.str[1:], "f8"))
    return np.require(column, dtype, ["C", "A"])


def positive_rows(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Check that labels are coded {0, 1} or {-1, +1}, and return which rows are positive.

    Examples
    --------
    >>> positive_rows(np.array([-1, 1, -1])).tolist()
    [False, True, False]
    """
    positive: NDArray[np.bool_] = labels == 1
    if labels.dtype == np.bool_:
        return positive
    zero, minus = labels == 0, labels == -1
    known = positive | zero | minus
    if not known.all():
        i = int(np.argmin(known))
        _raise_label(labels[i].item(), i)
    if zero.any() and minus.any():
        i, j = int(np.argmax(zero)), int(np.argmax(minus))
        raise ValueError(
            "labels must hold two classes coded {0, 1} or {-1, +1}, not a mix; got 0 (first at "
            f"index {i}) and -1 (first at index {j}). Pass labels == 1 if both mean negative."
        )
    return positive


def group_values(groups: ArrayLike) -> NDArray[Any]:
    """Convert groups to an (n,) array, keeping values of different types apart.

    Examples
    --------
    >>> group_values([1, "1"]).tolist()
    [1, '1']
    """
    if not isinstance(groups, list | tuple):
        return _conversion.to_column(_conversion.to_array(groups, "groups"), "groups")
    if set(map(type, groups)) in ({int}, {float}, {str}):
        values = np.asarray(groups)
        # NumPy strings drop trailing NULs, and integers beyond int64 may be rounded to floats.
        if values.tolist() == list(groups):
            return values
    return np.fromiter(groups, dtype=object, count=len(groups))


def group_runs(values: NDArray[Any]) -> tuple[NDArray[np.intp] | None, NDArray[np.int64]]:
    """Find an order of the rows in which each group is contiguous.

    Parameters
    ----------
    values : (n,)
        The group of each row: any hashable values.

    Returns
    -------
    order : (n,) intp or None
        The order; None if each group is contiguous already.
    offsets : (n_groups + 1,) int64
        Group g holds the ordered rows ``offsets[g] : offsets[g + 1]``.

    Examples
    --------
    >>> group_runs(np.array(["b", "a", "b"]))
    (array([1, 0, 2]), array([0, 1, 3]))
    """
    if values.dtype.kind in "OV":
        values = _group_codes(values)
    else:
        missing = np.flatnonzero(values != values)  # NaN and NaT do not equal themselves
        if missing.size:
            _raise_missing(values[missing[0]], int(missing[0]))
    order = None
    if (values[1:] < values[:-1]).any():
        order = np.argsort(values, kind="stable")
        values = values[order]
    starts = np.flatnonzero(values[1:] != values[:-1]) + 1
    offsets = np.concatenate(([0], starts, [values.shape[0]])).astype(np.int64)
    return order, offsets


def raise_no_pairs(
    positive: NDArray[np.bool_], weights: NDArray[np.float64] | None, name: str
) -> NoReturn:
    """Raise the error of a metric that needs at least one pair of positive weight."""
    kept = np.ones_like(positive) if weights is None else weights > 0.0
    n_pos, n_neg = int((positive & kept).sum()), int((~positive & kept).sum())
    which = "" if weights is None else " of positive weight"
    if n_pos and n_neg:
        raise ValueError(
            f"{name} must have both classes in at least one group; got {n_pos} positives and "
            f"{n_neg} negatives{which}, never together. Check the groups, or leave them out."
        )
    raise ValueError(
        f"{name} must have both classes; labels hold {n_pos} positives and {n_neg} negatives"
        f"{which}. Evaluate on more rows, or on a stratified sample."
    )


def _group_codes(values: NDArray[Any]) -> NDArray[np.int64]:
    """Replace each group by a number, in the order of their first rows."""
    seen: dict[Any, int] = {}
    codes = np.empty(values.shape[0], dtype=np.int64)
    for i, value in enumerate(values.tolist()):
        try:
            missing = value is None or bool(value != value)
            if not missing:
                codes[i] = seen.setdefault(value, len(seen))
        except (TypeError, ValueError, ArithmeticError):
            # pandas.NA has no truth value, a list has no hash, and Decimal("sNaN") has neither.
            if type(value).__name__ != "NAType":
                raise ValueError(
                    f"groups must be hashable values; got {value!r} at index {i}. "
                    "Use strings, numbers or tuples."
                ) from None
            missing = True
        if missing:
            _raise_missing(value, i)
    return codes


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


def _raise_missing(value: object, i: int) -> NoReturn:
    raise ValueError(
        f"groups must name a group for every row; got {value!r} (first at index {i}). "
        "Drop those rows, or give each of them a group of its own."
    )

"""Binary labels: every positive row is to score higher than every negative row of its group."""

from __future__ import annotations

from numbers import Real
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import convert

# The label types that kernels read.
LABEL_DTYPES = frozenset(map(np.dtype, ("?", "i1", "u1", "i4", "i8", "f4", "f8")))
# Other types are converted to one that holds all of their values. uint64 becomes float64, because
# 2**64 - 1 would become -1, a valid label, in int64.
_WIDER_DTYPE = {"i2": "i4", "u2": "i4", "u4": "i8", "u8": "f8", "f2": "f4"}


def labels_from(labels: ArrayLike) -> NDArray[Any]:
    """Convert labels to an (n,) array of a type that kernels read; values are not checked."""
    array = convert.to_array(labels, "labels")
    if array.dtype.kind not in "biuf":
        for i, value in enumerate(array.ravel().tolist()):
            if not isinstance(value, Real):
                _raise_label(value, i)
        array = array.astype(np.float64)
    column = convert.to_column(array, "labels")
    dtype = column.dtype.newbyteorder("=")
    if dtype not in LABEL_DTYPES:
        dtype = np.dtype(_WIDER_DTYPE.get(dtype.str[1:], "f8"))
    return np.require(column, dtype, ["C", "A"])


def positive_rows(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Check that labels are coded {0, 1} or {-1, +1}, and return which rows are positive."""
    positive: NDArray[np.bool_] = labels == 1
    if labels.dtype == np.bool_:
        return positive
    zero, minus = labels == 0, labels == -1
    is_known = positive | zero | minus
    if not is_known.all():
        i = int(np.argmin(is_known))
        _raise_label(labels[i].item(), i)
    if zero.any() and minus.any():
        i, j = int(np.argmax(zero)), int(np.argmax(minus))
        raise ValueError(
            "labels must hold two classes coded {0, 1} or {-1, +1}, not a mix; got 0 (first at "
            f"index {i}) and -1 (first at index {j}). Pass labels == 1 if both mean negative."
        )
    return positive


def raise_no_pairs(
    positive: NDArray[np.bool_], weights: NDArray[np.float64] | None, name: str
) -> NoReturn:
    """Raise the error of a metric that needs at least one pair of positive weight."""
    has_weight = np.ones_like(positive) if weights is None else weights > 0.0
    n_pos, n_neg = int((positive & has_weight).sum()), int((~positive & has_weight).sum())
    suffix = "" if weights is None else " of positive weight"
    if n_pos and n_neg:
        raise ValueError(
            f"{name} must have both classes in at least one group; got {n_pos} positives and "
            f"{n_neg} negatives{suffix}, never together. Check the groups, or leave them out."
        )
    raise ValueError(
        f"{name} must have both classes; labels hold {n_pos} positives and {n_neg} negatives"
        f"{suffix}. Evaluate on more rows, or on a stratified sample."
    )


def _raise_label(value: object, i: int) -> NoReturn:
    if isinstance(value, str):
        hint = (
            f"Name the positive class; if it is this one, pass numpy.asarray(labels) == {value!r}."
        )
    elif isinstance(value, tuple):
        hint = "For times with events, use pair_loss, PairLoss or auc with pairs='survival'."
    elif value is None or type(value).__name__ == "NAType" or value != value:
        hint = "Drop the rows whose label is missing."
    elif isinstance(value, float) and not value.is_integer():
        hint = (
            "Scores are the first argument and labels the second. For real targets, use pair_loss, "
            "PairLoss or auc with pairs='ordered'."
        )
    else:
        hint = (
            "For grades or real targets, use pair_loss, PairLoss or auc with pairs='ordered'; for "
            "several classes, call once per class with labels == that class."
        )
    raise ValueError(
        f"labels must hold two classes coded {{0, 1}} or {{-1, +1}}; got {value!r} (first at index "
        f"{i}). {hint}"
    )

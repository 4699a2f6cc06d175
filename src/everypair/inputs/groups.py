"""Groups: only pairs of rows in the same group count (a query, a patient, a day)."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import convert


def group_values(groups: ArrayLike) -> NDArray[Any]:
    """Convert groups to an (n,) array, keeping values of different types apart.

    Examples
    --------
    >>> group_values([1, "1"]).tolist()
    [1, '1']
    """
    if not isinstance(groups, list | tuple):
        return convert.to_column(convert.to_array(groups, "groups"), "groups")
    if set(map(type, groups)) in ({int}, {float}, {str}):
        values = np.asarray(groups)
        # NumPy strings drop trailing NULs, and integers beyond int64 may be rounded to floats.
        if values.tolist() == list(groups):
            return values
    return np.fromiter(groups, dtype=object, count=len(groups))


def group_runs(values: NDArray[Any]) -> tuple[NDArray[np.intp] | None, NDArray[np.int64]]:
    """Return an order of the rows in which each group is contiguous, and the offsets of the groups.

    The order is None if each group is contiguous already. Group g has the ordered rows
    ``offsets[g] : offsets[g + 1]``.

    Examples
    --------
    >>> group_runs(np.array(["b", "a", "b"]))
    (array([1, 0, 2]), array([0, 1, 3]))
    """
    if values.dtype.kind in "OV":
        values = _codes(values)
    else:
        missing = np.flatnonzero(values != values)  # NaN and NaT do not equal themselves
        if missing.size:
            _raise_missing(values[missing[0]], int(missing[0]))
    order = None
    if (values[1:] < values[:-1]).any():
        order = stable_order(values)
        values = values[order]
    starts = np.flatnonzero(values[1:] != values[:-1]) + 1
    offsets = np.concatenate(([0], starts, [values.shape[0]])).astype(np.int64)
    return order, offsets


def stable_order(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the stable order of (n,) values. For integers it takes one sort of other integers."""
    if values.dtype.kind in "iu":
        low, high, bits = int(values.min()), int(values.max()), values.shape[0].bit_length()
        if high < 1 << 63 and (high - low) >> (63 - bits) == 0:
            # Each integer followed by its row; the order of such keys is unique.
            keys = (values.astype(np.int64) - low) << bits
            keys += np.arange(values.shape[0])
            keys.sort()
            order: NDArray[np.intp] = keys & ((1 << bits) - 1)
            return order
    return np.argsort(values, kind="stable")


def group_numbers(
    order: NDArray[np.intp] | None, offsets: NDArray[np.int64] | None
) -> NDArray[np.int64] | None:
    """Return the number of the group of each row, from what `group_runs` returns; None without."""
    return None if offsets is None else _numbers(order, offsets)


def group_codes(*groups: ArrayLike) -> list[NDArray[np.int64]]:
    """Return numbers from 0 for the groups of several sets of rows, equal for equal groups.

    Examples
    --------
    >>> group_codes(["b", "a"], ["a", "c", "a"])
    [array([1, 0]), array([0, 2, 0])]
    """
    values = [group_values(of_set) for of_set in groups]
    if len({of_set.dtype.kind for of_set in values}) > 1:
        values = [of_set.astype(object) for of_set in values]
    order, offsets = group_runs(np.concatenate(values))
    bounds = np.cumsum([of_set.shape[0] for of_set in values[:-1]])
    return np.split(_numbers(order, offsets), bounds)


def _numbers(order: NDArray[np.intp] | None, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    numbers = np.repeat(np.arange(offsets.shape[0] - 1, dtype=np.int64), np.diff(offsets))
    if order is not None:
        numbers[order] = numbers.copy()
    return numbers


def _codes(values: NDArray[Any]) -> NDArray[np.int64]:
    """Replace each group by a number, in the order of their first rows."""
    code_of: dict[Any, int] = {}
    codes = np.empty(values.shape[0], dtype=np.int64)
    for i, value in enumerate(values.tolist()):
        try:
            missing = value is None or bool(value != value)
            if not missing:
                codes[i] = code_of.setdefault(value, len(code_of))
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


def _raise_missing(value: object, i: int) -> NoReturn:
    raise ValueError(
        f"groups must name a group for every row; got {value!r} (first at index {i}). "
        "Drop those rows, or give each of them a group of its own."
    )

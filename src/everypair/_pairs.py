"""Groups of rows: any hashable values in, runs of rows out.

Only pairs inside a group count (a query, a patient, a day), so kernels want each group's rows side
by side and the boundaries between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["runs", "values_from"]


def values_from(sequence: list[Any] | tuple[Any, ...]) -> NDArray[Any]:
    """Return group values as an array, without letting NumPy melt unlike values into one type.

    Examples
    --------
    >>> values_from([1, "1"]).tolist()
    [1, '1']
    """
    kinds = set(map(type, sequence))
    if len(kinds) == 1 and kinds <= {int, float, str}:
        return np.asarray(sequence)
    return np.fromiter(sequence, dtype=object, count=len(sequence))


def runs(values: NDArray[Any]) -> tuple[NDArray[np.intp] | None, NDArray[np.int64]]:
    """Return the order that brings groups together, or None if it is the present one, and offsets.

    Examples
    --------
    >>> runs(np.array(["b", "a", "b"]))
    (array([1, 0, 2]), array([0, 1, 3]))
    """
    if values.dtype.kind in "OV":
        values = _codes(values)
    else:
        # A missing value is the one that does not equal itself.
        missing = values != values
        if missing.any():
            _raise_missing(values[int(np.argmax(missing))], int(np.argmax(missing)))
    order: NDArray[np.intp] | None = None
    if (values[1:] < values[:-1]).any():
        order = np.argsort(values, kind="stable")
        values = values[order]
    starts = np.flatnonzero(values[1:] != values[:-1]) + 1
    offsets = np.concatenate(([0], starts, [values.shape[0]])).astype(np.int64)
    return order, offsets


def _codes(values: NDArray[Any]) -> NDArray[np.int64]:
    seen: dict[Any, int] = {}
    codes = np.empty(values.shape[0], dtype=np.int64)
    for i, value in enumerate(values.tolist()):
        try:
            missing = value is None or bool(value != value)
            if not missing:
                codes[i] = seen.setdefault(value, len(seen))
        except (TypeError, ValueError):  # pandas.NA has no truth value; a list has no hash
            if type(value).__name__ != "NAType":
                raise ValueError(
                    f"groups must be hashable values; got {value!r} at index {i}. "
                    "Use strings, numbers or tuples."
                ) from None
            missing = True
        if missing:
            _raise_missing(value, i)
    return codes


def _raise_missing(value: object, i: int) -> None:
    raise ValueError(
        f"groups must name a group for every row; got {value!r} (first at index {i}). "
        "Drop those rows, or give each of them a group of its own."
    )

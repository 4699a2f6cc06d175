"""Ordered targets: every row is to score higher than every row of its group with a lower target."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import convert


def target_from(given: ArrayLike, name: str = "labels") -> NDArray[Any]:
    """Convert grades or real targets to an (n,) array, and check that all of them are finite.

    Examples
    --------
    >>> target_from([3, 1, 2]).tolist()
    [3, 1, 2]
    """
    if type(given) is np.ndarray and given.ndim == 1 and given.dtype.kind in "biuf":
        column: NDArray[Any] = given
    else:
        column = convert.to_column(convert.to_real(given, name), name)
    if column.dtype.kind == "f":
        finite = np.isfinite(column)
        if not finite.all():
            i = int(np.argmin(finite))
            raise ValueError(
                f"{name} must be finite numbers; got {column[i].item()!r} (first at index {i}). "
                "Drop the rows whose target is not known."
            )
    return column

"""Choose what computes the sums over all pairs of a row and another row.

All array functions of this folder, and those of `everypair.torch` on the CPU, compute such sums by
what `plan` returns. Today that is NumPy. A compiled kernel would be chosen here: `plan` may return
any object that has the method `RowSums.sums`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from everypair.arrays.numpy import NumpyArrays
from everypair.ranks._pieces import pieces_of
from everypair.ranks._sweep import RowSums
from everypair.surrogates import Floats, PairTerm

Groups = tuple[NDArray[np.int64], NDArray[np.int64]]


class Plan(Protocol):
    """Sums over the pairs of rows (n,) and other rows (m,); see `RowSums`."""

    def sums(self, weights: Any, order: int, *, per_other: bool = False) -> Any:
        """Return (n,) sums over the other rows, or (m,) sums over the rows with `per_other`."""


def plan(
    rows: NDArray[Any], others: NDArray[Any], terms: tuple[PairTerm, ...], groups: Groups | None
) -> Plan:
    """Prepare the sums over all pairs of a row and another row.

    Parameters
    ----------
    rows, others : (n,) and (m,) float32 or float64
        Finite scores. Results have the accuracy of float64 if one of the two is float64.
    terms : tuple of KnotTerm and ShiftedTerm
        A surrogate at a margin (`Surrogate.at_margin`).
    groups : tuple of (n,) and (m,) integers, or None
        Numbers of groups, from 0. Only pairs inside a group count.
    """
    wide = np.result_type(rows, others) == np.float64
    x, y = (a.astype(np.float64, copy=False) for a in (rows, others))
    # Groups share one running sum, in which heavy groups would round away light ones.
    xp = NumpyArrays(compensated=wide or groups is not None)
    return _Quiet(RowSums(xp, x, y, groups, pieces_of(terms, wide=wide)))


class _Quiet:
    """Sums without NumPy's warnings: sums of huge scores may overflow, to infinity."""

    def __init__(self, sums: RowSums) -> None:
        self._sums = sums

    def sums(self, weights: Floats, order: int, *, per_other: bool = False) -> Floats:
        """See `Plan`."""
        with np.errstate(all="ignore"):
            found: Floats = self._sums.sums(weights, order, per_other=per_other)
        return found

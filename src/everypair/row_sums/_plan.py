"""Choose what computes the sums over all pairs of a row and another row.

All array functions of this folder, and those of `everypair.torch` on the CPU, compute such sums by
`Plan`. The compiled kernel computes the surrogates that it takes, if it is installed, and NumPy all
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.arrays.numpy import NumpyArrays
from everypair.arrays.pair_sums import needs_low_parts
from everypair.arrays.row_sums import RowSums
from everypair.arrays.terms import by_kind
from everypair.kernel import choose, native
from everypair.surrogates import Floats, PairTerm, Table, tables

Groups = tuple[NDArray[np.int64], NDArray[np.int64]]


class Plan:
    """The sums over all pairs of a row and another row.

    Parameters
    ----------
    rows, others : (n,) and (m,) float32 or float64
        Finite scores.
    terms : tuple of KnotTerm and ShiftedTerm
        A surrogate at a margin (`Surrogate.at_margin`).
    groups : tuple of (n,) and (m,) integers, or None
        Numbers of groups, from 0. Only pairs inside a group count.
    wide : bool
        Whether results need the accuracy of float64.
    """

    def __init__(
        self,
        rows: NDArray[Any],
        others: NDArray[Any],
        terms: tuple[PairTerm, ...],
        groups: Groups | None,
        *,
        wide: bool,
    ) -> None:
        x, y = (a.astype(np.float64, copy=False) for a in (rows, others))
        pieces, exponential = tables(terms, wide)
        is_native = choose.uses_native() and not exponential
        for table in pieces:
            is_native &= not table.e.any() and table.c.shape[-1] <= native.MAX_POWERS
        self._parts: list[native.RowSums | RowSums]
        if is_native:
            self._parts = [native.RowSums(x, y, groups, native_form(table)) for table in pieces]
            return
        compensated = needs_low_parts(terms, wide=wide, weighted=True, grouped=groups is not None)
        with np.errstate(all="ignore"):
            xp = NumpyArrays(compensated=compensated)
            self._parts = [RowSums(xp, x, y, groups, by_kind(terms, wide=wide))]

    def sums(
        self, weights: Floats, orders: Sequence[int], *, per_other: bool = False
    ) -> list[Floats]:
        """See `everypair.arrays.row_sums.RowSums`."""
        with np.errstate(all="ignore"):  # sums of huge scores may overflow, to infinity
            of_parts = [part.sums(weights, orders, per_other) for part in self._parts]
            return [reduce(add, of_order) for of_order in zip(*of_parts, strict=True)]


def native_form(table: Table) -> native.PieceForm:
    """Return a table as the compiled kernel takes it."""
    return table.shift, table.rate, np.ascontiguousarray(table.c * table.units), table.p


def own_pair(terms: tuple[PairTerm, ...], *, wide: bool) -> list[float]:
    """Return value, slope and curvature of the pair of a row with itself.

    They are computed as all others, so that subtracting them leaves nothing of a row without
    others.
    """
    return _own_pair(terms, wide, choose.uses_native())


@lru_cache(maxsize=64)
def _own_pair(terms: tuple[PairTerm, ...], wide: bool, compiled: bool) -> list[float]:
    zero = np.zeros(1)
    sums = Plan(zero, zero, terms, None, wide=wide).sums(np.ones(1), (0, 1, 2))
    return [float(of_order[0]) for of_order in sums]

"""Choose what computes the sums over all pairs of a row and another row.

All array functions of this folder, and those of `everypair.torch` on the CPU, compute such sums by
what `plan` returns. The compiled kernel computes the pieces of a surrogate that it takes, if it is
installed, and NumPy all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from everypair.arrays.numpy import NumpyArrays
from everypair.kernel import choose, native
from everypair.row_sums._pieces import Part, Piece, pieces_of
from everypair.row_sums._sweep import RowSums, Sweep
from everypair.surrogates import Floats, PairTerm

Groups = tuple[NDArray[np.int64], NDArray[np.int64]]


class Plan(Protocol):
    """Sums over the pairs of rows (n,) and other rows (m,); see `RowSums`."""

    def sums(self, weights: Any, orders: Sequence[int], *, per_other: bool = False) -> list[Any]:
        """Return (n,) sums over the other rows, or (m,) sums over the rows with `per_other`."""


def plan(
    rows: NDArray[Any],
    others: NDArray[Any],
    terms: tuple[PairTerm, ...],
    groups: Groups | None,
    *,
    wide: bool,
) -> Plan:
    """Prepare the sums over all pairs of a row and another row.

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
    x, y = (a.astype(np.float64, copy=False) for a in (rows, others))
    # Groups share one running sum, in which heavy groups would round away light ones.
    xp = NumpyArrays(compensated=wide or groups is not None)
    with np.errstate(all="ignore"):
        return _Quiet(RowSums(xp, x, y, groups, pieces_of(terms, wide=wide), _sweep))


def _sweep(xp: NumpyArrays, x: Floats, y: Floats, groups: Groups | None, piece: Piece) -> Part:
    powers, polynomials = piece.coefficients
    has_distances = any(of_side.e is not None for pair in piece.sides for of_side in pair)
    if not choose.uses_native() or has_distances or powers.shape[-1] > native.MAX_POWERS:
        return Sweep(xp, x, y, groups, piece)
    return native.RowSums(x, y, groups, (piece.shift, piece.rate, powers, polynomials))


def own_pair(terms: tuple[PairTerm, ...], *, wide: bool) -> list[float]:
    """Return value, slope and curvature of the pair of a row with itself.

    They are computed as all others, so that subtracting them leaves nothing of a row without
    others.
    """
    return _own_pair(terms, wide, choose.uses_native())


@lru_cache(maxsize=64)
def _own_pair(terms: tuple[PairTerm, ...], wide: bool, compiled: bool) -> list[float]:
    zero = np.zeros(1)
    sums = plan(zero, zero, terms, None, wide=wide).sums(np.ones(1), (0, 1, 2))
    return [float(of_order[0]) for of_order in sums]


class _Quiet:
    """Sums without NumPy's warnings: sums of huge scores may overflow, to infinity."""

    def __init__(self, sums: RowSums) -> None:
        self._sums = sums

    def sums(
        self, weights: Floats, orders: Sequence[int], *, per_other: bool = False
    ) -> list[Floats]:
        """See `Plan`."""
        with np.errstate(all="ignore"):
            return self._sums.sums(weights, orders, per_other=per_other)

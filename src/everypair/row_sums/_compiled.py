"""Sums of one piece of a surrogate by the compiled kernel (``src/native/row_sums.hpp``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.kernel.threads import kernel_threads
from everypair.row_sums._pieces import Piece
from everypair.surrogates import Floats

if TYPE_CHECKING:
    from everypair import _native

_MOST_POWERS = 24

Kernel = Callable[..., "_native.RowSums"]


def can_take(piece: Piece) -> bool:
    """Return whether the compiled kernel computes these sums: not those with factors |d|."""
    powers, _ = piece.coefficients
    return powers.shape[-1] <= _MOST_POWERS and all(
        s.e is None for pair in piece.sides for s in pair
    )


class CompiledSweep:
    """The sums of one piece; the parameters and `sums` are those of `_sweep.Sweep`."""

    def __init__(self, kernel: Kernel, x: Floats, y: Floats, groups: Any, piece: Piece) -> None:
        sets = [x, y]
        orders: list[Any] = [None, None]
        offsets: list[Any] = [None, None]
        if groups is not None:
            n_groups = 1 + max(int(codes.max()) for codes in groups)
            orders = [np.argsort(codes, kind="stable") for codes in groups]
            sets = [a[order] for a, order in zip(sets, orders, strict=True)]
            offsets = [
                np.searchsorted(codes[order], np.arange(n_groups + 1))
                for codes, order in zip(groups, orders, strict=True)
            ]
        self._orders, self._sizes = orders, (x.shape[0], y.shape[0])
        sets = [np.ascontiguousarray(a) for a in sets]
        threads = kernel_threads()
        function = (piece.shift, piece.rate, *piece.coefficients)
        self._kernel = kernel(*sets, *offsets, function, threads)

    def sums(self, weights: Floats, orders: Sequence[int], per_other: bool) -> list[Floats]:
        """See `RowSums`."""
        of_sources, of_targets = self._orders if per_other else self._orders[::-1]
        w = np.ascontiguousarray(weights if of_sources is None else weights[of_sources])
        found = {order: np.empty(self._sizes[per_other]) for order in orders}
        arrays = found.get(0), found.get(1), found.get(2)
        self._kernel.fill(w, per_other, kernel_threads(), arrays)
        if of_targets is None:
            return list(found.values())
        out = [np.empty_like(sums) for sums in found.values()]
        for a, sums in zip(out, found.values(), strict=True):
            a[of_targets] = sums
        return out

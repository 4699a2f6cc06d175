"""Sums of exponential terms, which are products of a factor of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.eager import SlicedSums
    from everypair.row_sums._pieces import Exponential

    Array = Any
    Groups = tuple[Array, Array] | None


class ProductSums:
    """The sums of an exponential term ``scale * exp(rate * (y + shift - x))``; see `RowSums`.

    Factors are relative to the largest one of the rows that are summed over, in each group. So only
    results overflow that are themselves too large for a float.
    """

    def __init__(
        self, xp: SlicedSums, x: Array, y: Array, groups: Groups, term: Exponential
    ) -> None:
        self._xp, (self._shift, self._term) = xp, term
        if groups is None:
            groups = xp.row_numbers(x) * 0, xp.row_numbers(y) * 0
            self._n_groups = 1
        else:
            self._n_groups = int(max(groups[0].max(), groups[1].max())) + 1
        self._sets = (-x, groups[0]), (y, groups[1])  # d = y - x

    def sums(self, weights: Array, orders: Sequence[int], per_other: bool) -> list[Array]:
        """See `RowSums`."""
        xp, rate, scale = self._xp, self._term.rate, self._term.scale
        (own, own_groups), (other, groups) = self._sets[::-1] if per_other else self._sets
        top = xp.segment_max(xp.where(weights == 0.0, -np.inf, other), groups, self._n_groups)
        top = xp.where(xp.isfinite(top), top, 0.0)
        factors = xp.exponential(rate * (other - xp.pick(top, groups)))
        # A row of weight 0 may have an infinite factor.
        weighted = xp.where(weights == 0.0, 0.0, weights * factors)
        sums = xp.pick(xp.segment_sums(weighted, groups, self._n_groups), own_groups)
        distance = (own + xp.pick(top, own_groups)) + self._shift
        out = xp.where(sums == 0.0, 0.0, xp.exponential(rate * distance) * sums)
        return [out * (scale * rate**order) for order in orders]

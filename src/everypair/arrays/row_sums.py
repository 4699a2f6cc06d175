"""Sums over all pairs of a row and another row, for each row and for each other row.

For rows x_i, other rows y_j and the terms of a surrogate f at a margin, these are

    r_i = sum over j of w_j f(d_ij)    and    q_j = sum over i of v_i f(d_ij),    d_ij = y_j - x_i

or the same with the first or second derivative of f, for weights of any sign: the rows are the
positives of a batch and the other rows its negatives (see `pair_sums`). The second sum is the
transpose of the first. The derivatives of each are sums of these two kinds.

The error is that of the fits (`surrogates`) and 1e-13 by rounding, relative to the sum over the
pairs of the absolute values of all terms.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import Number
from everypair.arrays.pair_sums import parts_of
from everypair.arrays.rows import Rows, Runs, Targets, by_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.double_double import Arrays
    from everypair.arrays.terms import Kinds

    Array = Any


class RowSums:
    """The sums over all pairs of rows (n,) and other rows (m,).

    Parameters
    ----------
    xp : Arrays
    x, y : (n,) and (m,) float64
        Scores of the rows and of the other rows.
    groups : tuple of (n,) and (m,) integers, or None
        Numbers of groups. Only pairs inside a group count.
    terms : Kinds
        What `everypair.arrays.terms.by_kind` returns.
    """

    def __init__(
        self, xp: Arrays, x: Array, y: Array, groups: tuple[Array, Array] | None, terms: Kinds
    ) -> None:
        self._xp, self._n = xp, x.shape[-1]
        self._zeros = xp.zeros_like(x), xp.zeros_like(y)
        scores = xp.concatenate([x, y])
        positive, order, codes = xp.row_numbers(scores) < self._n, None, None
        runs = Runs(xp, xp.row_numbers(scores))
        if groups is not None:
            order, runs, codes, scores, positive = by_group(
                xp, xp.concatenate(groups), scores, positive
            )
        self._order, self._parts = order, parts_of(xp, Rows(scores, positive, codes, runs), terms)

    def sums(self, weights: Array, orders: Sequence[int], per_other: bool = False) -> list[Array]:
        """Return the sums of derivatives of the surrogate with respect to the shortfall.

        Parameters
        ----------
        weights : (m,) or (n,) float64
            Those of the other rows, or of the rows with `per_other`.
        orders : sequence of 0, 1 and 2
            The value, the slope or the curvature. Several orders share most of the work.
        per_other : bool
            Return q, of shape (m,), instead of r, of shape (n,).
        """
        xp, n, order = self._xp, self._n, self._order
        source = xp.concatenate(
            [weights, self._zeros[1]] if per_other else [self._zeros[0], weights]
        )
        source = Number(source if order is None else xp.gather(source, order))
        to = Targets(positives=not per_other, negatives=per_other)
        of_parts = [part.sums(source, orders, to) for part in self._parts]
        arrays = [reduce(xp.plus, of_order).high for of_order in zip(*of_parts, strict=True)]
        if order is not None:
            arrays = [xp.scatter(a, order) for a in arrays]
        return [a[n:] if per_other else a[:n] for a in arrays]

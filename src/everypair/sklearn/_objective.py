"""The objective: the mean pair loss of the scores ``X w``, plus ``alpha / 2 |w|^2``.

One evaluation costs ``X @ w``, the pair loss in O(n log n), and ``X.T @ grad``. The pair loss does
not change if a constant is added to a column of X, so there is no intercept to fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]
from numpy.typing import NDArray

from everypair import losses
from everypair.surrogates import Surrogate

Vector = NDArray[np.float64]

# If a column's mean exceeds its standard deviation by this factor, X.T @ grad would lose digits,
# so the columns are centred first.
_LARGE_OFFSET = 1e3
_ROWS_PER_BLOCK = 2048


@dataclass(frozen=True)
class TrainingData:
    """Checked training data: X is dense or CSR, the other arrays have shape (n,).

    The target is bool for binary pairs, real numbers for ordered ones, and columns (time, event) or
    signed times for survival.
    """

    X: Any  # (n, d) float64
    target: NDArray[Any]
    weights: Vector | None
    groups: NDArray[np.int64] | None  # numbers of the groups, from 0
    pairs: Literal["binary", "ordered", "survival"] = "binary"
    censoring: Literal["harrell", "uno"] = "harrell"

    def subset(self, index: NDArray[np.intp]) -> TrainingData:
        """Return the rows at these indices."""
        weights = None if self.weights is None else self.weights[index]
        groups = None if self.groups is None else self.groups[index]
        return replace(
            self, X=self.X[index], target=self.target[index], weights=weights, groups=groups
        )

    def pair_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `everypair.pair_loss` that say which pairs count."""
        options = {"weights": self.weights, "groups": self.groups}
        return {**options, "pairs": self.pairs, "censoring": self.censoring}

    def loss_options(self, surrogate: str | Surrogate, margin: float) -> dict[str, Any]:
        """Return the keyword arguments of `everypair.pair_loss`."""
        return {"surrogate": surrogate, "margin": margin, **self.pair_options()}

    def has_pairs(self) -> bool:
        """Return whether some pair of rows in one group has positive weight."""
        # Every pair of equal scores has a loss of 1.
        options = self.loss_options("square", 1.0)
        return losses.pair_loss(np.zeros(len(self.target)), self.target, **options) > 0.0

    def centred(self) -> TrainingData:
        """Subtract the means from the columns of dense X if some mean is large.

        Pair differences, and so the ranking, do not change.
        """
        if sp.issparse(self.X):
            return self
        mean = self.X.mean(axis=0)
        # About a hundred rows are enough to detect a large offset.
        deviation = self.X[:: max(1, len(self.X) // 100)].std(axis=0)
        if not (np.abs(mean) > _LARGE_OFFSET * deviation).any():
            return self
        return replace(self, X=self.X - mean)


def pair_scatter(data: TrainingData, hess: Vector, *, diagonal: bool) -> Vector:
    """Approximate the (d, d) Hessian of the pair loss from its diagonal in the scores.

    `hess` holds h_i, the sum of the second derivatives of the pairs of row i. Inside a group, those
    of the positives and those of the negatives have the same sum H, and the pair (i, j) is given
    the second derivative ``h_i h_j / H``. This is exact if the second derivatives of all pairs
    differ only by their weights, as at zero scores::

        sum_i h_i x_i x_i^T  -  sum_groups (A + A^T) / H,    A = s_pos s_neg^T

    where s is the sum of ``h_i x_i`` over a class of a group. For ordered and survival pairs a row
    may be compared with all others of its group: H is the sum over the group, and ``A + A^T``
    becomes ``s s^T`` with the sum s over the group. Takes O(n d^2) time; with `diagonal` only the
    (d,) diagonal is computed, in O(n d).
    """
    codes = np.zeros(len(hess), np.int64) if data.groups is None else data.groups
    if data.pairs == "binary":
        pos, neg = (np.where(data.target == side, hess, 0.0) for side in (True, False))
    else:
        pos, neg = hess, 0.5 * hess
    totals = np.bincount(codes, pos)
    s_pos, s_neg = (_sums_by_group(data.X, side, codes, len(totals)) for side in (pos, neg))
    s_pos /= np.where(totals > 0.0, totals, 1.0)[:, None]
    if diagonal:
        squares = data.X.multiply(data.X) if sp.issparse(data.X) else np.square(data.X)
        of_rows = np.asarray(squares.T @ hess).ravel()
        return np.asarray(np.maximum(of_rows - 2.0 * (s_pos * s_neg).sum(axis=0), 0.0))
    cross = s_pos.T @ s_neg
    return np.asarray(_weighted_gram(data.X, hess) - cross - cross.T)


def _sums_by_group(X: Any, weights: Vector, codes: NDArray[np.int64], n_groups: int) -> Vector:
    """Return the weighted sum of the rows of each group, of shape (n_groups, d)."""
    if n_groups == 1:
        return np.array(X.T @ weights).reshape(1, -1)
    n = len(codes)
    members = sp.csr_matrix((weights, (codes, np.arange(n))), shape=(n_groups, n))
    sums = members @ X
    return np.asarray(sums.todense() if sp.issparse(sums) else sums)


def _weighted_gram(X: Any, weights: Vector) -> Vector:
    """Return ``X.T @ diag(weights) @ X``, of shape (d, d)."""
    if sp.issparse(X):
        return np.asarray((X.T @ X.multiply(weights[:, None]).tocsr()).todense())
    gram = np.zeros((X.shape[1], X.shape[1]))
    # The weighted copy of a block of rows fits in the cache.
    for first in range(0, len(X), _ROWS_PER_BLOCK):
        rows = slice(first, first + _ROWS_PER_BLOCK)
        gram += (X[rows] * weights[rows, None]).T @ X[rows]
    return gram

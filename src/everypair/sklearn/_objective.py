"""What is minimised: a surrogate over all pairs of the scores ``X w``, plus ``alpha / 2 |w|^2``.

One evaluation costs ``X @ w``, the pair loss in O(n log n), and ``X.T @ g``. The pair loss does not
change when a column of X moves by a constant, so there is no intercept to fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]

from everypair import losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from everypair.surrogates import Surrogate

__all__ = ["PairObjective", "Rows", "pair_scatter"]

# Beyond this ratio of a column's mean to its deviation, X.T @ g loses digits that centring keeps.
_FAR_FROM_ZERO = 1e3
_ROWS_OF_A_BLOCK = 2048


@dataclass(frozen=True)
class Rows:
    """The training rows: `X` dense or CSR in float64, who is positive, weights and group codes."""

    X: Any
    positive: NDArray[np.bool_]
    weights: NDArray[np.float64] | None
    groups: NDArray[np.int64] | None

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Return the rows at these places."""
        return Rows(
            self.X[index],
            self.positive[index],
            None if self.weights is None else self.weights[index],
            None if self.groups is None else self.groups[index],
        )

    def centred(self) -> Rows:
        """Return rows that rank alike, with dense columns that are far from zero moved there."""
        if sp.issparse(self.X):
            return self
        mean = self.X.mean(axis=0)
        # A few rows tell a large offset as well as all of them would.
        deviation = self.X[:: max(1, len(self.X) // 100)].std(axis=0)
        if not (np.abs(mean) > _FAR_FROM_ZERO * deviation).any():
            return self
        return Rows(self.X - mean, self.positive, self.weights, self.groups)


class PairObjective:
    """The objective, its gradient and its Hessian, as functions of coefficients and their scores.

    Parameters
    ----------
    rows : Rows
    surrogate : Surrogate
    margin, alpha : float
    """

    def __init__(self, rows: Rows, surrogate: Surrogate, margin: float, alpha: float) -> None:
        self.rows = rows
        self.alpha = alpha
        self._transposed = rows.X.T
        self._knobs: dict[str, Any] = {
            "surrogate": surrogate,
            "margin": margin,
            "weights": rows.weights,
            "groups": rows.groups,
        }

    def scores(self, coef: NDArray[np.float64]) -> NDArray[np.float64]:
        """Score every row."""
        out: NDArray[np.float64] = self.rows.X @ coef
        return out

    def value_and_slope(
        self, coef: NDArray[np.float64], scores: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64]]:
        """Return the objective, and the gradient of its pair loss in the scores: no pass over X."""
        loss, slope = losses.pair_loss_and_grad(scores, self.rows.positive, **self._knobs)
        return loss + 0.5 * self.alpha * float(coef @ coef), slope

    def grad(self, coef: NDArray[np.float64], slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gradient in the coefficients."""
        out: NDArray[np.float64] = self._transposed @ slope + self.alpha * coef
        return out

    def curvature(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the diagonal of the pair loss's Hessian in the scores."""
        return losses.pair_derivatives(scores, self.rows.positive, **self._knobs).hess

    def hessian_times(
        self,
        scores: NDArray[np.float64],
        vector: NDArray[np.float64],
        vector_scores: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Multiply the Hessian by a vector, given also the scores of that vector."""
        curved = losses.pair_hvp(scores, self.rows.positive, vector_scores, **self._knobs)
        out: NDArray[np.float64] = self._transposed @ curved + self.alpha * vector
        return out


def pair_scatter(
    rows: Rows, curvature: NDArray[np.float64], *, diagonal: bool
) -> NDArray[np.float64]:
    """Approximate the Hessian of the pair loss from its diagonal in the scores, in O(n d^2).

    `curvature` holds h_i, the weight of the curved pairs of row i. Inside a group, those of the
    positives and those of the negatives add up to the same H, and the pair (i, j) is taken to
    weigh ``h_i h_j / H``. That is exact where all pairs are curved alike, as at zero scores::

        sum_i h_i x_i x_i^T  -  sum_groups (A + A^T) / H,    A = s_pos s_neg^T

    with s the sums of ``h_i x_i`` over a class in a group. `diagonal` asks for its diagonal only.
    """
    n = rows.positive.shape[0]
    codes = np.zeros(n, dtype=np.int64) if rows.groups is None else rows.groups
    pos, neg = (np.where(rows.positive == side, curvature, 0.0) for side in (True, False))
    totals = np.bincount(codes, pos)
    s_pos, s_neg = (_sums_by_group(rows.X, side, codes, len(totals)) for side in (pos, neg))
    s_pos /= np.where(totals > 0.0, totals, 1.0)[:, None]
    if diagonal:
        squares = rows.X.multiply(rows.X) if sp.issparse(rows.X) else np.square(rows.X)
        own = np.asarray(squares.T @ curvature).ravel()
        return np.asarray(np.maximum(own - 2.0 * (s_pos * s_neg).sum(axis=0), 0.0))
    cross = s_pos.T @ s_neg
    return np.asarray(_weighted_gram(rows.X, curvature) - cross - cross.T)


def _sums_by_group(
    X: Any, weights: NDArray[np.float64], codes: NDArray[np.int64], n_groups: int
) -> NDArray[np.float64]:
    if n_groups == 1:
        return np.array(X.T @ weights).reshape(1, -1)
    n = len(codes)
    members = sp.csr_matrix((weights, (codes, np.arange(n))), shape=(n_groups, n))
    sums = members @ X
    return np.asarray(sums.todense() if sp.issparse(sums) else sums)


def _weighted_gram(X: Any, row_factor: NDArray[np.float64]) -> NDArray[np.float64]:
    if sp.issparse(X):
        return np.asarray((X.T @ X.multiply(row_factor[:, None]).tocsr()).todense())
    gram = np.zeros((X.shape[1], X.shape[1]))
    # Block by block, so that the weighted copy of the rows stays in the cache.
    for first in range(0, len(X), _ROWS_OF_A_BLOCK):
        block = X[first : first + _ROWS_OF_A_BLOCK]
        gram += (block * row_factor[first : first + _ROWS_OF_A_BLOCK, None]).T @ block
    return gram

"""Coordinates in which the objective is round.

With the square surrogate the Hessian is the scatter of all pair differences (times 2, plus alpha).
Other surrogates see a part of the pairs, so its Cholesky factor serves them as a preconditioner:
columns of any scale and correlation take the solvers a handful of steps. Wide X gets the diagonal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg.blas import dtrsv  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MOST_COLUMNS", "Scaling"]

# Up to here the Gram matrix in O(n d^2) costs less than the passes over X that it saves.
MOST_COLUMNS = 500


class Scaling:
    """A change of coordinates ``u = R coef`` with ``R^T R`` close to the Hessian.

    Parameters
    ----------
    scatter : (d, d) or (d,)
        That of `pair_scatter`, full or its diagonal.
    alpha : float
    """

    def __init__(self, scatter: NDArray[np.float64], alpha: float) -> None:
        diagonal = scatter if scatter.ndim == 1 else scatter.diagonal()
        squares = diagonal + alpha
        self._root = np.sqrt(np.where(squares > 0.0, squares, 1.0))
        self._factor: NDArray[np.float64] | None = None
        if scatter.ndim == 2:
            # Of unit diagonal first: Cholesky then sees correlations only, not units.
            rooted = scatter / np.outer(self._root, self._root)
            # A little more, for columns that repeat others.
            np.fill_diagonal(rooted, 1.0 + 1e-11)
            try:
                self._factor = np.asfortranarray(np.linalg.cholesky(rooted).T)
            except np.linalg.LinAlgError:
                return

    def coef(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coefficients at these coordinates."""
        if self._factor is not None:
            u = dtrsv(self._factor, u)
        return u / self._root

    def grad(self, coef_grad: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gradient in these coordinates."""
        rooted: NDArray[np.float64] = coef_grad / self._root
        return rooted if self._factor is None else dtrsv(self._factor, rooted, trans=1)

    def coordinates(self, coef: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coordinates of coefficients."""
        rooted: NDArray[np.float64] = coef * self._root
        return rooted if self._factor is None else self._factor @ rooted

"""A linear change of coordinates in which the objective is well conditioned.

With the square surrogate the Hessian is twice the scatter matrix of all pair differences, plus
alpha. Other surrogates depend on a subset of the pairs, and the Cholesky factor of an approximate
scatter matrix serves as their preconditioner: with it, the solvers need few iterations whatever
the scales and correlations of the columns. For wide X only the diagonal is used.
"""

from __future__ import annotations

import contextlib

import numpy as np
from scipy.linalg.blas import dtrsv  # type: ignore[import-untyped]

from everypair.sklearn._objective import Vector

# Up to this number of columns, computing the full scatter matrix in O(n d^2) costs less than the
# passes over X that it saves.
MAX_COLUMNS = 500


class Preconditioner:
    """The coordinates ``u = R coef`` with ``R^T R`` close to the Hessian.

    `scatter` is the result of `pair_scatter`, of shape (d, d), or its diagonal, of shape (d,). The
    strength `alpha` of the penalty is added to the diagonal.
    """

    def __init__(self, scatter: Vector, alpha: float) -> None:
        diagonal = scatter if scatter.ndim == 1 else scatter.diagonal()
        squares = diagonal + alpha
        self._root = np.sqrt(np.where(squares > 0.0, squares, 1.0))
        self._factor: Vector | None = None
        if scatter.ndim == 2:
            # A unit diagonal makes the Cholesky factorisation independent of the columns' scales.
            correlations = scatter / np.outer(self._root, self._root)
            # The small addition keeps it positive definite if columns are linearly dependent.
            np.fill_diagonal(correlations, 1.0 + 1e-11)
            with contextlib.suppress(np.linalg.LinAlgError):
                self._factor = np.asfortranarray(np.linalg.cholesky(correlations).T)

    def coef(self, u: Vector) -> Vector:
        """Return the coefficients with these coordinates: ``R^-1 u``, of shape (d,)."""
        if self._factor is not None:
            u = dtrsv(self._factor, u)
        return u / self._root

    def grad(self, coef_grad: Vector) -> Vector:
        """Return the gradient in the coordinates u: ``R^-T coef_grad``, of shape (d,)."""
        scaled: Vector = coef_grad / self._root
        return scaled if self._factor is None else dtrsv(self._factor, scaled, trans=1)

    def coordinates(self, coef: Vector) -> Vector:
        """Return the coordinates of coefficients: ``R coef``, of shape (d,)."""
        scaled: Vector = coef * self._root
        return scaled if self._factor is None else self._factor @ scaled

"""The solvers: Newton's method with conjugate gradients, and L-BFGS.

Both work in the coordinates of a `Preconditioner`, in which the objective is well conditioned, and
stop by the norm of the gradient relative to its norm at zero coefficients, computed in the
coordinates of X and in the preconditioned ones; the larger ratio counts. The second one does not
depend on the scales of the columns.
"""

from __future__ import annotations

import contextlib
import sys
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrsv  # type: ignore[import-untyped]
from scipy.optimize import minimize  # type: ignore[import-untyped]

from everypair.sklearn._objective import PairObjective, Vector

_EPS = float(np.finfo(np.float64).eps)
# Relative differences of objective values below this are rounding errors.
_ROUNDING = 50.0 * _EPS
_MAX_CG_STEPS = 250
# The line search stops where the derivative along the step has fallen to this share of its start.
_FLAT = 0.2
_MAX_LINE_SEARCH_STEPS = 20
# The size of a step along a direction without curvature, in gradients.
_LONG_STEP = 10.0


class Preconditioner:
    """The coordinates ``u = R coef`` with ``R^T R`` close to the Hessian.

    With the square surrogate the Hessian is twice the scatter matrix of all pair differences, plus
    alpha. Other surrogates depend on a subset of the pairs, and the Cholesky factor of an
    approximate scatter matrix serves: with it, the solvers need few iterations whatever the scales
    and correlations of the columns. For wide X only the diagonal is used.

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


class Solution(NamedTuple):
    """The result of a solver; `relative_norm` is that of the gradient at `coef`."""

    coef: Vector
    value: float
    relative_norm: float
    n_iter: int


class Problem:
    """An objective with its preconditioner, and the stopping rule of both solvers.

    `n_done` iterations were made so far, by earlier calls of a solver.
    """

    def __init__(self, objective: PairObjective, scatter: Vector, tol: float, verbose: int) -> None:
        self.objective, self.tol, self.verbose, self.n_done = objective, tol, verbose, 0
        n, d = objective.data.X.shape
        self.value_at_zero, score_grad = objective.value_and_score_grad(np.zeros(d), np.zeros(n))
        self.grad_at_zero = objective.grad(np.zeros(d), score_grad)
        self.precondition(scatter)

    def precondition(self, scatter: Vector) -> None:
        """Set the preconditioner to that of a scatter matrix, or of its diagonal."""
        self.preconditioner = Preconditioner(scatter, self.objective.alpha)
        scaled_grad = self.preconditioner.grad(self.grad_at_zero)
        self.norms_at_zero = np.linalg.norm(self.grad_at_zero), np.linalg.norm(scaled_grad)

    def grad(self, coef: Vector, score_grad: Vector) -> tuple[Vector, float]:
        """Return the gradient in the coordinates u, and its relative norm."""
        grad = self.objective.grad(coef, score_grad)
        scaled_grad = self.preconditioner.grad(grad)
        norms = np.linalg.norm(grad), np.linalg.norm(scaled_grad)
        return scaled_grad, float(np.max(np.divide(norms, self.norms_at_zero)))

    def report(self, n_iter: int, value: float, relative_norm: float) -> None:
        """Print one line about an iteration if `verbose` is not 0."""
        if self.verbose:
            sys.stdout.write(
                f"iteration {self.n_done + n_iter:3d}  objective {value:.9g}  "
                f"relative gradient {relative_norm:.2e}\n"
            )


def newton_cg(problem: Problem, start: Vector, max_iter: int) -> Solution:
    """Minimise by Newton steps from truncated conjugate gradients, with a line search.

    Conjugate gradients also compute the change of the scores, so the line search needs no product
    with X.
    """
    objective = problem.objective
    coef, scores = start, objective.scores(start)
    value, score_grad = objective.value_and_score_grad(coef, scores)
    grad, relative_norm = problem.grad(coef, score_grad)
    n_iter = 0
    while relative_norm > problem.tol and n_iter < max_iter:
        n_iter += 1
        u, score_step = _newton_step(problem, scores, grad, relative_norm)
        step = problem.preconditioner.coef(u)
        size, value, score_grad = _line_search(
            objective, coef, scores, value, step, score_step, float(grad @ u)
        )
        if size == 0.0:
            break
        coef, scores = coef + size * step, scores + size * score_step
        grad, relative_norm = problem.grad(coef, score_grad)
        problem.report(n_iter, value, relative_norm)
    return Solution(coef, value, relative_norm, n_iter)


def _newton_step(
    problem: Problem, scores: Vector, grad: Vector, relative_norm: float
) -> tuple[Vector, Vector]:
    """Solve the Newton equations approximately, as far as the curvature is positive.

    Returns the step in the coordinates u, and that of the scores.
    """
    objective, preconditioner = problem.objective, problem.preconditioner
    u, score_step = np.zeros_like(grad), np.zeros_like(scores)
    residual = direction = -grad
    residual_square = float(residual @ residual)
    residual_tol = max(
        min(0.1, relative_norm) * np.sqrt(residual_square),
        0.3 * problem.tol * problem.norms_at_zero[1],
    )
    for _ in range(_MAX_CG_STEPS):
        coef = preconditioner.coef(direction)
        coef_scores = objective.scores(coef)
        hvp = preconditioner.grad(objective.hvp(scores, coef, coef_scores))
        curvature = float(direction @ hvp)
        is_flat = curvature <= _EPS * float(direction @ direction)
        if is_flat and u.any():
            break
        size = _LONG_STEP if is_flat else residual_square / curvature
        u = u + size * direction
        score_step += size * coef_scores
        residual = residual - size * hvp
        previous, residual_square = residual_square, float(residual @ residual)
        if is_flat or residual_square <= residual_tol * residual_tol:
            break
        direction = residual + (residual_square / previous) * direction
    return u, score_step


def _line_search(
    objective: PairObjective,
    coef: Vector,
    scores: Vector,
    value: float,
    step: Vector,
    score_step: Vector,
    start_derivative: float,
) -> tuple[float, float, Vector]:
    """Return the size of the step to take, the value there, and the gradient in the scores.

    Searches for a small directional derivative by regula falsi (the Illinois variant), starting
    with the full step. The size is zero if no smaller value was found.
    """
    low, low_derivative, high, high_derivative = 0.0, start_derivative, 1.0, 0.0
    best = (0.0, value, score_step)
    bound, size = value + _ROUNDING * abs(value), 1.0
    for _ in range(_MAX_LINE_SEARCH_STEPS):
        new_coef, new_scores = coef + size * step, scores + size * score_step
        new_value, score_grad = objective.value_and_score_grad(new_coef, new_scores)
        derivative = float(score_grad @ score_step) + objective.alpha * float(new_coef @ step)
        if new_value <= bound:
            best = (size, new_value, score_grad)
            bound = new_value
            is_flat = abs(derivative) <= _FLAT * abs(start_derivative)
            if is_flat or (derivative < 0.0 and size == 1.0):
                break
        if derivative < 0.0 and best[0] == size:
            low, low_derivative, high_derivative = size, derivative, 0.5 * high_derivative
        else:
            high, high_derivative, low_derivative = size, derivative, 0.5 * low_derivative
        difference = low_derivative - high_derivative
        share = low_derivative / difference if high_derivative > 0.0 else 0.5
        size = low + (high - low) * min(max(share, 0.05), 0.95)
    return best


class _Converged(Exception):  # noqa: N818  # leaves scipy's loop; not an error
    """The gradient is small enough."""


def lbfgs(problem: Problem, start: Vector, max_iter: int) -> Solution:
    """Minimise by scipy's L-BFGS, with the stopping rule of `newton_cg`."""
    objective, preconditioner = problem.objective, problem.preconditioner
    best = Solution(start, np.inf, np.inf, 0)
    n_iter = 0

    def value_and_grad(u: Vector) -> tuple[float, Vector]:
        nonlocal best
        coef = preconditioner.coef(u)
        value, score_grad = objective.value_and_score_grad(coef, objective.scores(coef))
        grad, relative_norm = problem.grad(coef, score_grad)
        if value <= best.value or relative_norm <= problem.tol:
            best = Solution(coef, value, relative_norm, n_iter)
        if relative_norm <= problem.tol:
            raise _Converged
        return value, grad

    def count(_: Vector) -> None:
        nonlocal n_iter
        n_iter += 1
        problem.report(n_iter, best.value, best.relative_norm)

    limits = {"maxiter": max_iter, "maxfun": 20 * max_iter, "maxcor": 20}
    options = {**limits, "gtol": 0.0, "ftol": 0.0}
    u = preconditioner.coordinates(start)
    try:
        minimize(value_and_grad, u, jac=True, method="L-BFGS-B", callback=count, options=options)
    except _Converged:
        count(u)
    return best._replace(n_iter=n_iter)

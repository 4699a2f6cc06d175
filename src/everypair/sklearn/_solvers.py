"""The solvers: Newton's method with conjugate gradients, and L-BFGS.

Both work in coordinates in which the objective is well conditioned, and stop by the norm of the
gradient relative to its norm at zero coefficients, computed in the coordinates of X and in the
preconditioned ones; the larger ratio counts. The second one does not depend on the scales of the
columns.
"""

from __future__ import annotations

import contextlib
import sys
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrsv  # type: ignore[import-untyped]
from scipy.optimize import minimize  # type: ignore[import-untyped]

from everypair import losses
from everypair.sklearn._objective import TrainingData, Vector
from everypair.surrogates import Surrogate

_EPS = float(np.finfo(np.float64).eps)
# Relative differences of objective values below this are rounding errors.
_ROUNDING = 50.0 * _EPS
_MAX_CG_STEPS = 250
# The line search stops where the derivative along the step has fallen to this share of its start.
_FLAT = 0.2
_MAX_LINE_SEARCH_STEPS = 20
# The size of a step along a direction without curvature, in gradients.
_LONG_STEP = 10.0


class FitOptions(NamedTuple):
    """The checked parameters of an estimator, without alpha."""

    surrogate: Surrogate
    margin: float
    solver: str
    tol: float
    max_iter: int
    verbose: int


class Solution(NamedTuple):
    """The result of a solver; `relative_norm` is that of the gradient at `coef`."""

    coef: Vector
    value: float
    relative_norm: float
    n_iter: int


class Problem:
    """The objective, and the coordinates ``u = R coef`` with ``R^T R`` close to its Hessian.

    With the square surrogate the Hessian is twice the scatter matrix of all pair differences, plus
    alpha. Other surrogates depend on a subset of the pairs, and the Cholesky factor of an
    approximate scatter matrix serves: with it, the solvers need few iterations whatever the scales
    and correlations of the columns. For wide X only the diagonal is used.

    The methods take scores as well as coefficients, because callers often know ``X @ coef``
    already. `scatter` is the result of `pair_scatter`, of shape (d, d), or its diagonal, of shape
    (d,). `n_done` iterations were made so far, by earlier calls of a solver.
    """

    def __init__(
        self,
        data: TrainingData,
        options: FitOptions,
        surrogate: Surrogate,
        alpha: float,
        scatter: Vector,
    ) -> None:
        self.data, self.options, self.alpha, self.n_done = data, options, alpha, 0
        self._transposed = data.X.T
        self._loss_options = data.loss_options(surrogate, options.margin)
        n, d = data.X.shape
        self.value_at_zero, score_grad = self.value_and_score_grad(np.zeros(d), np.zeros(n))
        self._grad_at_zero = np.asarray(self._transposed @ score_grad)
        self.precondition(scatter)

    def precondition(self, scatter: Vector) -> None:
        """Set the coordinates to those of a scatter matrix, or of its diagonal."""
        diagonal = scatter if scatter.ndim == 1 else scatter.diagonal()
        squares = diagonal + self.alpha
        self._root = np.sqrt(np.where(squares > 0.0, squares, 1.0))
        self._factor: Vector | None = None
        if scatter.ndim == 2:
            # A unit diagonal makes the Cholesky factorisation independent of the columns' scales.
            correlations = scatter / np.outer(self._root, self._root)
            # The small addition keeps it positive definite if columns are linearly dependent.
            np.fill_diagonal(correlations, 1.0 + 1e-11)
            with contextlib.suppress(np.linalg.LinAlgError):
                self._factor = np.asfortranarray(np.linalg.cholesky(correlations).T)
        grad = self._grad_at_zero
        self.norms_at_zero = tuple(float(np.linalg.norm(g)) for g in (grad, self._scaled(grad)))

    def coef(self, u: Vector) -> Vector:
        """Return the coefficients with these coordinates: ``R^-1 u``, of shape (d,)."""
        return (u if self._factor is None else dtrsv(self._factor, u)) / self._root

    def coordinates(self, coef: Vector) -> Vector:
        """Return the coordinates of coefficients: ``R coef``, of shape (d,)."""
        scaled: Vector = coef * self._root
        return scaled if self._factor is None else self._factor @ scaled

    def _scaled(self, coef_grad: Vector) -> Vector:
        """Return a gradient in the coordinates u: ``R^-T coef_grad``, of shape (d,)."""
        scaled: Vector = coef_grad / self._root
        return scaled if self._factor is None else dtrsv(self._factor, scaled, trans=1)

    def newton_step_at_zero(self) -> Vector:
        """Return the minimum of the quadratic approximation at zero coefficients.

        There the full scatter matrix is the exact Hessian of the pair loss, so this is the solution
        for the square surrogate, and close for hinges.
        """
        return -self.coef(self._scaled(self._grad_at_zero))

    def scores(self, coef: Vector) -> Vector:
        """Return ``X @ coef``, of shape (n,)."""
        return np.asarray(self.data.X @ coef)

    def value_and_score_grad(self, coef: Vector, scores: Vector) -> tuple[float, Vector]:
        """Return the objective and the (n,) gradient of the pair loss in the scores.

        An objective that overflows, after a step that is too long, is infinite with a gradient of
        NaN.
        """
        options = self._loss_options
        try:
            loss, score_grad = losses.pair_loss_and_grad(scores, self.data.target, **options)
        except OverflowError:
            return np.inf, np.full(scores.shape, np.nan)
        return loss + 0.5 * self.alpha * float(coef @ coef), score_grad

    def grad(self, coef: Vector, score_grad: Vector) -> tuple[Vector, float]:
        """Return the gradient of the objective in the coordinates u, and its relative norm."""
        grad = np.asarray(self._transposed @ score_grad + self.alpha * coef)
        scaled_grad = self._scaled(grad)
        norm, scaled_norm = self.norms_at_zero
        relative_norm = float(np.linalg.norm(grad)) / norm
        return scaled_grad, max(relative_norm, float(np.linalg.norm(scaled_grad)) / scaled_norm)

    def hvp(self, scores: Vector, vector: Vector, vector_scores: Vector) -> Vector:
        """Return the product of the Hessian and a (d,) vector of coefficients, as a gradient."""
        options = self._loss_options
        score_hvp = losses.pair_hvp(scores, self.data.target, vector_scores, **options)
        return self._scaled(np.asarray(self._transposed @ score_hvp + self.alpha * vector))

    def score_hess(self, scores: Vector) -> Vector:
        """Return the (n,) diagonal of the Hessian of the pair loss in the scores."""
        return losses.pair_derivatives(scores, self.data.target, **self._loss_options).hess

    def report(self, n_iter: int, value: float, relative_norm: float) -> None:
        """Print one line about an iteration if `verbose` is not 0."""
        if self.options.verbose:
            sys.stdout.write(
                f"iteration {self.n_done + n_iter:3d}  objective {value:.9g}  "
                f"relative gradient {relative_norm:.2e}\n"
            )


def newton_cg(problem: Problem, start: Vector, max_iter: int) -> Solution:
    """Minimise by Newton steps from truncated conjugate gradients, with a line search.

    Conjugate gradients also compute the change of the scores, so the line search needs no product
    with X.
    """
    coef, scores = start, problem.scores(start)
    value, score_grad = problem.value_and_score_grad(coef, scores)
    grad, relative_norm = problem.grad(coef, score_grad)
    n_iter = 0
    while relative_norm > problem.options.tol and n_iter < max_iter:
        n_iter += 1
        u, score_step = _newton_step(problem, scores, grad, relative_norm)
        step = problem.coef(u)
        size, value, score_grad = _line_search(
            problem, coef, scores, value, step, score_step, float(grad @ u)
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
    u, score_step = np.zeros_like(grad), np.zeros_like(scores)
    residual = direction = -grad
    residual_square = float(residual @ residual)
    residual_tol = max(
        min(0.1, relative_norm) * np.sqrt(residual_square),
        0.3 * problem.options.tol * problem.norms_at_zero[1],
    )
    for _ in range(_MAX_CG_STEPS):
        coef = problem.coef(direction)
        coef_scores = problem.scores(coef)
        hvp = problem.hvp(scores, coef, coef_scores)
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
    problem: Problem,
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
        new_value, score_grad = problem.value_and_score_grad(new_coef, new_scores)
        derivative = float(score_grad @ score_step) + problem.alpha * float(new_coef @ step)
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
    best, n_iter, tol = Solution(start, np.inf, np.inf, 0), 0, problem.options.tol

    def value_and_grad(u: Vector) -> tuple[float, Vector]:
        nonlocal best
        coef = problem.coef(u)
        value, score_grad = problem.value_and_score_grad(coef, problem.scores(coef))
        grad, relative_norm = problem.grad(coef, score_grad)
        if value <= best.value or relative_norm <= tol:
            best = Solution(coef, value, relative_norm, n_iter)
        if relative_norm <= tol:
            raise _Converged
        return value, grad

    def count(_: Vector) -> None:
        nonlocal n_iter
        n_iter += 1
        problem.report(n_iter, best.value, best.relative_norm)

    limits = {"maxiter": max_iter, "maxfun": 20 * max_iter, "maxcor": 20}
    options = {**limits, "gtol": 0.0, "ftol": 0.0}
    u = problem.coordinates(start)
    try:
        minimize(value_and_grad, u, jac=True, method="L-BFGS-B", callback=count, options=options)
    except _Converged:
        count(u)
    return best._replace(n_iter=n_iter)

"""Fit the coefficients: choose the start, the smoothing, the solver and its preconditioner."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]

from everypair import losses
from everypair.sklearn._objective import TrainingData, Vector, pair_scatter
from everypair.sklearn._smoothing import stages
from everypair.sklearn._solvers import FitOptions, Problem, Solution, lbfgs, newton_cg
from everypair.surrogates import SQUARE, Surrogate

# Up to this number of columns, computing the full scatter matrix in O(n d^2) costs less than the
# passes over X that it saves.
_MAX_COLUMNS = 500
# "auto" chooses L-BFGS from this many rows per column on.
_LBFGS_ROWS_PER_COLUMN = 10
# Each solver, and its iterations before the preconditioner is computed again; the number doubles in
# each round.
SOLVERS = {"newton-cg": (newton_cg, 3), "lbfgs": (lbfgs, 10)}


class Trainer:
    """Fit coefficients to data for any number of alphas."""

    def __init__(self, data: TrainingData, options: FitOptions) -> None:
        self._data, self._options = data.centred(), options
        self._stages = stages(options.surrogate, options.margin or 1.0)
        n, d = data.X.shape
        self._diagonal = d > _MAX_COLUMNS
        for surrogate in (self._stages[0], SQUARE):
            loss_options = data.loss_options(surrogate, options.margin)
            hess = losses.pair_derivatives(np.zeros(n), data.target, **loss_options).hess
            if hess.min() >= 0.0 < hess.max():
                break
        self._scatter_at_zero = pair_scatter(self._data, hess, diagonal=self._diagonal)
        # With many rows per column the scatter matrix is close to the Hessian, and L-BFGS needs few
        # passes over X. Otherwise Newton's method, which uses the exact Hessian, needs fewer.
        smooth = len(self._stages) == 1
        well_conditioned = smooth and not self._diagonal and n >= _LBFGS_ROWS_PER_COLUMN * d
        automatic = "lbfgs" if well_conditioned else "newton-cg"
        self._solver = automatic if options.solver == "auto" else options.solver

    def fit(self, alpha: float, start: Vector | None = None) -> Solution:
        """Minimise from `start`, or from the minimum of a quadratic approximation at zero."""
        n_iter = 0
        for surrogate in self._stages:
            solution = self._fit_stage(surrogate, alpha, start)
            start = solution.coef
            n_iter += max(solution.n_iter, 1)
        if not solution.relative_norm <= self._options.tol:
            self._warn(solution)
        return solution._replace(n_iter=n_iter)

    def _fit_stage(self, surrogate: Surrogate, alpha: float, start: Vector | None) -> Solution:
        """Run the solver and compute the preconditioner again after each round.

        During the fit fewer and fewer pairs have a second derivative, so the Hessian changes. A
        diagonal preconditioner is kept, because a new diagonal would approximate it less well.
        """
        options = self._options
        problem = Problem(self._data, options, surrogate, alpha, self._scatter_at_zero)
        if not min(problem.norms_at_zero) > 0.0:
            return Solution(np.zeros(self._data.X.shape[1]), problem.value_at_zero, 0.0, 0)
        start = problem.newton_step_at_zero() if start is None else start
        solve, round_iter = SOLVERS[self._solver]
        round_iter = options.max_iter if self._diagonal else round_iter
        previous_value = np.inf
        while True:
            limit = min(round_iter, options.max_iter - problem.n_done)
            solution = solve(problem, start, limit)
            problem.n_done += solution.n_iter
            start = solution.coef
            improved = solution.n_iter == limit or solution.value < previous_value
            converged = solution.relative_norm <= options.tol
            if converged or problem.n_done >= options.max_iter or not improved:
                return solution._replace(n_iter=problem.n_done)
            previous_value = solution.value
            round_iter *= 2
            hess = np.maximum(problem.score_hess(problem.scores(start)), 0.0)
            if hess.any() and not self._diagonal:
                problem.precondition(pair_scatter(self._data, hess, diagonal=False))

    def _warn(self, solution: Solution) -> None:
        options = self._options
        if solution.n_iter >= options.max_iter:
            advice = f"Increase max_iter (now {options.max_iter})"
        else:
            advice = f"Rounding prevents further progress: raise tol (now {options.tol:g})"
        if self._solver == "lbfgs":
            advice += ", try solver='newton-cg'"
        warnings.warn(
            f"{self._solver} stopped at a relative gradient norm of {solution.relative_norm:.1e} "
            f"after {solution.n_iter} iterations; tol is {options.tol:g}. {advice}, "
            "scale the columns of X (StandardScaler), or increase alpha.",
            ConvergenceWarning,
            stacklevel=6,  # the line that calls fit of the estimator
        )

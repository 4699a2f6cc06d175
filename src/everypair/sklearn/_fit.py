"""From rows and knobs to coefficients: the start, the stages and the solver."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]

from everypair.sklearn._objective import PairObjective, Rows, pair_scatter
from everypair.sklearn._preconditioner import MOST_COLUMNS, Scaling
from everypair.sklearn._smoothing import has_kinks, smoothed
from everypair.sklearn._solvers import SOLVERS, Problem, Solution
from everypair.surrogates import SQUARE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from everypair.surrogates import Surrogate

    Vector = NDArray[np.float64]

__all__ = ["Knobs", "Trainer"]

_ROWS_A_COLUMN = 10
# Iterations before the coordinates are chosen again; each round may take twice as many as the last.
_FIRST_ROUND = {"newton-cg": 3, "lbfgs": 10}
# Ramps that replace a kink, in margins: each stage starts where the last one ended.
_RAMPS = (1.0, 0.1, 0.01, 0.001)


@dataclass(frozen=True)
class Knobs:
    """The checked parameters that the fits of a path share."""

    surrogate: Surrogate
    margin: float
    solver: str
    tol: float
    max_iter: int
    verbose: int


class Trainer:
    """Fits coefficients to rows for one alpha after another.

    Parameters
    ----------
    rows : Rows
    knobs : Knobs
    """

    def __init__(self, rows: Rows, knobs: Knobs) -> None:
        self._rows = rows.centred()
        self._knobs = knobs
        width = knobs.margin or 1.0
        self._stages = (
            [smoothed(knobs.surrogate, ramp * width) for ramp in _RAMPS]
            if has_kinks(knobs.surrogate)
            else [knobs.surrogate]
        )
        n, d = rows.X.shape
        self._diagonal = d > MOST_COLUMNS
        self._at_zero = self._scatter_at_zero()
        # With many rows a column the scaled objective is so round that L-BFGS needs few passes over
        # X. Elsewhere curvature differs from the scatter's, and Newton's method has to see it.
        smooth = len(self._stages) == 1
        round_enough = smooth and not self._diagonal and n >= _ROWS_A_COLUMN * d
        automatic = "lbfgs" if round_enough else "newton-cg"
        self._solver = automatic if knobs.solver == "auto" else knobs.solver

    def fit(self, alpha: float, start: Vector | None = None) -> Solution:
        """Minimise, from `start` or from the solution of a quadratic approximation at zero."""
        n_iter = 0
        for surrogate in self._stages:
            solution = self._stage(surrogate, alpha, start)
            start = solution.coef
            n_iter += max(solution.n_iter, 1)
        if not solution.relative <= self._knobs.tol:
            self._warn(solution)
        return solution._replace(n_iter=n_iter)

    def _scatter_at_zero(self) -> NDArray[np.float64]:
        zero = np.zeros(len(self._rows.positive))
        for surrogate in (self._stages[0], SQUARE):
            objective = PairObjective(self._rows, surrogate, self._knobs.margin, 0.0)
            curvature = objective.curvature(zero)
            if curvature.min() >= 0.0 < curvature.max():
                break
        return pair_scatter(self._rows, curvature, diagonal=self._diagonal)

    def _stage(self, surrogate: Surrogate, alpha: float, start: Vector | None) -> Solution:
        objective = PairObjective(self._rows, surrogate, self._knobs.margin, alpha)
        zero = np.zeros(self._rows.X.shape[1])
        value, slope = objective.value_and_slope(zero, np.zeros(len(self._rows.positive)))
        grad = objective.grad(zero, slope)
        if not grad.any():
            return Solution(zero, value, 0.0, 0)
        scaling = Scaling(self._at_zero, alpha)
        if start is None:
            # At zero all pairs have the same shortfall: one Newton step is a linear solve. It is
            # the answer for the square surrogate, and close to it for the hinges.
            start = -scaling.coef(scaling.grad(grad))
        return self._in_rounds(objective, scaling, grad, start)

    def _in_rounds(
        self, objective: PairObjective, scaling: Scaling, grad: Vector, start: Vector
    ) -> Solution:
        """Solve, in new coordinates after each round: fewer and fewer pairs are curved.

        The diagonal alone would be a worse guide there than it is at zero, so it stays.
        """
        knobs = self._knobs
        done, before = 0, np.inf
        iterations = knobs.max_iter if self._diagonal else _FIRST_ROUND[self._solver]
        while True:
            problem = Problem(
                objective,
                scaling,
                float(np.linalg.norm(grad)),
                float(np.linalg.norm(scaling.grad(grad))),
                knobs.tol,
                min(iterations, knobs.max_iter - done),
                _report_after(done) if knobs.verbose else _say_nothing,
            )
            solution = SOLVERS[self._solver](problem, start)
            done += solution.n_iter
            start = solution.coef
            gained = solution.n_iter == problem.max_iter or solution.value < before
            if solution.relative <= knobs.tol or done >= knobs.max_iter or not gained:
                return solution._replace(n_iter=done)
            before = solution.value
            iterations *= 2
            curvature = np.maximum(objective.curvature(objective.scores(start)), 0.0)
            if curvature.any() and not self._diagonal:
                scatter = pair_scatter(self._rows, curvature, diagonal=False)
                scaling = Scaling(scatter, objective.alpha)

    def _warn(self, solution: Solution) -> None:
        knobs = self._knobs
        if solution.n_iter >= knobs.max_iter:
            advice = f"Increase max_iter (now {knobs.max_iter})"
        else:
            advice = f"Rounding hides any further progress: raise tol (now {knobs.tol:g})"
        if self._solver == "lbfgs":
            advice += ", try solver='newton-cg'"
        warnings.warn(
            f"{self._solver} stopped at a relative gradient norm of {solution.relative:.1e} after "
            f"{solution.n_iter} iterations; tol is {knobs.tol:g}. {advice}, "
            "scale the columns of X (StandardScaler), or increase alpha.",
            ConvergenceWarning,
            stacklevel=4,
        )


def _report_after(before: int) -> Callable[[int, float, float], None]:
    def report(done: int, value: float, relative: float) -> None:
        sys.stdout.write(
            f"iteration {before + done:3d}  objective {value:.9g}  "
            f"relative gradient {relative:.2e}\n"
        )

    return report


def _say_nothing(done: int, value: float, relative: float) -> None:
    pass

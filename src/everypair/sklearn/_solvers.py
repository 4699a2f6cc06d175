"""Two ways down: Newton's method with conjugate gradients in a trust region, and L-BFGS.

Both work in the coordinates of a `Scaling` and stop by the same measure: the norm of the gradient
over its norm at zero coefficients, in the coordinates of X and in the scaled ones, whichever is
larger. The first is what people ask for; the second does not depend on the units of the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import minimize  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from everypair.sklearn._objective import PairObjective
    from everypair.sklearn._preconditioner import Scaling

    Vector = NDArray[np.float64]

__all__ = ["SOLVERS", "Problem", "Solution"]

_EPS = float(np.finfo(np.float64).eps)
# Differences of values below this share of the value are rounding, not progress.
_ROUNDING = 50.0 * _EPS
_MOST_CG_STEPS = 250
# A step is far enough where the slope along it has fallen to this share.
_FLAT = 0.2
_MOST_TRIES = 20


@dataclass(frozen=True)
class Problem:
    """An objective, its coordinates, the norms of the gradient at zero, and when to stop."""

    objective: PairObjective
    scaling: Scaling
    grad_norm: float
    scaled_norm: float
    tol: float
    max_iter: int
    report: Callable[[int, float, float], None]

    def relative(self, grad: Vector, scaled: Vector) -> float:
        """Return how large a gradient is, relative to that at zero."""
        return max(
            float(np.linalg.norm(grad)) / self.grad_norm,
            float(np.linalg.norm(scaled)) / self.scaled_norm,
        )


class Solution(NamedTuple):
    """Where a solver stopped: `relative` is the relative norm of the gradient there."""

    coef: Vector
    value: float
    relative: float
    n_iter: int


def newton_cg(problem: Problem, start: Vector) -> Solution:
    """Minimise by Newton steps from truncated conjugate gradients inside a trust region.

    The scores of a step are gathered during conjugate gradients, so that going some way along it
    costs a pair loss and no product with X. A step that promised too much is therefore searched
    before the region shrinks: hinges have curvature beyond the step that its model cannot see.
    """
    objective, scaling = problem.objective, problem.scaling
    coef, scores = start, objective.scores(start)
    value, slope = objective.value_and_slope(coef, scores)
    grad = objective.grad(coef, slope)
    scaled = scaling.grad(grad)
    relative = problem.relative(grad, scaled)
    radius = 10.0 * problem.scaled_norm
    done = 0
    while relative > problem.tol and done < problem.max_iter:
        done += 1
        step = _step_inside(problem, scores, scaled, radius, relative)
        went, new_value, slope = _along(
            objective, coef, scores, value, step, float(grad @ step.coef)
        )
        if went == 0.0:
            radius = 0.25 * min(radius, step.length)
            if radius <= _EPS * problem.scaled_norm:
                break
            continue
        radius = max(radius, 4.0 * went * step.length)
        coef, scores, value = coef + went * step.coef, scores + went * step.scores, new_value
        grad = objective.grad(coef, slope)
        scaled = scaling.grad(grad)
        relative = problem.relative(grad, scaled)
        problem.report(done, value, relative)
    return Solution(coef, value, relative, done)


def _along(
    objective: PairObjective, coef: Vector, scores: Vector, value: float, step: _Step, down: float
) -> tuple[float, float, Vector]:
    """Return how far to go along a step, the value there, and the slopes in the scores.

    Looks for a flat slope by regula falsi (the Illinois variant), beginning with the full step.
    The way is zero where nothing was gained.
    """
    low, low_tilt, high, high_tilt = 0.0, down, 1.0, 0.0
    best = (0.0, value + _ROUNDING * abs(value), step.scores)
    way = 1.0
    for _ in range(_MOST_TRIES):
        there = coef + way * step.coef
        new_value, slope = objective.value_and_slope(there, scores + way * step.scores)
        tilt = float(slope @ step.scores) + objective.alpha * float(there @ step.coef)
        if new_value <= best[1]:
            best = (way, new_value, slope)
            if abs(tilt) <= _FLAT * abs(down) or (tilt < 0.0 and way == 1.0):
                break
        if tilt < 0.0 and best[0] == way:
            low, low_tilt, high_tilt = way, tilt, 0.5 * high_tilt
        else:
            high, high_tilt, low_tilt = way, tilt, 0.5 * low_tilt
        share = low_tilt / (low_tilt - high_tilt) if high_tilt > 0.0 else 0.5
        way = low + (high - low) * min(max(share, 0.05), 0.95)
    return best


class _Step(NamedTuple):
    coef: Vector
    scores: Vector
    length: float


def _step_inside(
    problem: Problem, at: Vector, scaled: Vector, radius: float, relative: float
) -> _Step:
    """Minimise the quadratic model in the trust region, roughly (Steihaug 1983)."""
    objective, scaling = problem.objective, problem.scaling
    u = np.zeros_like(scaled)
    step_scores = np.zeros_like(at)
    residual = -scaled
    direction = residual.copy()
    left = float(residual @ residual)
    norm = float(np.sqrt(left))
    enough = max(min(0.1, relative) * norm, 0.3 * problem.tol * problem.scaled_norm)
    for _ in range(_MOST_CG_STEPS):
        coef = scaling.coef(direction)
        coef_scores = objective.scores(coef)
        bent = scaling.grad(objective.hessian_times(at, coef, coef_scores))
        curvature = float(direction @ bent)
        far = curvature <= _EPS * float(direction @ direction)
        if not far:
            length = left / curvature
            far = bool(np.linalg.norm(u + length * direction) >= radius)
        if far:
            length = _to_the_border(u, direction, radius)
        u = u + length * direction
        step_scores += length * coef_scores
        residual = residual - length * bent
        before, left = left, float(residual @ residual)
        if far or left <= enough * enough:
            break
        direction = residual + (left / before) * direction
    return _Step(scaling.coef(u), step_scores, float(np.linalg.norm(u)))


def _to_the_border(u: Vector, direction: Vector, radius: float) -> float:
    a, b = float(direction @ direction), float(u @ direction)
    c = max(radius * radius - float(u @ u), 0.0)
    return c / (b + float(np.sqrt(b * b + a * c)))


class _Arrived(Exception):  # noqa: N818  # a way out of scipy's loop, not an error
    """The gradient is small enough."""


def lbfgs(problem: Problem, start: Vector) -> Solution:
    """Minimise by L-BFGS (scipy's), stopped by the same measure as `newton_cg`."""
    objective, scaling = problem.objective, problem.scaling
    best = Solution(start, np.inf, np.inf, 0)
    done = 0

    def value_and_grad(u: Vector) -> tuple[float, Vector]:
        nonlocal best
        coef = scaling.coef(u)
        value, slope = objective.value_and_slope(coef, objective.scores(coef))
        grad = objective.grad(coef, slope)
        scaled = scaling.grad(grad)
        relative = problem.relative(grad, scaled)
        if value <= best.value or relative <= problem.tol:
            best = Solution(coef, value, relative, done)
        if relative <= problem.tol:
            raise _Arrived
        return value, scaled

    def count(_: Vector) -> None:
        nonlocal done
        done += 1
        problem.report(done, best.value, best.relative)

    options = {"maxiter": problem.max_iter, "maxfun": 20 * problem.max_iter, "maxcor": 20}
    try:
        minimize(
            value_and_grad,
            scaling.coordinates(start),
            method="L-BFGS-B",
            jac=True,
            callback=count,
            options={**options, "gtol": 0.0, "ftol": 0.0},
        )
    except _Arrived:
        problem.report(done + 1, best.value, best.relative)
        return best._replace(n_iter=done + 1)
    return best._replace(n_iter=done)


SOLVERS = {"newton-cg": newton_cg, "lbfgs": lbfgs}

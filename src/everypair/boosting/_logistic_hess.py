"""The Hessian of the logistic loss at scores that know no intercept.

The intercept is the one that makes the probabilities add up to the positives, as the best one does.
With ``t = tanh((score + intercept) / 2)`` the probability is ``(1 + t) / 2``, and the Hessian
``(1 - t^2) / 4``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Means = Callable[[NDArray[Any]], NDArray[np.float64]]

__all__ = ["logistic_hessian"]

_FEW = 1 << 15  # rows that tell the intercept well enough to start from
_NEAR = 0.1  # a last step of this size, to first order, leaves less than a hundredth


def logistic_hessian(
    scores: NDArray[np.float32],
    positive: NDArray[np.bool_],
    weights: NDArray[np.float64] | None,
    groups: NDArray[np.int64] | None,
) -> NDArray[np.float32]:
    """Return ``w p (1 - p)`` of each row, with an intercept for each group.

    A group counts as much as in the pair loss, whose weights are products: by its pairs for each of
    its rows. A group of one class has no pairs, and Hessian 0.
    """
    n_groups = 1 if groups is None else int(groups[-1]) + 1
    of_row: Any = 0 if groups is None else groups

    def add_up(values: NDArray[Any]) -> NDArray[np.float64]:
        weighted = values if weights is None else values * weights
        if groups is None:
            return np.array([_sum(weighted)])
        return np.bincount(groups, weighted, n_groups).astype(np.float64)

    if weights is None and groups is None:
        positives, rows = np.array([[np.count_nonzero(positive)], [len(positive)]], np.float64)
    else:
        positives, rows = add_up(positive), add_up(np.ones_like(scores))
    pairs = positives * (rows - positives)
    if not pairs.sum() > 0.0:
        return np.zeros_like(scores)

    halves = scores * np.float32(0.5)
    share = np.divide(positives, rows, out=np.full(n_groups, 0.5), where=pairs > 0.0)
    prior = 0.5 * np.log(share / (1.0 - share))
    least, most = np.full((2, n_groups), [[np.inf], [-np.inf]], dtype=np.float32)
    if groups is None:
        least[0], most[0] = halves.min(), halves.max()
    else:
        np.minimum.at(least, groups, halves)
        np.maximum.at(most, groups, halves)
    bounds = prior - most, prior - least
    start = 0.5 * (bounds[0] + bounds[1])
    if n_groups == 1 and weights is None and scores.shape[0] > 2 * _FEW:
        some = halves[:: scores.shape[0] // _FEW]
        start, _, step = _solve(some, start, bounds, share, lambda t: np.array([t.mean()]), 0)
        start -= step
    _, t, step = _solve(halves, start, bounds, share, lambda t: add_up(t) / rows, of_row)

    slope = np.square(t, out=halves)
    np.subtract(np.float32(1.0), slope, out=slope)
    slope *= step.astype(np.float32)[of_row]
    t -= slope
    hess = np.square(t, out=t)
    np.subtract(np.float32(1.0), hess, out=hess)
    if weights is not None:
        hess *= weights
    mean_pair = positives.sum() * (rows - positives).sum() / (rows.sum() * pairs.sum())
    hess *= np.where(pairs > 0.0, 0.25 * mean_pair * rows, 0.0).astype(np.float32)[of_row]
    return hess


def _sum(values: NDArray[Any]) -> float:
    """Add up short stretches as they are, and these in double precision."""
    whole = values.shape[0] - values.shape[0] % 1024
    stretches = values[:whole].reshape(-1, 1024).sum(axis=1)
    return float(stretches.sum(dtype=np.float64) + values[whole:].sum(dtype=np.float64))


def _solve(
    halves: NDArray[np.float32],
    intercept: NDArray[np.float64],
    bounds: tuple[NDArray[np.float64], NDArray[np.float64]],
    share: NDArray[np.float64],
    mean: Means,
    of_row: Any,
) -> tuple[NDArray[np.float64], NDArray[np.float32], NDArray[np.float64]]:
    """Return half the intercepts whose mean probabilities are near the shares, and their `t`.

    And the steps that are left to take back. Newton's method between bounds that close in; where it
    leaves them, halving.
    """
    low, high = bounds
    t = np.empty_like(halves)
    while True:
        np.add(halves, intercept.astype(np.float32)[of_row], out=t)
        np.tanh(t, out=t)
        excess = 0.5 * (1.0 + mean(t)) - share
        slope = 0.5 * (1.0 - mean(np.square(t)))
        step = np.divide(excess, slope, out=np.zeros_like(slope), where=slope > 0.0)
        near = (np.abs(excess) <= _NEAR * share) & (np.abs(step) <= _NEAR)
        done = near | (high - low <= 1e-6 * (1.0 + np.abs(high)))
        if done.all():
            return intercept, t, np.where(near, step, 0.0)
        low, high = np.where(excess < 0.0, intercept, low), np.where(excess > 0.0, intercept, high)
        inside = (slope > 0.0) & (intercept - step > low) & (intercept - step < high)
        moved = np.where(inside, intercept - step, 0.5 * (low + high))
        intercept = np.where(done, intercept, moved)

"""The Hessian of the logistic loss at scores without an intercept.

The intercept is chosen so that the sum of the probabilities equals the number of positives, as at
the minimum of the logistic loss. With ``t = tanh((score + intercept) / 2)`` the probability is
``(1 + t) / 2`` and the Hessian ``(1 - t^2) / 4``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SAMPLE_ROWS = 1 << 15  # a sample of about this size gives the start for the intercept
_NEWTON_TOL = 0.1  # a Newton step of this size, taken to first order, leaves an error below 0.01


def logistic_hess(
    scores: NDArray[np.float32],
    positive: NDArray[np.bool_],
    weights: NDArray[np.float64] | None,
    groups: NDArray[np.int64] | None,
) -> NDArray[np.float32]:
    """Return ``w p (1 - p)`` of each row, with one intercept for each group.

    All arrays have shape (n,). A group is scaled by its number of pairs per row, as in the pair
    loss, whose weights are products. A group of one class has no pairs and Hessian 0.
    """
    n_groups = 1 if groups is None else int(groups[-1]) + 1
    of_row: Any = 0 if groups is None else groups

    def group_sums(values: NDArray[Any]) -> NDArray[np.float64]:
        weighted = values if weights is None else values * weights
        if groups is None:
            return np.array([_sum(weighted)])
        return np.bincount(groups, weighted, n_groups).astype(np.float64)

    if weights is None and groups is None:
        w_pos, w = np.array([[np.count_nonzero(positive)], [len(positive)]], np.float64)
    else:
        w_pos, w = group_sums(positive), group_sums(np.ones_like(scores))
    pairs = w_pos * (w - w_pos)
    if not pairs.sum() > 0.0:
        return np.zeros_like(scores)

    halves = scores * np.float32(0.5)
    share = np.divide(w_pos, w, out=np.full(n_groups, 0.5), where=pairs > 0.0)
    prior = 0.5 * np.log(share / (1.0 - share))
    lowest, highest = np.full((2, n_groups), [[np.inf], [-np.inf]], dtype=np.float32)
    if groups is None:
        lowest[0], highest[0] = halves.min(), halves.max()
    else:
        np.minimum.at(lowest, groups, halves)
        np.maximum.at(highest, groups, halves)
    bounds = prior - highest, prior - lowest
    start = 0.5 * (bounds[0] + bounds[1])
    if n_groups == 1 and weights is None and scores.shape[0] > 2 * _SAMPLE_ROWS:
        sample = halves[:: scores.shape[0] // _SAMPLE_ROWS]
        start, _, step = _solve(sample, start, bounds, share, lambda t: np.array([t.mean()]), 0)
        start -= step
    _, t, step = _solve(halves, start, bounds, share, lambda t: group_sums(t) / w, of_row)

    # The last Newton step, to first order, in place.
    derivative = np.square(t, out=halves)
    np.subtract(np.float32(1.0), derivative, out=derivative)
    derivative *= step.astype(np.float32)[of_row]
    t -= derivative
    hess = np.square(t, out=t)
    np.subtract(np.float32(1.0), hess, out=hess)
    if weights is not None:
        hess *= weights
    mean_pair = w_pos.sum() * (w - w_pos).sum() / (w.sum() * pairs.sum())
    hess *= np.where(pairs > 0.0, 0.25 * mean_pair * w, 0.0).astype(np.float32)[of_row]
    return hess


def _sum(values: NDArray[Any]) -> float:
    """Sum blocks of 1024 values in their own type, and the blocks in float64."""
    whole = values.shape[0] - values.shape[0] % 1024
    blocks = values[:whole].reshape(-1, 1024).sum(axis=1)
    return float(blocks.sum(dtype=np.float64) + values[whole:].sum(dtype=np.float64))


def _solve(
    halves: NDArray[np.float32],
    intercept: NDArray[np.float64],
    bounds: tuple[NDArray[np.float64], NDArray[np.float64]],
    share: NDArray[np.float64],
    mean: Callable[[NDArray[Any]], NDArray[np.float64]],
    of_row: Any,
) -> tuple[NDArray[np.float64], NDArray[np.float32], NDArray[np.float64]]:
    """Find the intercept of each group by Newton's method with bounds, else by bisection.

    Returns half the intercepts, (n_groups,), before the last Newton step; the (n,) values
    ``t = tanh(halves + intercept)``; and that step, (n_groups,), for the caller to subtract.
    """
    low, high = bounds
    t = np.empty_like(halves)
    while True:
        np.add(halves, intercept.astype(np.float32)[of_row], out=t)
        np.tanh(t, out=t)
        excess = 0.5 * (1.0 + mean(t)) - share
        slope = 0.5 * (1.0 - mean(np.square(t)))
        step = np.divide(excess, slope, out=np.zeros_like(slope), where=slope > 0.0)
        near = (np.abs(excess) <= _NEWTON_TOL * share) & (np.abs(step) <= _NEWTON_TOL)
        done = near | (high - low <= 1e-6 * (1.0 + np.abs(high)))
        if done.all():
            return intercept, t, np.where(near, step, 0.0)
        low, high = np.where(excess < 0.0, intercept, low), np.where(excess > 0.0, intercept, high)
        inside = (slope > 0.0) & (intercept - step > low) & (intercept - step < high)
        moved = np.where(inside, intercept - step, 0.5 * (low + high))
        intercept = np.where(done, intercept, moved)

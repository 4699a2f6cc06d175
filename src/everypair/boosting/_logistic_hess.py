"""The Hessian of the logistic loss at scores without an intercept.

The intercept is chosen so that the sum of the probabilities equals the number of positives, as at
the minimum of the logistic loss. With ``t = tanh((score + intercept) / 2)`` the probability is
``(1 + t) / 2`` and the Hessian ``(1 - t^2) / 4``.
"""

from __future__ import annotations

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

    All arrays have shape (n,); the rows of a group are contiguous, and groups are numbered from 0.
    A group is scaled by its number of pairs per row, as in the pair loss, whose weights are
    products. A group of one class has no pairs and Hessian 0.

    The intercepts are found by Newton's method with bounds, else by bisection.
    """
    n, starts = scores.shape[0], np.zeros(1, np.intp)
    of_row: Any = slice(None) if groups is None else groups
    if groups is not None:
        starts = np.flatnonzero(np.diff(groups, prepend=-1))

    def sums(values: NDArray[Any]) -> NDArray[np.float64]:
        """Return the weighted sum of each group."""
        weighted = values if weights is None else values * weights
        if groups is None:  # short sums in their own type are faster and lose no digits
            weighted = np.add.reduceat(weighted, np.arange(0, weighted.shape[0], 1024))
        return np.add.reduceat(weighted, starts, dtype=np.float64)

    w_pos = sums(positive.view(np.uint8))
    w = np.diff(starts, append=n) + 0.0 if weights is None else np.add.reduceat(weights, starts)
    pairs = w_pos * (w - w_pos)
    if not pairs.sum() > 0.0:
        return np.zeros_like(scores)
    halves = scores * np.float32(0.5)
    share = np.divide(w_pos, w, out=np.full_like(w, 0.5), where=pairs > 0.0)
    prior = 0.5 * np.log(share / (1.0 - share))
    low = lowest = prior - np.maximum.reduceat(halves, starts)
    high = highest = prior - np.minimum.reduceat(halves, starts)
    intercept = 0.5 * (low + high)
    is_sampled = weights is None and groups is None and n > 2 * _SAMPLE_ROWS
    rows = halves[:: n // _SAMPLE_ROWS] if is_sampled else halves
    buffers = np.empty((2, n), np.float32)  # new arrays in each pass would take longer to fill
    while True:
        t, square = buffers[:, : rows.shape[0]]
        np.tanh(np.add(rows, intercept.astype(np.float32)[of_row], out=t), out=t)
        np.square(t, out=square)
        scale = w * (rows.shape[0] / n)
        excess = 0.5 * (1.0 + sums(t) / scale) - share
        slope = 0.5 * (1.0 - sums(square) / scale)
        step = np.divide(excess, slope, out=np.full_like(slope, np.inf), where=slope > 0.0)
        is_near = (np.abs(excess) <= _NEWTON_TOL * share) & (np.abs(step) <= _NEWTON_TOL)
        is_found = is_near | (high - low <= 1e-6 * (1.0 + np.abs(high)))
        if is_found.all():
            step[~is_near] = 0.0
            if rows is halves:
                break
            rows, low, high, intercept = halves, lowest, highest, intercept - step
            continue
        low, high = np.where(excess < 0.0, intercept, low), np.where(excess > 0.0, intercept, high)
        newton = intercept - step
        moved = np.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
        intercept = np.where(is_found, intercept, moved)

    # The last Newton step, to first order.
    derivative = np.subtract(np.float32(1.0), square, out=square)
    derivative *= step.astype(np.float32)[of_row]
    t -= derivative
    hess: NDArray[np.float32] = np.subtract(np.float32(1.0), np.square(t, out=t), out=t)
    if weights is not None:
        hess *= weights
    mean_pair = w_pos.sum() * (w - w_pos).sum() / (w.sum() * pairs.sum())
    hess *= np.where(pairs > 0.0, 0.25 * mean_pair * w, 0.0).astype(np.float32)[of_row]
    return hess

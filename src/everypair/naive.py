"""The double sum over all pairs, straight from the textbook, for tests and for people who doubt.

Every function has the signature of its namesake in `everypair` and takes O(n_pos n_neg) time. Pairs
are visited in blocks, so 20,000 rows fit in memory.

>>> round(pair_loss([0.9, 0.2, 0.6], [1, 0, 0]), 2)  # (0.3^2 + 0.7^2) / 2
0.29
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from everypair import _inputs, surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from everypair._inputs import Batch
    from everypair.surrogates import Surrogate

    Floats = NDArray[np.float64]

__all__ = ["auc", "pair_derivatives", "pair_hvp", "pair_loss", "pair_loss_and_grad"]

_PAIRS_PER_BLOCK = 1 << 20


def pair_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> float:
    """Average a surrogate over every pair; see `everypair.pair_loss`."""
    batch = _inputs.batch_from(scores, labels, weights, groups)
    surrogate, margin = surrogates.get(surrogate), _inputs.check_margin(margin)
    mean = _inputs.check_reduction(reduction)
    blocks = [
        ((w * surrogate.value(margin - lead)).sum(), w.sum()) for _, _, lead, w in _blocks(batch)
    ]
    pair_weight = math.fsum(w for _, w in blocks)
    total = math.fsum(value for value, _ in blocks)
    return total / pair_weight if mean and pair_weight > 0.0 else total


def pair_loss_and_grad(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> tuple[float, NDArray[Any]]:
    """Average a surrogate over every pair, with gradient; see `everypair.pair_loss_and_grad`.

    Examples
    --------
    >>> pair_loss_and_grad([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
    (0.625, array([-1.  ,  0.  ,  0.25,  0.75]))
    """
    knobs: Any = {"margin": margin, "weights": weights, "groups": groups, "reduction": reduction}
    value, grad, _ = pair_derivatives(scores, labels, surrogate=surrogate, **knobs)
    return value, grad


def pair_derivatives(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Return value, gradient and diagonal Hessian; see `everypair.pair_derivatives`."""
    batch = _inputs.batch_from(scores, labels, weights, groups)
    surrogate, margin = surrogates.get(surrogate), _inputs.check_margin(margin)
    mean = _inputs.check_reduction(reduction)
    n = batch.scores.shape[0]
    grad, hess = np.zeros(n), np.zeros(n)
    values, pair_weights = [], []
    for pos, neg, lead, w in _blocks(batch):
        shortfall = margin - lead
        slope = w * surrogate.slope(shortfall)
        curvature = w * surrogate.curvature(shortfall)
        values.append((w * surrogate.value(shortfall)).sum())
        pair_weights.append(w.sum())
        grad[pos] -= slope.sum(axis=1)
        grad[neg] += slope.sum(axis=0)
        hess[pos] += curvature.sum(axis=1)
        hess[neg] += curvature.sum(axis=0)
    scale = math.fsum(pair_weights) if mean else 1.0
    scale = scale if scale > 0.0 else 1.0
    value = math.fsum(values) / scale
    return value, _as_given(grad / scale, batch), _as_given(hess / scale, batch)


def pair_hvp(
    scores: ArrayLike,
    labels: ArrayLike,
    vector: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> NDArray[Any]:
    """Multiply the Hessian by a vector; see `everypair.pair_hvp`."""
    batch = _inputs.batch_from(scores, labels, weights, groups)
    surrogate, margin = surrogates.get(surrogate), _inputs.check_margin(margin)
    mean = _inputs.check_reduction(reduction)
    z = _inputs.vector_for(batch, vector)
    hvp = np.zeros(batch.scores.shape[0])
    pair_weights = []
    for pos, neg, lead, w in _blocks(batch):
        pull = w * surrogate.curvature(margin - lead) * (z[pos][:, None] - z[neg][None, :])
        pair_weights.append(w.sum())
        hvp[pos] += pull.sum(axis=1)
        hvp[neg] -= pull.sum(axis=0)
    scale = math.fsum(pair_weights) if mean else 1.0
    return _as_given(hvp / scale if scale > 0.0 else hvp, batch)


def auc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> float:
    """Count the pairs in the right order, ties half; see `everypair.auc`."""
    batch = _inputs.batch_from(scores, labels, weights, groups)
    blocks = [
        ((w * ((lead > 0.0) + 0.5 * (lead == 0.0))).sum(), w.sum())
        for _, _, lead, w in _blocks(batch)
    ]
    pair_weight = math.fsum(w for _, w in blocks)
    if pair_weight == 0.0:
        raise ValueError("auc must have both classes in at least one group; got no pair.")
    return math.fsum(right for right, _ in blocks) / pair_weight


def _blocks(batch: Batch) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Floats, Floats]]:
    """Yield rows of positives, rows of negatives, s_pos - s_neg and the weight of each pair."""
    positive = _inputs.positives(batch)
    scores = batch.scores.astype(np.float64)
    weights = np.ones(scores.shape[0]) if batch.weights is None else batch.weights
    group = np.zeros(scores.shape[0], np.intp)
    if batch.offsets is not None:
        sorted_groups = np.repeat(np.arange(batch.offsets.size - 1), np.diff(batch.offsets))
        group[slice(None) if batch.order is None else batch.order] = sorted_groups
    all_pos, neg = np.flatnonzero(positive), np.flatnonzero(~positive)
    if all_pos.size == 0 or neg.size == 0:
        return
    height = max(1, _PAIRS_PER_BLOCK // neg.size)
    for i in range(0, all_pos.size, height):
        pos = all_pos[i : i + height]
        same_group = group[pos][:, None] == group[neg][None, :]
        with np.errstate(over="ignore", invalid="ignore"):
            lead = scores[pos][:, None] - scores[neg][None, :]
            yield pos, neg, lead, weights[pos][:, None] * weights[neg][None, :] * same_group


def _as_given(array: Floats, batch: Batch) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return array.astype(batch.dtype).reshape(batch.shape)

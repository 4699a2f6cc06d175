"""Smooth average precision of arrays, with its gradient; used by the boosting objectives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair import surrogates
from everypair.ranks._plan import own_pair, plan
from everypair.surrogates import Floats


def smooth_precision_loss(
    scores: NDArray[Any],
    positive: NDArray[np.bool_],
    shares: Floats,
    *,
    temperature: float,
    weights: Floats | None = None,
    codes: NDArray[np.int64] | None = None,
) -> tuple[float, Floats]:
    r"""Sum one minus the smooth precision over the positives, and compute its gradient.

    .. math:: L = \sum_{i \in P} c_i \frac{b_i}{a_i + b_i}, \qquad
        a_i = w_i + \sum_{k \in P, k \ne i} w_k \sigma((s_k - s_i) / T), \qquad
        b_i = \sum_{j \in N} w_j \sigma((s_j - s_i) / T)

    With ``c_i = w_i`` over the sum of the weights of P this is one minus the smooth average
    precision of `everypair.torch.AveragePrecisionLoss`.

    Parameters
    ----------
    scores : (n,) float32 or float64
    positive : (n,) bool
    shares : (n_pos,) float64
        c, in the order of the positives.
    temperature : float
        T, above 0.
    weights : (n,) float64, optional
        Above 0.
    codes : (n,) integers, optional
        Numbers of groups, from 0; rows are ranked inside their group.

    Returns
    -------
    loss : float
    grad : (n,) float64
    """
    grad = np.zeros(scores.shape[0])
    masks = positive, ~positive
    if not (positive.any() and masks[1].any()):
        return 0.0, grad
    terms = surrogates.sigmoid(temperature).at_margin(0.0)
    wide = scores.dtype == np.float64
    w = np.ones_like(grad) if weights is None else weights
    pos, own = scores[positive], own_pair(terms, wide=wide)
    plans, sums = [], []
    for k, mask in enumerate(masks):
        groups = None if codes is None else (codes[positive], codes[mask])
        plans.append(plan(pos, scores[mask], terms, groups, wide=wide))
        sums.append(plans[k].sums(w[mask], (0, 1)))
    w_pos = w[positive]
    rank, above = sums[0][0] + w_pos * (1.0 - own[0]), sums[1][0]
    total = rank + above
    # Derivatives of the loss in `rank` and in `above`.
    factors = -shares * above / total**2, shares * rank / total**2
    slopes = sums[0][1] - w_pos * own[1], sums[1][1]
    grad[positive] = -(factors[0] * slopes[0] + factors[1] * slopes[1])
    for k, mask in enumerate(masks):
        (per_other,) = plans[k].sums(factors[k], (1,), per_other=True)
        if k == 0:
            per_other = per_other - factors[0] * own[1]
        grad[mask] += w[mask] * per_other
    return float((shares * above / total).sum()), grad

"""Smooth average precision of arrays, with its gradient; used by the boosting objectives."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair import surrogates
from everypair.kernel import choose, native
from everypair.row_sums._plan import Plan, native_form, own_pair
from everypair.surrogates import Floats, PairTerm, tables


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
    if not 0 < np.count_nonzero(positive) < positive.size:
        return 0.0, np.zeros(scores.shape[0])
    if codes is not None or not choose.uses_native():
        return _by_row_sums(scores, positive, shares, _terms(temperature), weights, codes)
    piece = _kernel_piece(temperature, scores.dtype == np.float64)
    return native.smooth_precision(scores, positive, weights, shares, piece)


def _by_row_sums(
    scores: NDArray[Any],
    positive: NDArray[np.bool_],
    shares: Floats,
    terms: tuple[PairTerm, ...],
    weights: Floats | None,
    codes: NDArray[np.int64] | None,
) -> tuple[float, Floats]:
    """Return loss and gradient by the sums of `Plan`."""
    grad = np.empty(scores.shape[0])
    rows = np.flatnonzero(positive), np.flatnonzero(~positive)
    wide = scores.dtype == np.float64
    pos, self_pair = scores[rows[0]], own_pair(terms, wide=wide)
    w = [np.ones(of_class.size) if weights is None else weights[of_class] for of_class in rows]
    plans, sums = [], []
    for k, of_class in enumerate(rows):
        groups = None if codes is None else (codes[rows[0]], codes[of_class])
        plans.append(Plan(pos, scores[of_class], terms, groups, wide=wide))
        sums.append(plans[k].sums(w[k], (0, 1)))
    rank, above = sums[0][0] + w[0] * (1.0 - self_pair[0]), sums[1][0]
    total = rank + above
    # Derivatives of the loss in `rank` and in `above`.
    factors = -shares * above / total**2, shares * rank / total**2
    slopes = sums[0][1] - w[0] * self_pair[1], sums[1][1]
    for k, of_class in enumerate(rows):
        (per_other,) = plans[k].sums(factors[k], (1,), per_other=True)
        if k == 0:
            per_other = per_other - factors[0] * self_pair[1]
        grad[of_class] = w[k] * per_other
    grad[rows[0]] -= factors[0] * slopes[0] + factors[1] * slopes[1]
    return float((shares * above / total).sum()), grad


@lru_cache(maxsize=64)
def _terms(temperature: float) -> tuple[PairTerm, ...]:
    return surrogates.sigmoid(temperature).at_margin(0.0)


@lru_cache(maxsize=64)
def _kernel_piece(temperature: float, wide: bool) -> native.PieceForm:
    """Return shift, rate, powers and polynomials for the kernel, without the unused curvature."""
    ((table,), _) = tables(_terms(temperature), wide)
    n_powers = table.n_powers(0, 1)
    return native_form(table._replace(c=table.c[..., :n_powers]))

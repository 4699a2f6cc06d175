"""Reference implementation: the double sum over all pairs, in O(n_pos n_neg) time.

Every function takes the arguments of its namesake in `everypair`. It serves as the oracle of the
tests, so it shares no mathematics with the fast implementations:

- Built-in surrogates are computed from their textbook formulas, not from their terms.
- Whether a pair is beyond a knot, ``margin - (s_pos - s_neg) > knot``, is decided exactly for the
  real numbers that the floats represent. At equality the derivatives from below hold.
- Weights are scaled by a power of two first, so weights of any magnitude neither overflow nor
  vanish, and rows of weight 0 take no part.

Pairs are visited in blocks, so 20,000 rows fit in memory.

>>> round(pair_loss([0.9, 0.2, 0.6], [1, 0, 0]), 2)  # (0.3^2 + 0.7^2) / 2
0.29
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair._naive_metrics import average_precision, delong, delong_test, partial_auc
from everypair._naive_pairs import Pairs
from everypair.inputs import batches
from everypair.inputs.groups import group_codes
from everypair.surrogates import Floats, Surrogate

__all__ = [
    "auc",
    "average_precision",
    "delong",
    "delong_test",
    "pair_derivatives",
    "pair_hvp",
    "pair_loss",
    "pair_loss_and_grad",
    "pair_row_sums",
    "partial_auc",
]


def pair_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> float:
    """Average a surrogate over every pair; see `everypair.pair_loss`."""
    every = Pairs(
        scores, labels, surrogate, margin, weights, groups, reduction,
        pairs, censoring, max_fpr, min_tpr,
    )  # fmt: skip
    return _derivatives(every)[0]


def pair_loss_and_grad(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> tuple[float, NDArray[Any]]:
    """Average a surrogate over every pair, with gradient; see `everypair.pair_loss_and_grad`.

    Examples
    --------
    >>> pair_loss_and_grad([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
    (0.625, array([-1.  ,  0.  ,  0.25,  0.75]))
    """
    every = Pairs(
        scores, labels, surrogate, margin, weights, groups, reduction,
        pairs, censoring, max_fpr, min_tpr,
    )  # fmt: skip
    return _derivatives(every)[:2]


def pair_derivatives(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Compute value, gradient and diagonal Hessian; see `everypair.pair_derivatives`."""
    every = Pairs(
        scores, labels, surrogate, margin, weights, groups, reduction,
        pairs, censoring, max_fpr, min_tpr,
    )  # fmt: skip
    return _derivatives(every)


def pair_hvp(
    scores: ArrayLike,
    labels: ArrayLike,
    vector: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> NDArray[Any]:
    """Multiply the Hessian by a vector; see `everypair.pair_hvp`."""
    every = Pairs(
        scores, labels, surrogate, margin, weights, groups, reduction,
        pairs, censoring, max_fpr, min_tpr,
    )  # fmt: skip
    v = batches.vector_for(every.batch, vector).astype(np.float64)
    hvp = np.zeros(every.scores.size)
    with np.errstate(over="ignore", invalid="ignore"):
        for pos, neg, w in every.blocks():
            products = w * every.evaluate(pos, neg)[2] * (v[pos][:, None] - v[neg])
            hvp[pos] += products.sum(axis=1)
            hvp[neg] -= products.sum(axis=0)
        return every.per_row(hvp)


def auc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    average: Literal["pairs", "groups", "rows"] = "pairs",
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
) -> float:
    """Compute the share of pairs in the right order, ties counting half; see `everypair.auc`."""
    if average != "pairs" and pairs == "binary":
        return partial_auc(scores, labels, weights=weights, groups=groups, average=average)
    every = Pairs(scores, labels, weights=weights, groups=groups, pairs=pairs, censoring=censoring)
    if every.weight == 0.0:
        raise ValueError("auc must have both classes in at least one group; got no pair.")
    group = np.zeros(every.scores.size, np.intp) if groups is None else np.asarray(groups)
    values, in_group = np.unique(group, return_inverse=True)
    in_order, weight = np.zeros((2, values.size))
    for pos, neg, w in every.blocks():
        s_pos, s_neg = every.scores[pos][:, None], every.scores[neg]
        in_order[in_group[pos[0]]] += (w * ((s_pos > s_neg) + 0.5 * (s_pos == s_neg))).sum()
        weight[in_group[pos[0]]] += w.sum()
    if average == "pairs":
        return float(in_order.sum() / weight.sum())
    counts = weight > 0.0
    rows = np.bincount(in_group, every.batch.weights, values.size)
    shares = rows[counts] if average == "rows" else np.ones(counts.sum())
    return float((shares * in_order[counts] / weight[counts]).sum() / shares.sum())


def pair_row_sums(
    scores: ArrayLike,
    others: ArrayLike | None = None,
    *,
    surrogate: str | Surrogate = "sigmoid",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    other_groups: ArrayLike | None = None,
) -> Floats:
    """Sum a surrogate over all other rows, row by row, in float64; see `everypair.pair_row_sums`.

    Examples
    --------
    >>> pair_row_sums([0.5, 2.0], [0.0, 1.0], surrogate="squared_hinge")
    array([2.5, 0. ])
    """
    x = np.asarray(scores, np.float64).reshape(-1)
    y = x if others is None else np.asarray(others, np.float64).reshape(-1)
    w = np.ones(y.size) if weights is None else np.asarray(weights, np.float64)
    labels = np.arange(x.size + y.size) < x.size
    pairs = Pairs(np.concatenate([x, y]), labels, surrogate, margin)
    sums = np.zeros(x.size)
    codes = None
    if groups is not None:
        codes = group_codes(groups, groups if other_groups is None else other_groups)
    for rows, all_others, _ in pairs.blocks():
        values = w * pairs.evaluate(rows, all_others)[0]
        if codes is not None:
            values = np.where(codes[0][rows][:, None] == codes[1], values, 0.0)
        if others is None:
            values[np.arange(rows.size), rows] = 0.0
        sums[rows] = values.sum(axis=1)
    return sums.reshape(np.shape(scores))


def _derivatives(pairs: Pairs) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Return value, gradient and diagonal Hessian."""
    total, grad, hess = 0.0, *np.zeros((2, pairs.scores.size))
    with np.errstate(over="ignore", invalid="ignore"):
        for pos, neg, w in pairs.blocks():
            value, slope, curvature = pairs.evaluate(pos, neg)
            total += (w * value).sum()
            grad[pos] -= (w * slope).sum(axis=1)
            grad[neg] += (w * slope).sum(axis=0)
            hess[pos] += (w * curvature).sum(axis=1)
            hess[neg] += (w * curvature).sum(axis=0)
        return float(pairs.reduced(total)), pairs.per_row(grad), pairs.per_row(hess)

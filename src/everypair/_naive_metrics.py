"""Reference implementation of the metrics: direct sums, in O(n^2) time.

`everypair.naive` exports these functions. Groups are visited one after the other, and each row is
compared with all others. Intervals use the same normal quantile as the fast implementation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair._naive_pairs import Pairs
from everypair.inputs import batches
from everypair.metrics import DeLong, DeLongTest

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def average_precision(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    average: Literal["groups", "rows"] = "groups",
) -> float:
    """Compute the mean precision at the positives; see `everypair.average_precision`."""

    def of_group(x: Floats, positive: Bools, w: Floats) -> float:
        if not positive.any():
            return math.nan
        total = 0.0
        for i in np.flatnonzero(positive):
            above = x >= x[i]
            total += w[i] * w[above & positive].sum() / w[above].sum()
        return float(total / w[positive].sum())

    return _mean(of_group, _rows(scores, labels, weights, groups), average)


def partial_auc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    max_fpr: float = 1.0,
    min_tpr: float = 0.0,
    standardise: bool = False,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    average: Literal["pairs", "groups", "rows"] = "pairs",
) -> float:
    """Sum over the pairs of the highest negatives and lowest positives; see `partial_auc`.

    A block of tied rows that is cut by a limit is taken as if its rows were in random order: of its
    negatives, the share that is kept scores highest, and of its positives, lowest.
    """

    def of_group(x: Floats, positive: Bools, w: Floats) -> float:
        pos, w_pos, neg, w_neg = x[positive], w[positive], x[~positive], w[~positive]
        if not pos.size or not neg.size:
            return math.nan
        kept_pos = _kept(pos, w_pos, 1.0 - min_tpr)
        kept_neg = _kept(-neg, w_neg, max_fpr)
        area = 0.0
        for s, weight, kept in zip(pos, w_pos, kept_pos, strict=True):
            ties = np.maximum(kept + kept_neg - 1.0, 0.0) ** 2 / 2.0
            in_order = np.where(s > neg, kept * kept_neg, np.where(s == neg, ties, 0.0))
            area += weight * (w_neg * in_order).sum()
        return float(area / w_pos.sum() / w_neg.sum())

    area = _mean(of_group, _rows(scores, labels, weights, groups), average)
    if not standardise:
        return area
    chance = 0.5 * (max_fpr - min_tpr) ** 2 if max_fpr > min_tpr else 0.0
    return 0.5 * (1.0 + (area - chance) / (max_fpr * (1.0 - min_tpr) - chance))


def delong(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    confidence: float = 0.95,
    method: Literal["normal", "logit"] = "normal",
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
) -> DeLong:
    """Compute the variance from the pairs of each row; see `everypair.delong`."""
    auc, influence, variance_of = _index(scores, labels, weights, groups, pairs, censoring)
    variance = variance_of(influence)
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(variance)
    if method == "normal" or auc in (0.0, 1.0):
        return DeLong(auc, variance, max(auc - half, 0.0), min(auc + half, 1.0))
    odds, factor = auc / (1.0 - auc), math.exp(half / (auc * (1.0 - auc)))
    return DeLong(auc, variance, odds / (odds + factor), odds * factor / (1.0 + odds * factor))


def delong_test(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    confidence: float = 0.95,
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
) -> DeLongTest:
    """Compare two AUCs by the pairs of each row; see `everypair.delong_test`."""
    auc_a, of_a, _ = _index(scores_a, labels, weights, groups, pairs, censoring)
    auc_b, of_b, variance_of = _index(scores_b, labels, weights, groups, pairs, censoring)
    difference = auc_a - auc_b
    variance = variance_of(of_a - of_b)
    error = math.sqrt(variance)
    z = difference / error if error else math.copysign(math.inf, difference)
    z = z if difference else 0.0
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * error
    return DeLongTest(
        auc_a, auc_b, difference, variance, z, 2.0 * NormalDist().cdf(-abs(z)),
        difference - half, difference + half,
    )  # fmt: skip


class _Rows(NamedTuple):
    """Rows of positive weight; the largest weight is 1, and groups are numbered."""

    x: Floats
    positive: Bools
    w: Floats
    group: NDArray[np.intp]


def _rows(
    scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None, groups: ArrayLike | None
) -> _Rows:
    """Check a batch and return its rows of positive weight; without groups, all are in one."""
    batch = batches.batch_from(scores, labels, weights, groups)
    x, positive = batch.scores.astype(np.float64), batches.positives(batch)
    w = np.ones(x.size) if batch.weights is None else batch.weights / batch.weights.max()
    group = np.zeros(x.size, np.intp)
    if batch.offsets is not None:
        order = np.arange(x.size) if batch.order is None else batch.order
        group[order] = np.repeat(np.arange(batch.offsets.size - 1), np.diff(batch.offsets))
    kept = w > 0.0
    return _Rows(x[kept], positive[kept], w[kept], group[kept])


def _mean(of_group: Callable[[Floats, Bools, Floats], float], rows: _Rows, average: str) -> float:
    """Average a metric over the groups in which it is not NaN."""
    values, shares = [], []
    for group in np.unique(rows.group):
        x, positive, w = (column[rows.group == group] for column in rows[:3])
        value = of_group(x, positive, w)
        if not math.isnan(value):
            pairs = w[positive].sum() * w[~positive].sum()
            values.append(value)
            shares.append({"pairs": pairs, "groups": 1.0, "rows": w.sum()}[average])
    if not values:
        raise ValueError("the metric must have both classes in at least one group; got no pair.")
    return float(np.average(values, weights=shares))


def _kept(x: Floats, w: Floats, share: float) -> Floats:
    """Return how much of each row is among the lowest rows that hold this share of the weight."""
    below = np.array([w[x < s].sum() for s in x])
    tied = np.array([w[x == s].sum() for s in x])
    kept: Floats = np.clip((share * w.sum() - below) / tied, 0.0, 1.0)
    return kept


def _index(
    scores: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None,
    groups: ArrayLike | None,
    pairs: str,
    censoring: str,
) -> tuple[float, Floats, Callable[[Floats], float]]:
    """Return an index, the influence of each row on it, and the variance of a sum of influences."""
    if pairs == "binary":
        rows = _rows(scores, labels, weights, groups)
        return *_influence(rows), lambda u: _variance(u, rows, groups is not None)
    every = Pairs(scores, labels, weights=weights, pairs=pairs, censoring=censoring)
    n = every.scores.size
    in_order, weight = np.zeros((2, n))
    for pos, neg, w in every.blocks():
        s_pos, s_neg = every.scores[pos][:, None], every.scores[neg]
        right = w * ((s_pos > s_neg) + 0.5 * (s_pos == s_neg))
        for sums, parts in ((in_order, right), (weight, w)):
            sums[pos] += parts.sum(axis=1)
            sums[neg] += parts.sum(axis=0)
    index = float(in_order.sum() / weight.sum())
    kept = np.ones(n, bool) if weights is None else np.asarray(weights).reshape(-1) > 0
    clusters = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]

    def variance_of(influence: Floats) -> float:
        units = [influence[kept & (clusters == c)].sum() for c in np.unique(clusters[kept])]
        return float(len(units) / (len(units) - 1) * np.square(units).sum())

    return index, 2.0 * (in_order - index * weight) / weight.sum(), variance_of


def _influence(rows: _Rows) -> tuple[float, Floats]:
    """Return the AUC, and for each row its share of the class times its placement less the AUC."""
    x, positive, w, _ = rows
    shares = np.where(positive, w / w[positive].sum(), w / w[~positive].sum())
    placements = np.zeros(x.size)
    for i in range(x.size):
        others = positive != positive[i]
        ahead = x[i] > x[others] if positive[i] else x[i] < x[others]
        placements[i] = (shares[others] * (ahead + 0.5 * (x[i] == x[others]))).sum()
    auc = float((shares * placements)[positive].sum())
    return auc, shares * (placements - auc)


def _variance(influence: Floats, rows: _Rows, clustered: bool) -> float:
    """Return Obuchowski's variance: those of the two classes, and twice their covariance."""
    clusters = rows.group if clustered else np.arange(rows.x.size)
    sums: dict[int, list[list[float]]] = {}
    for cluster, positive, u in zip(clusters, rows.positive, influence, strict=True):
        sums.setdefault(int(cluster), [[], []])[0 if positive else 1].append(float(u))
    pos, neg = ([sum(parts[k]) for parts in sums.values() if parts[k]] for k in (0, 1))
    variance = 2 * len(sums) / (len(sums) - 1) * sum(sum(p) * sum(n) for p, n in sums.values())
    for of_class in (pos, neg):
        variance += len(of_class) / (len(of_class) - 1) * sum(u * u for u in of_class)
    return variance

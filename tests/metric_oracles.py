"""Metrics by their definitions, row by row and pair by pair: the oracles of the fast functions."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from everypair import naive


def average_precision(scores, labels, *, weights=None, groups=None, average="groups"):
    """Return the mean precision at the positives."""

    def of_group(x, positive, w):
        at = [(x >= x[i], w[i]) for i in np.flatnonzero(positive)]
        total = sum(w_i * w[above & positive].sum() / w[above].sum() for above, w_i in at)
        return total / w[positive].sum() if at else math.nan

    return _mean(of_group, scores, labels, weights, groups, average)


def partial_auc(
    scores, labels, *, max_fpr=1.0, min_tpr=0.0, standardise=False,
    weights=None, groups=None, average="pairs",
):  # fmt: skip
    """Return the weight in order of the pairs of the highest negatives and lowest positives.

    A block of tied rows that is cut by a limit is taken as if its rows were in random order: of its
    negatives, the share that is kept scores highest, and of its positives, lowest.
    """

    def of_group(x, positive, w):
        pos, w_pos, neg, w_neg = x[positive, None], w[positive], x[~positive], w[~positive]
        if not pos.size or not neg.size:
            return math.nan
        kept_pos = naive.kept_share(pos[:, 0], w_pos, 1.0 - min_tpr)[:, None]
        kept_neg = naive.kept_share(-neg, w_neg, max_fpr)
        ties = np.maximum(kept_pos + kept_neg - 1.0, 0.0) ** 2 / 2.0
        in_order = np.where(pos > neg, kept_pos * kept_neg, np.where(pos == neg, ties, 0.0))
        return w_pos @ in_order @ w_neg / w_pos.sum() / w_neg.sum()

    area = _mean(of_group, scores, labels, weights, groups, average)
    if not standardise:
        return area
    chance = 0.5 * (max_fpr - min_tpr) ** 2 if max_fpr > min_tpr else 0.0
    return 0.5 * (1.0 + (area - chance) / (max_fpr * (1.0 - min_tpr) - chance))


def delong(scores, labels, *, confidence=0.95, method="normal", **options):
    """Return the AUC, its variance from the pairs of each row, and the interval."""
    auc, influence, variance_of = _influence(scores, labels, **options)
    variance = variance_of(influence)
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(variance)
    if method == "normal" or auc in (0.0, 1.0):
        return auc, variance, max(auc - half, 0.0), min(auc + half, 1.0)
    odds, factor = auc / (1.0 - auc), math.exp(half / (auc * (1.0 - auc)))
    return auc, variance, odds / (odds + factor), odds * factor / (1.0 + odds * factor)


def delong_test(scores_a, scores_b, labels, **options):
    """Return two AUCs, their difference, and its variance from the pairs of each row."""
    auc_a, of_a, _ = _influence(scores_a, labels, **options)
    auc_b, of_b, variance_of = _influence(scores_b, labels, **options)
    return auc_a, auc_b, auc_a - auc_b, variance_of(of_a - of_b)


def _mean(of_group, scores, labels, weights, groups, average):
    """Average a metric over the groups in which it is not NaN; the largest weight is 1."""
    x, positive = np.ravel(scores).astype(np.float64), np.ravel(labels) == 1
    w = np.ones(x.size) if weights is None else weights / np.max(weights)
    groups = np.zeros(x.size) if groups is None else np.asarray(groups)
    values, shares = [], []
    for group in np.unique(groups):
        rows = (groups == group) & (w > 0.0)
        value = of_group(x[rows], positive[rows], w[rows]) if rows.any() else math.nan
        if not math.isnan(value):
            pairs = w[rows & positive].sum() * w[rows & ~positive].sum()
            values.append(value)
            shares.append({"pairs": pairs, "groups": 1.0, "rows": w[rows].sum()}[average])
    return np.average(values, weights=shares)


def _influence(scores, labels, weights=None, groups=None, pairs="binary", censoring="harrell"):
    """Return an index, the influence of each row on it, and the variance of a sum of influences."""
    every = naive.Pairs(scores, labels, weights=weights, pairs=pairs, censoring=censoring)
    n = every.scores.size
    in_order, weight = np.zeros((2, n))
    for pos, neg, w in every.blocks():
        for sums, parts in ((in_order, w * every.is_in_order(pos, neg)), (weight, w)):
            sums[pos] += parts.sum(axis=1)
            sums[neg] += parts.sum(axis=0)
    index = float(in_order.sum() / weight.sum())
    kept = np.ones(n, bool) if weights is None else np.asarray(weights).reshape(-1) > 0
    clusters = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    classes = [kept]
    if pairs == "binary":
        positive = np.asarray(labels).reshape(-1) == 1
        classes = [kept & positive, kept & ~positive]

    def variance_of(influence):
        # Obuchowski's variance: those of the classes, and twice their covariance.
        names = np.unique(clusters[kept])
        sums = np.array([[influence[c & (clusters == k)].sum() for k in names] for c in classes])
        sizes = [np.unique(clusters[c]).size for c in classes]
        variance = sum(m / (m - 1) * (s**2).sum() for m, s in zip(sizes, sums, strict=True))
        covariance = sums.prod(axis=0).sum() if len(classes) == 2 else 0.0
        return float(variance + 2.0 * names.size / (names.size - 1) * covariance)

    return index, 2.0 * (in_order - index * weight) / weight.sum(), variance_of

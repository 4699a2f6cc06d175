"""The ROC curve, the area under it and the area under a part of it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches, pair_options
from everypair.inputs.batches import Batch
from everypair.inputs.groups import group_numbers
from everypair.inputs.ranked import RankedRows
from everypair.kernel import choose
from everypair.metrics.influences import raise_no_pairs, row_pairs
from everypair.metrics.tie_blocks import Average, check_average, clipped_areas, tie_blocks


class RocCurve(NamedTuple):
    """The points of a ROC curve, from (0, 0) to (1, 1).

    Attributes
    ----------
    fpr, tpr : (k,) float64
        False and true positive rate: the shares of the negatives and of the positives that score
        at least the threshold.
    thresholds : (k,) floating
        The distinct scores in decreasing order, after a first threshold of infinity.
    """

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]
    thresholds: NDArray[Any]


def auc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    average: Average = "pairs",
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
) -> float:
    r"""Compute the exact area under the ROC curve, or the concordance index of other targets.

    It is the share of (positive, negative) pairs in which the positive scores higher; ties count
    one half:

    .. math::

        \mathrm{AUC} = \frac{\sum_{i \in P} \sum_{j \in N} w_i w_j
            \left([s_i > s_j] + \tfrac12 [s_i = s_j]\right)}
            {\sum_{i \in P} \sum_{j \in N} w_i w_j}

    Takes O(n log n) time and O(n) memory. With ``pairs="ordered"`` this is the share of the pairs
    with different labels that are in order (Kendall's tau is twice it minus 1 if nothing is tied).
    With ``pairs="survival"`` it is Harrell's or Uno's concordance index, equal to those of
    scikit-survival and lifelines.

    Parameters
    ----------
    scores, labels, weights, pairs, censoring
        Those of `pair_loss`: finite (n,) or (n, 1) scores, labels, (n,) row weights.
    groups : (n,) of any hashable values, optional
        Only pairs inside a group count. The result is a mean over the groups that have pairs.
    average : {"pairs", "groups", "rows"}
        The weight of a group in that mean: the weight of its pairs, so that all pairs count the
        same; 1, so that all groups count the same; or the weight of its rows (the *GAUC* of
        recommender systems).

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    ValueError
        If there is no pair (all rows have one class), or an argument is not as described.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    >>> ep.auc([0.9, 0.2, 0.6, 0.6], [1, 0, 0, 1])  # four pairs: three in order and one tie
    0.875
    >>> users = ["a", "a", "a", "b", "b"]
    >>> ep.auc([0.9, 0.2, 0.6, 0.1, 0.3], [1, 0, 1, 1, 0], groups=users, average="groups")
    0.5
    >>> times, events = [5.0, 3.0, 9.0], [True, False, True]
    >>> ep.auc([0.5, 0.1, 0.9], (times, events), pairs="survival")  # one pair: 5 before 9
    0.0
    """
    check_average(average)
    batch = batches.batch_from(scores, labels, weights, groups, pairs, censoring)
    if average == "pairs":
        concordant, pair_weight = choose.concordance(batch)
        if pair_weight == 0.0:
            raise_no_pairs(batch, "auc")
        return min(concordant / pair_weight, 1.0)
    if batch.ranked is None:
        return _mean_area(batch, "auc", average, 1.0, 0.0)
    return _mean_concordance(batch, batch.ranked, average)


def _mean_concordance(batch: Batch, ranked: RankedRows, average: str) -> float:
    """Average the concordance index of ordered or survival targets over the groups."""
    numbers = group_numbers(batch.order, batch.offsets)
    of_row = np.zeros(batch.scores.shape[0], np.int64) if numbers is None else numbers
    in_order, pairs = (np.bincount(of_row, sums) for sums in row_pairs(batch, ranked))
    counts = pairs > 0.0
    if not counts.any():
        raise_no_pairs(batch, "auc")
    weights = np.bincount(of_row, batch.weights)[counts] if average == "rows" else None
    return min(float(np.average(in_order[counts] / pairs[counts], weights=weights)), 1.0)


def roc_curve(
    scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> RocCurve:
    r"""Compute every point of the ROC curve, one for each distinct score.

    .. math::

        \mathrm{TPR}(c) = \frac{\sum_{i \in P} w_i [s_i \ge c]}{\sum_{i \in P} w_i}, \qquad
        \mathrm{FPR}(c) = \frac{\sum_{j \in N} w_j [s_j \ge c]}{\sum_{j \in N} w_j}

    Parameters
    ----------
    scores, labels, weights
        Those of `auc`, of shape (n,) or (n, 1). Rows of weight zero are left out.

    Returns
    -------
    RocCurve
        The fields `fpr`, `tpr` and `thresholds`, each of shape (k,) for k - 1 distinct scores.
        They equal those of scikit-learn's ``roc_curve`` with ``drop_intermediate=False``.

    Raises
    ------
    ValueError
        If all rows have one class, or an argument is not as described.

    Examples
    --------
    >>> import everypair as ep
    >>> fpr, tpr, thresholds = ep.roc_curve([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    >>> fpr
    array([0. , 0. , 0.5, 0.5, 1. ])
    >>> tpr
    array([0. , 0.5, 0.5, 1. , 1. ])
    >>> thresholds
    array([ inf, 0.8 , 0.4 , 0.35, 0.1 ])
    """
    batch = batches.batch_from(scores, labels, weights)
    blocks = tie_blocks(batch, "roc_curve")
    if not blocks.total.all():
        raise_no_pairs(batch, "roc_curve")
    tpr, fpr = np.insert(blocks.up_to / blocks.total, 0, 0.0, axis=1)
    with np.errstate(over="ignore"):
        thresholds = np.append(np.inf, batch.scores[blocks.rows[blocks.heads]])
        return RocCurve(fpr, tpr, thresholds.astype(batch.dtype, copy=False))


def partial_auc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    max_fpr: float = 1.0,
    min_tpr: float = 0.0,
    standardise: bool = False,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    average: Average = "pairs",
) -> float:
    r"""Compute the exact area under a part of the ROC curve.

    It is the area under the curve inside the rectangle of false positive rates up to `max_fpr` and
    true positive rates from `min_tpr` (with both, the *two-way partial AUC* of Yang et al. 2019):

    .. math::

        A = \int_0^{\mathrm{max\_fpr}} \max(\mathrm{TPR}(f) - \mathrm{min\_tpr}, 0) \, df

    The curve is linear between its points, as in scikit-learn. The area is also the share of all
    pairs that are in order, with a negative among the `max_fpr` highest and a positive among the
    ``1 - min_tpr`` lowest of their class. Takes O(n log n) time.

    Parameters
    ----------
    scores, labels, weights
        Those of `auc`: finite (n,) or (n, 1) scores, binary labels, (n,) row weights.
    max_fpr : float
        The largest false positive rate, above 0 and at most 1.
    min_tpr : float
        The smallest true positive rate, at least 0 and below 1.
    standardise : bool
        Whether to map the area so that random scores have one half and perfect scores have 1, as
        McClish (1989) does for `max_fpr`:

        .. math::

            \frac12 \left(1 + \frac{A - A_0}{A_1 - A_0}\right), \qquad
            A_0 = \tfrac12 \max(\mathrm{max\_fpr} - \mathrm{min\_tpr}, 0)^2, \quad
            A_1 = \mathrm{max\_fpr} \, (1 - \mathrm{min\_tpr})

        With `max_fpr` alone this equals scikit-learn's ``roc_auc_score(max_fpr=...)``.
    groups, average
        Those of `auc`. Each group has its own curve.

    Returns
    -------
    float
        Between 0 and :math:`A_1`; between 0 and 1 if standardised.

    Raises
    ------
    ValueError
        If there is no pair (all rows have one class), or an argument is not as described.

    Examples
    --------
    >>> import everypair as ep
    >>> scores, labels = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [1, 0, 1, 0, 1, 0]
    >>> ep.partial_auc(scores, labels, max_fpr=0.5)  # 1/3 of the width at height 1/3, 1/6 at 2/3
    0.222...
    >>> ep.partial_auc(scores, labels, max_fpr=0.5, standardise=True)
    0.629...
    >>> ep.partial_auc(scores, labels, max_fpr=0.5, min_tpr=0.5)
    0.0277...
    """
    widest = pair_options.check_rate(max_fpr, "max_fpr", 1.0, closed=False)
    lowest = pair_options.check_rate(min_tpr, "min_tpr", 0.0)
    check_average(average)
    batch = batches.batch_from(scores, labels, weights, groups)
    area = _mean_area(batch, "partial_auc", average, widest, lowest)
    if not standardise:
        return area
    chance, largest = max(widest - lowest, 0.0) ** 2 / 2.0, widest * (1.0 - lowest)
    return (1.0 + (area - chance) / (largest - chance)) / 2.0


def _mean_area(batch: Batch, name: str, average: str, widest: float, lowest: float) -> float:
    """Average over the groups the area under the part of the curve inside the rectangle."""
    blocks = tie_blocks(batch, name)
    has_pairs = blocks.total.min(axis=0) > 0.0
    if not has_pairs.any():
        raise_no_pairs(batch, name)
    total = blocks.per_block(blocks.total)
    areas = blocks.per_group(clipped_areas(blocks.above, blocks.up_to, total, widest, lowest))
    shares = areas / np.where(has_pairs, blocks.total.prod(axis=0), 1.0)
    return min(blocks.mean(shares, has_pairs, average), widest * (1.0 - lowest))

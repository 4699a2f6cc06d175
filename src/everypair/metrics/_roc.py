"""Exact ranking metrics: the area under the ROC curve and the curve itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import _dispatch, _inputs
from everypair.targets import binary

__all__ = ["RocCurve", "auc", "roc_curve"]


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
) -> float:
    r"""Compute the exact area under the ROC curve.

    It is the share of (positive, negative) pairs in which the positive scores higher; ties count
    one half:

    .. math::

        \mathrm{AUC} = \frac{\sum_{i \in P} \sum_{j \in N} w_i w_j
            \left([s_i > s_j] + \tfrac12 [s_i = s_j]\right)}
            {\sum_{i \in P} \sum_{j \in N} w_i w_j}

    Takes O(n log n) time and O(n) memory.

    Parameters
    ----------
    scores, labels, weights
        Those of `pair_loss`: finite (n,) or (n, 1) scores, binary labels, (n,) row weights.
    groups : (n,) of any hashable values, optional
        Only pairs inside a group count. The result is the mean AUC of the groups, weighted by
        their total pair weights; groups with one class have no pair.

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
    """
    batch = _inputs.batch_from(scores, labels, weights, groups)
    concordant, pair_weight = _dispatch.concordance(batch)
    if pair_weight == 0.0:
        binary.raise_no_pairs(_inputs.positives(batch), batch.weights, "auc")
    return concordant / pair_weight


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
    batch = _inputs.batch_from(scores, labels, weights)
    positive = _inputs.positives(batch)
    x, w = batch.scores, batch.weights
    if w is None:
        w = np.ones(x.shape[0])
    elif not w.all():
        x, positive, w = x[w > 0.0], positive[w > 0.0], w[w > 0.0]
    order = np.argsort(x, kind="stable")[::-1]
    x, positive, w = x[order], positive[order], w[order]
    last_of_tie = np.append(np.flatnonzero(np.diff(x)), x.shape[0] - 1) if x.size else order
    true = np.cumsum(np.where(positive, w, 0.0))[last_of_tie]
    false = np.cumsum(np.where(positive, 0.0, w))[last_of_tie]
    if x.size == 0 or true[-1] == 0.0 or false[-1] == 0.0:
        binary.raise_no_pairs(_inputs.positives(batch), batch.weights, "roc_curve")
    with np.errstate(over="ignore"):
        thresholds = np.append(np.inf, x[last_of_tie]).astype(batch.dtype, copy=False)
    return RocCurve(np.append(0.0, false / false[-1]), np.append(0.0, true / true[-1]), thresholds)

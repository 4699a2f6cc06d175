"""Exact ranking metrics: the area under the ROC curve and the curve itself.

>>> auc([0.9, 0.2, 0.6, 0.6], [1, 0, 0, 1])  # of four pairs three are right and one is tied
0.875
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from everypair import _dispatch, _inputs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from everypair._inputs import Batch

__all__ = ["RocCurve", "auc", "roc_curve"]


class RocCurve(NamedTuple):
    """The points of a ROC curve, from (0, 0) to (1, 1).

    Attributes
    ----------
    fpr, tpr : (k,) float64
        Shares of the negatives and of the positives that score at least the threshold.
    thresholds : (k,) floating
        Falling, the first infinite: nothing scores as high.
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
    """Return the area under the ROC curve, exactly.

    It is the share of (positive, negative) pairs in which the positive scores higher, ties
    counting half.

    Parameters
    ----------
    scores : (n,) or (n, 1) real
        Larger means more positive; finite.
    labels : (n,) or (n, 1)
        Coded {0, 1}, {-1, +1} or bool.
    weights : (n,) real, optional
        A pair weighs the product of its two weights.
    groups : (n,) of any hashable values, optional
        Only pairs inside a group count: the average of the groups' areas by their pair weight.
        Groups with one class have no pair and do not count.

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    ValueError
        If there is no pair (one class only), or an argument is not as described.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    batch = _inputs.batch_from(scores, labels, weights, groups)
    concordant, pair_weight = _dispatch.concordance(batch)
    if pair_weight == 0.0:
        _raise_no_pair(batch, "auc")
    return concordant / pair_weight


def roc_curve(
    scores: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> RocCurve:
    """Return every point of the ROC curve, one for each distinct score.

    Parameters
    ----------
    scores, labels, weights
        Those of `auc`. Rows of weight zero leave no point.

    Returns
    -------
    RocCurve
        The fields `fpr`, `tpr` and `thresholds`, equal to those of scikit-learn's ``roc_curve``
        with ``drop_intermediate=False``.

    Raises
    ------
    ValueError
        If there is one class only, or an argument is not as described.

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
        _raise_no_pair(batch, "roc_curve")
    with np.errstate(over="ignore"):
        thresholds = np.append(np.inf, x[last_of_tie]).astype(batch.dtype, copy=False)
    return RocCurve(np.append(0.0, false / false[-1]), np.append(0.0, true / true[-1]), thresholds)


def _raise_no_pair(batch: Batch, name: str) -> NoReturn:
    positive = _inputs.positives(batch)
    kept = np.ones_like(positive) if batch.weights is None else batch.weights > 0.0
    n_pos, n_neg = int((positive & kept).sum()), int((~positive & kept).sum())
    where = "" if batch.weights is None else " of positive weight"
    if n_pos and n_neg:
        raise ValueError(
            f"{name} must have both classes in at least one group; got {n_pos} positives and "
            f"{n_neg} negatives{where}, never together. Check the groups, or leave them out."
        )
    raise ValueError(
        f"{name} must have both classes; labels hold {n_pos} positives and {n_neg} negatives"
        f"{where}. Evaluate on more rows, or on a stratified sample."
    )

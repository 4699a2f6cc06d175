"""Average precision: the mean precision at the positives."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from everypair.inputs import batches
from everypair.metrics.tie_blocks import check_average, tie_blocks


def average_precision(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    average: Literal["groups", "rows"] = "groups",
) -> float:
    r"""Compute the exact average precision, the step-wise area under the precision-recall curve.

    It is the mean, over the positives, of the precision among the rows that score at least as high:

    .. math::

        \mathrm{AP} = \frac{1}{\sum_{i \in P} w_i} \sum_{i \in P} w_i
            \frac{\sum_{k \in P} w_k [s_k \ge s_i]}{\sum_k w_k [s_k \ge s_i]}

    Scores without information have an average precision near the share of positives, not near one
    half. It equals scikit-learn's ``average_precision_score``. Takes O(n log n) time.

    Parameters
    ----------
    scores, labels, weights
        Those of `auc`: finite (n,) or (n, 1) scores, binary labels, (n,) row weights.
    groups : (n,) of any hashable values, optional
        Rows are ranked inside their group only. The result is a mean over the groups that have a
        positive; a group of positives alone has an average precision of 1.
    average : {"groups", "rows"}
        The mean over groups: all groups count the same (the *mean average precision* of retrieval),
        or each counts by the weight of its rows.

    Returns
    -------
    float
        Above 0, at most 1.

    Raises
    ------
    ValueError
        If there is no positive, or an argument is not as described.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.average_precision([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])  # (1 + 2 / 3) / 2
    0.833...
    >>> ep.average_precision([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], groups=["a", "a", "b", "b"])
    0.75
    """
    check_average(average, ("groups", "rows"))
    batch = batches.batch_from(scores, labels, weights, groups)
    blocks = tie_blocks(batch, "average_precision")
    has_positives = blocks.total[0] > 0.0
    if not has_positives.any():
        suffix = "" if weights is None else " of positive weight"
        raise ValueError(
            f"average_precision must have a positive row{suffix}; labels hold none. Evaluate on "
            "more rows, or on a stratified sample."
        )
    shift = blocks.per_block(np.diff(blocks.exponents, axis=0)[0])
    with np.errstate(over="ignore", under="ignore"):
        false = np.ldexp(blocks.up_to[1], shift)
    # The precision of a block without positives may be 0 / 0, and does not count.
    block_has_positive = blocks.weight[0] > 0.0
    precision = blocks.up_to[0] / np.where(block_has_positive, blocks.up_to[0] + false, 1.0)
    sums = blocks.per_group(np.where(block_has_positive, blocks.weight[0] * precision, 0.0))
    precisions = sums / np.where(has_positives, blocks.total[0], 1.0)
    return min(blocks.mean(precisions, has_positives, average), 1.0)

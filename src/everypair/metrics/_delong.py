"""Confidence intervals and a paired test for the AUC (DeLong et al. 1988; Obuchowski 1997).

The same holds for the concordance index of ordered and survival targets.

The AUC is a mean over pairs, so rows enter it through their *placements*: of a positive, the share
of the negatives that score lower, and of a negative, the share of the positives that score higher
(ties half). Both have the mean AUC. The variance of the AUC is that of the mean placement of the
positives plus that of the mean placement of the negatives.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal, NamedTuple

from numpy.typing import ArrayLike

from everypair.inputs import batches
from everypair.inputs.batches import Batch
from everypair.metrics.influences import influence, interval, normal_quantile, variance_of


class DeLong(NamedTuple):
    """The AUC with its sampling variance and a confidence interval."""

    auc: float
    variance: float
    low: float
    high: float


class DeLongTest(NamedTuple):
    """The difference between two AUCs on the same rows, and whether it differs from 0.

    Attributes
    ----------
    auc_a, auc_b, difference : float
        The AUCs and ``auc_a - auc_b``.
    variance : float
        The sampling variance of the difference.
    z, p_value : float
        The difference over its standard error, and the two-sided p-value of equal AUCs.
    low, high : float
        The confidence interval of the difference.
    """

    auc_a: float
    auc_b: float
    difference: float
    variance: float
    z: float
    p_value: float
    low: float
    high: float


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
    r"""Compute the AUC with its variance and confidence interval by DeLong's method.

    With :math:`V_i` the share of the negatives that score lower than the positive i, and
    :math:`V_j` the share of the positives that score higher than the negative j (ties half), for
    m positives and n negatives:

    .. math::

        \mathrm{Var} = \frac{1}{m (m - 1)} \sum_{i \in P} (V_i - \mathrm{AUC})^2
                     + \frac{1}{n (n - 1)} \sum_{j \in N} (V_j - \mathrm{AUC})^2

    Takes O(n log n) time and O(n) memory (Sun and Xu 2014). The result equals that of pROC's
    ``ci.auc`` in R.

    A concordance index C, with `pairs` other than "binary", has the variance of the infinitesimal
    jackknife. With :math:`D_i` the weight of all pairs of row i, :math:`C_i` that of its pairs in
    order (ties half), and D the weight of all pairs:

    .. math:: \mathrm{Var} = \frac{n}{n - 1} \sum_i \left(\frac{C_i - C D_i}{D}\right)^2

    Parameters
    ----------
    scores, labels, pairs, censoring
        Those of `auc`: finite (n,) or (n, 1) scores, labels, and which pairs count. The weights of
        ``censoring="uno"`` are taken as known.
    weights : (n,), optional
        Sampling weights, as in `auc`. The sums become :math:`\frac{m}{m - 1} \sum_i (w_i / W)^2
        (V_i - \mathrm{AUC})^2`, with weighted shares and W the weight of all positives. A weight of
        2 is one row that stands for two, not two independent rows: repeat rows to express counts.
    groups : (n,) of any hashable values, optional
        Clusters of rows that depend on one another, such as the images of one patient. The AUC
        stays that of all pairs, inside and across groups, unlike in `auc`. Only the variance
        changes: rows are summed within their group first (Obuchowski 1997).
    confidence : float
        The coverage of the interval, above 0 and below 1.
    method : {"normal", "logit"}
        The interval: ``auc ± z * standard error``, cut off at 0 and 1; or the same on the scale of
        ``log(auc / (1 - auc))``, which stays inside (0, 1) and suits an AUC near 1.

    Returns
    -------
    DeLong
        The fields `auc`, `variance`, `low` and `high`. Scores that separate the classes completely
        have the variance 0, and an interval without width.

    Raises
    ------
    ValueError
        If a class has fewer than two rows (or groups), or an argument is not as described.

    Examples
    --------
    >>> import everypair as ep
    >>> auc, variance, low, high = ep.delong([0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [1, 1, 0, 1, 0, 0])
    >>> print(f"{auc:.3f}, {low:.3f} to {high:.3f}")
    0.889, 0.581 to 1.000
    """
    if method not in ("normal", "logit"):
        raise ValueError(f"method must be 'normal' or 'logit'; got {method!r}.")
    z = normal_quantile(confidence)
    batch = _clustered(scores, labels, weights, groups, pairs, censoring)
    area, parts = influence(batch, "delong")
    area, variance = min(area, 1.0), variance_of(batch, parts, "delong")
    return DeLong(area, variance, *interval(area, variance, z, method))


def _clustered(scores: Any, labels: Any, weights: Any, groups: Any, *kinds: Any) -> Batch:
    """Return a batch in which groups are clusters, across which pairs count."""
    batch = batches.batch_from(scores, labels, weights, None, *kinds)
    if groups is not None:
        batches.set_groups(batch, groups)
    return batch


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
    """Test whether two scorers have the same AUC on the rows that both have scored.

    The test is paired: both scorers see the same rows, and so the same luck. The variance of the
    difference is that of `delong` for the differences of the placements, which is smaller than the
    sum of two variances if the scorers agree on which rows are hard. Takes O(n log n) time. The
    result equals that of pROC's paired ``roc.test`` in R.

    Parameters
    ----------
    scores_a, scores_b : (n,) or (n, 1) floating
        The scores of the two models for the same rows.
    labels, weights, groups, confidence, pairs, censoring
        Those of `delong`.

    Returns
    -------
    DeLongTest
        The fields `auc_a`, `auc_b`, `difference`, `variance`, `z`, `p_value`, `low` and `high`.
        Two scorers with the same placements have z = 0 and the p-value 1.

    Raises
    ------
    ValueError
        If a class has fewer than two rows (or groups), or an argument is not as described.

    Examples
    --------
    >>> import everypair as ep
    >>> a, b = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [0.9, 0.5, 0.7, 0.6, 0.8, 0.4]
    >>> test = ep.delong_test(a, b, [1, 1, 0, 1, 0, 0])
    >>> print(f"{test.difference:.3f}, p = {test.p_value:.2f}")
    0.333, p = 0.22
    """
    quantile = normal_quantile(confidence)
    influences = []
    for name, scores in (("scores_a", scores_a), ("scores_b", scores_b)):
        try:
            batch = _clustered(scores, labels, weights, groups, pairs, censoring)
            influences.append(influence(batch, "delong_test"))
        except ValueError as wrong:  # name the argument that is wrong
            raise ValueError(re.sub(r"^scores\b", name, str(wrong))) from None
    a, b = influences
    difference = a.area - b.area
    variance = variance_of(batch, a.parts - b.parts, "delong_test")
    error = math.sqrt(variance)
    z = difference / error if error > 0.0 else math.copysign(math.inf, difference)
    z = z if difference else 0.0
    return DeLongTest(
        min(a.area, 1.0), min(b.area, 1.0), difference, variance,
        z, math.erfc(abs(z) / math.sqrt(2.0)),
        difference - quantile * error, difference + quantile * error,
    )  # fmt: skip

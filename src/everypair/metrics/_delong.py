"""Confidence intervals and a paired test for the AUC (DeLong et al. 1988; Obuchowski 1997).

The AUC is a mean over pairs, so rows enter it through their *placements*: of a positive, the share
of the negatives that score lower, and of a negative, the share of the positives that score higher
(ties half). Both have the mean AUC. The variance of the AUC is that of the mean placement of the
positives plus that of the mean placement of the negatives.
"""

from __future__ import annotations

import math
import re
from numbers import Real
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from everypair import _inputs
from everypair._inputs import Batch
from everypair.metrics._tie_blocks import Floats, tie_blocks
from everypair.targets import binary


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

    Parameters
    ----------
    scores, labels
        Those of `auc`: finite (n,) or (n, 1) scores and binary labels.
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
    batch = _inputs.batch_from(scores, labels, weights, groups)
    placed = _placements(batch, "delong")
    area = min(placed.concordant / placed.pair_weight, 1.0)  # sums of weights are rounded
    variance = _variance(batch, placed.deviations / placed.pair_weight, "delong")
    return DeLong(area, variance, *interval(area, variance, z, method))


def interval(area: float, variance: float, z: float, method: str) -> tuple[float, float]:
    """Return the confidence interval of an AUC; `method` is that of `delong`."""
    half = z * math.sqrt(variance)
    if method == "logit" and 0.0 < area < 1.0:
        centre, half = math.log(area / (1.0 - area)), half / (area * (1.0 - area))
        low, high = ((1.0 + math.tanh((centre + side) / 2.0)) / 2.0 for side in (-half, half))
        return low, high
    return max(area - half, 0.0), min(area + half, 1.0)


def delong_test(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    confidence: float = 0.95,
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
    labels, weights, groups, confidence
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
    placed = []
    for name, scores in (("scores_a", scores_a), ("scores_b", scores_b)):
        try:
            batch = _inputs.batch_from(scores, labels, weights, groups)
            placed.append(_placements(batch, "delong_test"))
        except ValueError as wrong:  # name the argument that is wrong
            raise ValueError(re.sub(r"^scores\b", name, str(wrong))) from None
    a, b = placed
    pair_weight = a.pair_weight
    difference = (a.concordant - b.concordant) / pair_weight
    deviations = (a.deviations - b.deviations) / pair_weight
    variance = _variance(batch, deviations, "delong_test")
    error = math.sqrt(variance)
    z = difference / error if error > 0.0 else math.copysign(math.inf, difference)
    z = z if difference else 0.0
    return DeLongTest(
        a.concordant / pair_weight, b.concordant / pair_weight, difference, variance,
        z, math.erfc(abs(z) / math.sqrt(2.0)),
        difference - quantile * error, difference + quantile * error,
    )  # fmt: skip


class _Placements(NamedTuple):
    """The AUC as ``concordant / pair_weight``, and the influence of each row on it.

    `deviations` (n,) has, for each row, its placement minus the AUC, times the share of the row in
    the weight of its class and times the pair weight. Rows of weight 0 have 0.
    """

    concordant: float
    pair_weight: float
    deviations: Floats


def _placements(batch: Batch, name: str) -> _Placements:
    """Compute the placements of all rows by one sort."""
    blocks = tie_blocks(batch, name, within_groups=False)
    positive = _inputs.positives(batch)
    if not blocks.total.all():
        binary.raise_no_pairs(positive, batch.weights, name)
    t, f = blocks.total[:, 0].tolist()
    positives_above, negatives_above = (blocks.above + blocks.up_to) / 2.0
    concordant = float((blocks.own[1] * positives_above).sum())
    discordant = float((blocks.own[0] * negatives_above).sum())
    # A positive with the weight a of negatives above has the placement 1 - a / f.
    of_class = np.stack([discordant - t * negatives_above, f * positives_above - concordant])
    sizes = np.diff(blocks.heads, append=blocks.rows.shape[0])
    chosen = (~positive[blocks.rows]).astype(np.intp)
    block = np.repeat(np.arange(sizes.shape[0]), sizes)
    shares = np.array([1.0 / t, 1.0 / f])[chosen]
    if batch.weights is not None:
        shares *= np.ldexp(batch.weights[blocks.rows], -blocks.exponents[chosen, 0])
    deviations = np.zeros(positive.shape[0])
    deviations[blocks.rows] = shares * of_class[chosen, block]
    return _Placements(concordant, t * f, deviations)


def _variance(batch: Batch, deviations: Floats, name: str) -> float:
    """Return the variance of the sum of the deviations of independent rows, or groups of rows."""
    positive = _inputs.positives(batch)
    kept = np.ones_like(positive) if batch.weights is None else batch.weights > 0.0
    of_class = np.stack([positive & kept, ~positive & kept])
    sums, counts = np.where(of_class, deviations, 0.0), of_class
    if batch.offsets is not None:
        order = slice(None) if batch.order is None else batch.order
        heads = batch.offsets[:-1]
        sums = np.add.reduceat(sums[:, order], heads, axis=1)
        counts = np.logical_or.reduceat(counts[:, order], heads, axis=1)
    n_pos, n_neg = counts.sum(axis=1).tolist()
    if min(n_pos, n_neg) < 2:
        units = "rows" if batch.offsets is None else "groups"
        raise ValueError(
            f"{name} must have at least two {units} of each class, to estimate a variance; got "
            f"{n_pos} with positives and {n_neg} with negatives. Use auc, or evaluate on more rows."
        )
    n = int(counts.any(axis=0).sum())
    own = (sums**2).sum(axis=1) * [n_pos / (n_pos - 1), n_neg / (n_neg - 1)]
    return float(own.sum() + 2.0 * n / (n - 1) * (sums[0] * sums[1]).sum())


def normal_quantile(confidence: object) -> float:
    """Check a confidence level and return the normal quantile of a two-sided interval."""
    if isinstance(confidence, Real) and 0.0 < float(confidence) < 1.0:
        return NormalDist().inv_cdf(0.5 + float(confidence) / 2.0)
    raise ValueError(
        f"confidence must be a number above 0 and below 1; got {confidence!r}. 0.95 is usual."
    )

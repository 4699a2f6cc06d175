"""Confidence intervals of a mean over several seeds: over splits, or over the same test rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def resampled_interval(
    values: Sequence[float], test_share: float, confidence: float = 0.95
) -> tuple[float, float] | None:
    r"""Return the corrected interval of the mean over splits, None for fewer than two values.

    .. math:: \bar v \pm t_{n - 1} \sqrt{(1 / n + n_{test} / n_{train}) \, s^2}

    Different splits share rows, so their results vary less than those of independent samples, and
    Student's interval is too narrow. The second term corrects for that (Nadeau and Bengio 2003).

    Parameters
    ----------
    values : sequence of float
        One result for each split, such as a difference of two AUCs.
    test_share : float
        The number of test rows for each training row; 0 gives Student's interval.

    >>> low, high = resampled_interval([0.01, 0.02, 0.03], test_share=0.25)
    >>> round(low, 4), round(high, 4)  # 0.02 -+ 4.303 * 0.01 * sqrt(1 / 3 + 1 / 4)
    (-0.0129, 0.0529)
    """
    n = len(values)
    if n < 2:
        return None
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    quantile = float(stdtrit(n - 1, 0.5 + confidence / 2))
    half = quantile * stdev(values) * math.sqrt(1 / n + test_share)
    return fmean(values) - half, fmean(values) + half


def placements(scores: Floats, positive: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return DeLong's placements of the positives, (n_pos,), and of the negatives, (n_neg,).

    They are the share of the negatives that score lower than a positive, and the share of the
    positives that score higher than a negative; ties count half. The mean of both is the AUC.
    """
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    pos, neg = scores[positive], scores[~positive]
    ranks = rankdata(np.concatenate([pos, neg]))
    below = (ranks[: len(pos)] - rankdata(pos)) / len(neg)
    return below, 1.0 - (ranks[len(pos) :] - rankdata(neg)) / len(pos)


def same_rows_interval(
    placed: Sequence[tuple[Floats, Floats]], confidence: float = 0.95
) -> tuple[float, float] | None:
    r"""Return the interval of the mean AUC of several scorers (seeds) on the same test rows.

    .. math:: \bar a \pm t \sqrt{V + s^2 / k}

    V is DeLong's variance of the mean over the k scorers: it covers the choice of the test rows.
    The second term, with the variance :math:`s^2` of the AUCs of the scorers, covers their
    differences. Student's quantile has the degrees of freedom of Satterthwaite. With k = 1 this is
    DeLong's interval. None if a class has fewer than two rows.

    Parameters
    ----------
    placed : sequence of ((n_pos,), (n_neg,))
        The `placements` of each scorer, or the differences of those of two scorers; the interval is
        then that of the mean difference of the AUCs.

    >>> scores, labels = np.array([0.9, 0.8, 0.7, 0.3]), np.array([True, False, True, False])
    >>> low, high = same_rows_interval([placements(scores, labels)])
    >>> round(low, 2), round(high, 2)
    (0.06, 1.44)
    """
    from scipy.special import stdtrit

    sides = [np.stack(side) for side in zip(*placed, strict=True)]  # (k, n_pos) and (k, n_neg)
    if min(side.shape[1] for side in sides) < 2:
        return None
    aucs, k = sides[0].mean(axis=1), len(placed)
    of_rows = sum(float(side.mean(axis=0).var(ddof=1)) / side.shape[1] for side in sides)
    of_seeds = float(aucs.var(ddof=1)) / k if k > 1 else 0.0
    variance = of_rows + of_seeds
    freedom = (k - 1) * (variance / of_seeds) ** 2 if of_seeds else math.inf
    half = float(stdtrit(min(freedom, 1e9), 0.5 + confidence / 2)) * math.sqrt(variance)
    return float(aucs.mean()) - half, float(aucs.mean()) + half

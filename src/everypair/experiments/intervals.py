"""Confidence intervals of a mean over repeated random splits of the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev


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

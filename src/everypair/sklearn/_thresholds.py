"""Where to cut the scores for `predict`: pairs know differences of scores only."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from everypair.metrics import roc_curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["check_threshold", "threshold_from"]


def check_threshold(threshold: object) -> str | float:
    """Return a threshold rule or number as it is, or say what is wrong with it."""
    if isinstance(threshold, str) and threshold in ("balanced", "prevalence"):
        return threshold
    if isinstance(threshold, Real) and math.isfinite(threshold):
        return float(threshold)
    raise ValueError(
        "threshold must be 'balanced' (best balanced accuracy on the training rows), 'prevalence' "
        f"(as many predicted positives as there are) or a finite number; got {threshold!r}."
    )


def threshold_from(
    rule: str | float,
    scores: NDArray[np.float64],
    positive: NDArray[np.bool_],
    weights: NDArray[np.float64] | None,
) -> float:
    """Return the threshold: rows that score higher are predicted positive.

    Examples
    --------
    >>> scores, positive = np.array([0.0, 1.0, 2.0, 4.0]), np.array([False, False, False, True])
    >>> threshold_from("balanced", scores, positive, None)  # midway, for a new row's sake
    3.0
    """
    if not isinstance(rule, str):
        return rule
    fpr, tpr, scores_down = roc_curve(scores, positive, weights=weights)
    if rule == "balanced":
        quality = tpr - fpr
    else:
        w = np.ones(len(scores)) if weights is None else weights
        share = float(w[positive].sum() / w.sum())
        quality = -np.abs(share * tpr + (1.0 - share) * fpr - share)
    # Not the last point: a row above every threshold would say nothing.
    # The first of equals, with room for rounding: weights of 2 cut where repeated rows would.
    k = int(np.argmax(quality[:-1] >= quality[:-1].max() - 1e-12))
    above, below = float(scores_down[k]), float(scores_down[k + 1])
    middle = below + 0.5 * (above - below)
    return middle if below <= middle < above < math.inf else below

"""Choose the threshold of `predict`, which the pair loss leaves open: it has no intercept."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from everypair.metrics import roc_curve
from everypair.sklearn._objective import Vector


def check_threshold(threshold: object) -> str | float:
    """Check the parameter `threshold` and return the name of a rule or a float."""
    if isinstance(threshold, str) and threshold in ("balanced", "prevalence"):
        return threshold
    if isinstance(threshold, Real) and math.isfinite(threshold):
        return float(threshold)
    raise ValueError(
        "threshold must be 'balanced' (best balanced accuracy on the training rows), 'prevalence' "
        f"(as many predicted positives as there are) or a finite number; got {threshold!r}."
    )


def threshold_from(
    rule: str | float, scores: Vector, positive: NDArray[np.bool_], weights: Vector | None
) -> float:
    """Return the threshold above which rows are predicted positive.

    "balanced" maximises ``tpr - fpr``, "prevalence" makes the predicted share of positives as close
    as possible to the true one, and a number is returned as it is. `scores`, `positive` and
    `weights` have shape (n,). The threshold lies midway between two scores.

    Examples
    --------
    >>> scores, positive = np.array([0.0, 1.0, 2.0, 4.0]), np.array([False, False, False, True])
    >>> threshold_from("balanced", scores, positive, None)
    3.0
    """
    if not isinstance(rule, str):
        return rule
    fpr, tpr, thresholds = roc_curve(scores, positive, weights=weights)
    if rule == "balanced":
        quality = tpr - fpr
    else:
        w = np.ones(len(scores)) if weights is None else weights
        share = float(w[positive].sum() / w.sum())
        quality = -np.abs(share * tpr + (1.0 - share) * fpr - share)
    # The last point is left out: there all rows are predicted positive. Of equal points the first
    # one counts, with a tolerance for rounding, so that a weight of 2 equals a repeated row.
    k = int(np.argmax(quality[:-1] >= quality[:-1].max() - 1e-12))
    above, below = float(thresholds[k]), float(thresholds[k + 1])
    middle = below + 0.5 * (above - below)
    return middle if below <= middle < above < math.inf else below

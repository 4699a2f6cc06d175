"""Probabilities from scores: a logistic curve with two parameters (Platt 1999).

The curve increases strictly, so probabilities rank rows as the scores do and have the same AUC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.families import Floats

_LEAST_SLOPE = 1e-3  # for scores with standard deviation 1; keeps the curve increasing


@dataclass(frozen=True)
class Calibration:
    """The log-odds ``slope * score + intercept``."""

    slope: float
    intercept: float

    def log_odds(self, scores: Floats) -> Floats:
        """Return the log-odds of a positive for each score."""
        return self.slope * scores + self.intercept

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probability of a positive for each score."""
        from scipy.special import expit  # type: ignore[import-untyped]

        return np.asarray(expit(self.log_odds(scores)), np.float64)


def calibrate(scores: Floats, positive: NDArray[Any]) -> Calibration:
    """Fit the curve to scores of rows that the model was not fitted on.

    The targets are Platt's: (n_pos + 1) / (n_pos + 2) for positives and 1 / (n_neg + 2) for
    negatives, so that perfectly separated classes do not make the slope infinite.
    """
    from scipy.optimize import minimize  # type: ignore[import-untyped]
    from scipy.special import expit

    positive = np.asarray(positive, bool)
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    target = np.where(positive, (n_pos + 1) / (n_pos + 2), 1 / (n_neg + 2))
    centre, spread = float(np.mean(scores)), float(np.std(scores)) or 1.0
    z = (np.asarray(scores, np.float64) - centre) / spread

    def loss(curve: Floats) -> tuple[float, Floats]:
        odds = curve[0] * z + curve[1]
        gap = expit(odds) - target
        value = np.mean(np.logaddexp(0.0, odds) - target * odds)
        return float(value), np.array([np.mean(gap * z), np.mean(gap)])

    begin = np.array([1.0, np.log((n_pos + 1) / (n_neg + 1))])
    bounds = [(_LEAST_SLOPE, None), (None, None)]
    slope, intercept = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds).x
    return Calibration(float(slope / spread), float(intercept - slope * centre / spread))


def blended(
    calibrations: Sequence[Calibration], weights: Sequence[float], scores: Sequence[Floats]
) -> Floats:
    """Return the scores of a single model, or the weighted mean log-odds of several, (n,)."""
    if len(scores) == 1:
        return scores[0]
    odds = [curve.log_odds(s) for curve, s in zip(calibrations, scores, strict=True)]
    return np.asarray(np.average(odds, axis=0, weights=weights), np.float64)

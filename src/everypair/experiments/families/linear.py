"""Linear models: logistic regression, and the pair losses of `everypair.sklearn`.

All minimise a mean loss plus ``penalty / 2 * |w|**2``. A score has no intercept, because an
intercept does not change the order of rows.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.families.family import Family, Fit, Floats

PAIR_LOSSES = {
    "pairs": "logistic",
    "pairs_squared_hinge": "squared_hinge",
    "pairs_huber_hinge": "huber_hinge",
}
"""The surrogates of the pair losses."""

CLIP = 3.0
"""Standardised features are clipped to this many standard deviations."""

_MANY_COLUMNS = 400  # beyond this, Newton's method with a dense Hessian is slow


@dataclass(frozen=True)
class Tails:
    """Adds a second version of each numeric feature, in which large values count less.

    It is ``arcsinh((x - centre) / scale)``, with the median as the centre and the distance between
    the quartiles as the scale, standardised by `mean` and `sd`. All are (k,) arrays for the
    features `columns`, those with more than two values.
    """

    columns: NDArray[np.int64]
    centre: Floats
    scale: Floats
    mean: Floats
    sd: Floats

    @classmethod
    def of(cls, X: NDArray[Any]) -> Tails:
        """Fit to the columns of X, (n, d)."""
        columns = np.flatnonzero([len(np.unique(x[:1000])) > 2 for x in X.T])
        low, centre, high = np.quantile(X[:, columns].astype(np.float64), [0.25, 0.5, 0.75], axis=0)
        scale = np.where(high > low, high - low, 1.0)
        bent = np.arcsinh((X[:, columns] - centre) / scale)
        sd = bent.std(axis=0)
        return cls(columns, centre, scale, bent.mean(axis=0), np.where(sd > 0, sd, 1.0))

    def __call__(self, X: NDArray[Any]) -> Floats:
        """Return the second versions, (n, k)."""
        bent = np.arcsinh((X[:, self.columns] - self.centre) / self.scale)
        return np.asarray((bent - self.mean) / self.sd, np.float64)


def features(X: NDArray[Any], tails: Tails | None) -> Floats:
    """Return the features of a linear model: clipped, with the second versions if there are any."""
    clipped = np.clip(X.astype(np.float64), -CLIP, CLIP)
    return clipped if tails is None else np.hstack([clipped, tails(X)])


@dataclass(frozen=True)
class LinearScorer:
    """Scores ``features(X, tails) @ coef``."""

    coef: Floats
    tails: Tails | None = None

    def __call__(self, X: NDArray[np.float32]) -> Floats:
        """Return one score per row, (n,)."""
        return features(X, self.tails) @ self.coef

    def files(self) -> dict[str, bytes]:
        """Return all arrays as one .npz file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, coef=self.coef, **(vars(self.tails) if self.tails else {}))
        return {"linear.npz": buffer.getvalue()}


def load(files: Mapping[str, bytes]) -> LinearScorer:
    """Make the scorer from its file."""
    with np.load(io.BytesIO(files["linear.npz"]), allow_pickle=False) as arrays:
        coef, *tails = (arrays[name] for name in arrays.files)
    return LinearScorer(coef, Tails(*tails) if tails else None)


def fit(task: Fit) -> list[LinearScorer]:
    """Fit one model for each penalty of the path; each fit starts from the previous solution."""
    tails = Tails.of(task.rows.X) if task.parameters["features"] == "tails" else None
    coefs = _pairs if task.loss in PAIR_LOSSES else _logistic
    return [LinearScorer(coef, tails) for coef in coefs(task, features(task.rows.X, tails))]


def _logistic(task: Fit, X: Floats) -> Iterator[Floats]:
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

    model = LogisticRegression(
        class_weight="balanced" if task.loss == "balanced_logistic" else None,
        solver="newton-cholesky" if X.shape[1] <= _MANY_COLUMNS else "lbfgs",
        max_iter=300,
        warm_start=True,
    )
    for penalty in task.path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(C=1 / (penalty * len(X))).fit(X, task.rows.y)
        yield model.coef_[0].astype(np.float64)


def _pairs(task: Fit, X: Floats) -> Iterator[Floats]:
    from sklearn.exceptions import ConvergenceWarning

    from everypair.sklearn import PairLinearClassifier

    model = PairLinearClassifier(surrogate=PAIR_LOSSES[task.loss], warm_start=True, tol=1e-4)
    for penalty in task.path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(alpha=penalty).fit(X, task.rows.y, groups=task.rows.groups)
        yield model.coef_[0].astype(np.float64)


FAMILY = Family(
    package="sklearn",
    losses=("logistic", "balanced_logistic", "pairs"),
    more_losses=("pairs_squared_hinge", "pairs_huber_hinge"),
    space=((("features", "clipped"),), (("features", "tails"),)),
    path_name="penalty",
    path=(1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5),
    fit=fit,
    load=load,
)

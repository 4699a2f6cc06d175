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

from everypair.experiments.contenders.family import Family, Fit, Floats

PAIR_LOSSES = {
    "pairs": "logistic",
    "pairs_squared_hinge": "squared_hinge",
    "pairs_huber_hinge": "huber_hinge",
}
"""The surrogates of the pair losses."""

_KNOTS = 200  # quantiles that describe a column
_MANY_COLUMNS = 400  # beyond this, Newton's method with a dense Hessian is slow


@dataclass(frozen=True)
class Ranks:
    """Replaces the values of each column by their standardised ranks in the fitted rows.

    Between two knots a rank is interpolated, so outliers have no more weight than the greatest
    value. `values` and `ranks` hold the knots of all columns one after another, column i between
    ``starts[i]`` and ``starts[i + 1]``.
    """

    values: Floats
    ranks: Floats
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, X: NDArray[Any]) -> Ranks:
        """Fit the knots of each column of X, (n, d)."""
        values, ranks, starts = [], [], [0]
        for column in np.sort(X.astype(np.float64), axis=0).T:
            places = np.linspace(0, len(column) - 1, _KNOTS + 1).round().astype(int)
            knots = np.unique(column[places])
            below, upto = (np.searchsorted(column, knots, side) for side in ("left", "right"))
            middle = (below + upto) / 2
            all_ranks = np.interp(column, knots, middle)
            spread = float(all_ranks.std())
            values.append(knots)
            ranks.append((middle - all_ranks.mean()) / (spread or 1.0))
            starts.append(starts[-1] + len(knots))
        return cls(np.concatenate(values), np.concatenate(ranks), np.array(starts))

    def __call__(self, X: NDArray[Any]) -> Floats:
        """Return the ranks of the rows, (n, d)."""
        found = np.empty(X.shape)
        for i, (begin, end) in enumerate(zip(self.starts, self.starts[1:], strict=False)):
            found[:, i] = np.interp(X[:, i], self.values[begin:end], self.ranks[begin:end])
        return found


@dataclass(frozen=True)
class LinearScorer:
    """Scores ``X @ coef``, where X are the features or their ranks."""

    coef: Floats
    ranks: Ranks | None = None

    def __call__(self, X: NDArray[np.float32]) -> Floats:
        """Return one score per row, (n,)."""
        return (X.astype(np.float64) if self.ranks is None else self.ranks(X)) @ self.coef

    def files(self) -> dict[str, bytes]:
        """Return the coefficients, and the knots of the ranks, as one .npz file."""
        knots = {} if self.ranks is None else vars(self.ranks)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, coef=self.coef, **knots)
        return {"linear.npz": buffer.getvalue()}


def load(files: Mapping[str, bytes]) -> LinearScorer:
    """Make the scorer from its file."""
    with np.load(io.BytesIO(files["linear.npz"]), allow_pickle=False) as arrays:
        coef, *knots = (arrays[name] for name in arrays.files)
    return LinearScorer(coef, Ranks(*knots) if knots else None)


def fit(task: Fit) -> list[LinearScorer]:
    """Fit one model for each penalty of the path; each fit starts from the previous solution."""
    ranks = Ranks.of(task.rows.X) if task.parameters["features"] == "ranks" else None
    X = task.rows.X.astype(np.float64) if ranks is None else ranks(task.rows.X)
    coefs = _pairs if task.loss in PAIR_LOSSES else _logistic
    return [LinearScorer(coef, ranks) for coef in coefs(task, X)]


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
    space=((("features", "standardised"),), (("features", "ranks"),)),
    path_name="penalty",
    path=(1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5),
    fit=fit,
    load=load,
)

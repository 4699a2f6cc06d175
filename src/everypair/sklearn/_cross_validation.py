"""The estimator that chooses the strength of the penalty."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.model_selection import (  # type: ignore[import-untyped]
    StratifiedGroupKFold,
    check_cv,
)
from sklearn.utils.parallel import Parallel, delayed  # type: ignore[import-untyped]

from everypair.metrics import auc
from everypair.sklearn._estimator import PairLinearBase, check_alpha
from everypair.sklearn._fit import Knobs, Trainer
from everypair.sklearn._thresholds import check_threshold

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from everypair.sklearn._objective import Rows
    from everypair.surrogates import Surrogate

__all__ = ["PairLinearClassifierCV"]

# Weakest and strongest of the penalties tried where only their number is given.
_WEAKEST, _STRONGEST = 1e-6, 1e1


class PairLinearClassifierCV(PairLinearBase):
    """`PairLinearClassifier` that chooses alpha by validation AUC along a path of warm starts.

    Parameters
    ----------
    alphas : int or array of float, default=10
        The penalties to try, or how many on a logarithmic grid from 1e-6 to 10.
    cv : int, splitter or iterable of (train, validation), default=5
        An integer means stratified folds; with groups, folds of whole groups.
    n_jobs : int, optional
        Folds fitted side by side.
    surrogate, margin, threshold, solver, tol, max_iter, verbose
        Those of `PairLinearClassifier`.

    Attributes
    ----------
    alpha_ : float
        The penalty with the best mean AUC; the strongest of equals.
    alphas_ : (k,) ndarray
        The penalties tried, falling.
    scores_ : (n_folds, k) ndarray
        Validation AUC of each fold and penalty; NaN where a fold has no pair to judge by.
    classes_, coef_, intercept_, threshold_, n_iter_, objective_, n_features_in_, feature_names_in_
        Those of `PairLinearClassifier`, from a last fit to all rows with `alpha_`.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from everypair.sklearn import PairLinearClassifierCV
    >>> X, y = make_classification(500, weights=[0.9], random_state=0)
    >>> model = PairLinearClassifierCV(alphas=[1e-3, 1e-1, 10.0]).fit(X, y)
    >>> model.alpha_ in model.alphas_, model.scores_.shape
    (True, (5, 3))
    """

    def __init__(
        self,
        *,
        alphas: int | ArrayLike = 10,
        cv: Any = 5,
        n_jobs: int | None = None,
        surrogate: str | Surrogate = "squared_hinge",
        margin: float = 1.0,
        threshold: str | float = "balanced",
        solver: str = "auto",
        tol: float = 1e-6,
        max_iter: int = 200,
        verbose: int = 0,
    ) -> None:
        self.alphas = alphas
        self.cv = cv
        self.n_jobs = n_jobs
        self.surrogate = surrogate
        self.margin = margin
        self.threshold = threshold
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> PairLinearClassifierCV:
        """Choose alpha by cross-validation and fit all rows with it.

        Parameters are those of `PairLinearClassifier.fit`. Weights and groups count in the
        validation AUC as well.

        Returns
        -------
        self
        """
        knobs, alphas = self._knobs(), _alphas_from(self.alphas)
        check_threshold(self.threshold)
        rows = self._rows(X, y, sample_weight, groups)
        jobs = Parallel(n_jobs=self.n_jobs)
        paths = jobs(
            delayed(_path)(rows.take(train), rows.take(validation), knobs, alphas)
            for train, validation in self._folds(rows)
        )
        scores = np.array(paths)
        judged = ~np.isnan(scores).any(axis=1)
        if not judged.any():
            raise ValueError(
                "cv must leave both classes in the training and validation rows of some fold; "
                "it does in none. Use fewer folds, or gather more rows of the rarer class."
            )
        self.alphas_, self.scores_ = alphas, scores
        self.alpha_ = float(alphas[int(np.argmax(scores[judged].mean(axis=0)))])
        solution = Trainer(rows, knobs).fit(self.alpha_)
        self._keep(rows, solution)
        self.objective_ = solution.value
        return self

    def _folds(self, rows: Rows) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        if rows.groups is not None and isinstance(self.cv, int):
            splitter = StratifiedGroupKFold(self.cv)
        else:
            splitter = check_cv(self.cv, rows.positive, classifier=True)
        with warnings.catch_warnings():
            # A splitter that does not need the groups need not say so: the loss does.
            warnings.filterwarnings("ignore", message="The groups parameter is ignored")
            return list(splitter.split(rows.X, rows.positive, rows.groups))


def _alphas_from(alphas: Any) -> NDArray[np.float64]:
    if isinstance(alphas, int | np.integer) and not isinstance(alphas, bool):
        if alphas < 1:
            raise ValueError(f"alphas must be at least 1, or an array of penalties; got {alphas}.")
        return np.geomspace(_STRONGEST, _WEAKEST, int(alphas))
    checked = [check_alpha(alpha) for alpha in alphas]
    if not checked:
        raise ValueError("alphas must hold at least one penalty; got none. For example: 10.")
    return np.array(sorted(checked, reverse=True))


def _path(train: Rows, validation: Rows, knobs: Knobs, alphas: NDArray[np.float64]) -> list[float]:
    """Return the validation AUC of each alpha, from the strongest penalty to the weakest."""
    if not (_has_pairs(train) and _has_pairs(validation)):
        return [np.nan] * len(alphas)
    trainer = Trainer(train, knobs)
    coef, areas = None, []
    for alpha in alphas:
        coef = trainer.fit(float(alpha), coef).coef
        areas.append(
            auc(
                validation.X @ coef,
                validation.positive,
                weights=validation.weights,
                groups=validation.groups,
            )
        )
    return areas


def _has_pairs(rows: Rows) -> bool:
    weights = np.ones(len(rows.positive)) if rows.weights is None else rows.weights
    codes = np.zeros(len(weights), dtype=np.int64) if rows.groups is None else rows.groups
    sides = (np.bincount(codes, weights * side) for side in (rows.positive, ~rows.positive))
    return bool((next(sides) * next(sides)).any())

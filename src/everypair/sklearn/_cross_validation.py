"""The linear classifier that chooses the strength of the penalty by cross-validation."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import model_selection  # type: ignore[import-untyped]
from sklearn.utils.parallel import Parallel, delayed  # type: ignore[import-untyped]

from everypair.metrics import auc
from everypair.sklearn._classifier import BinaryLinearClassifier
from everypair.sklearn._estimator import check_alpha
from everypair.sklearn._objective import TrainingData, Vector
from everypair.sklearn._solvers import FitOptions
from everypair.sklearn._trainer import Trainer


@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearClassifierCV(BinaryLinearClassifier):
    r"""`PairLinearClassifier` that chooses alpha by cross-validated AUC.

    For each alpha it minimises

    .. math::

        \frac{1}{n_+ n_-} \sum_{i \in P} \sum_{j \in N} \phi(m - (x_i - x_j)^\top w)
        + \frac{\alpha}{2} \|w\|^2

    on the training rows of each fold, from the largest alpha to the smallest, where each fit starts
    at the previous solution. The alpha with the largest mean validation AUC is used on all rows.

    Parameters
    ----------
    alphas : int or array of float, default=10
        The penalties to try, or their number on a logarithmic grid from 1e-6 to 10.
    cv : int, splitter or iterable of (train, validation), default=5
        An integer is the number of stratified folds; with groups, each group is in one fold.
    n_jobs : int, optional
        Number of folds fitted in parallel.
    surrogate, margin, threshold, solver, tol, max_iter, verbose
        Those of `PairLinearClassifier`.

    Attributes
    ----------
    alpha_ : float
        The penalty with the largest mean AUC; the largest penalty in case of ties.
    alphas_ : (k,) ndarray
        The penalties that were tried, in decreasing order.
    scores_ : (n_folds, k) ndarray
        Validation AUC of each fold and penalty; NaN for a fold without training or validation
        pairs.
    classes_, coef_, intercept_, threshold_, n_iter_, objective_, n_features_in_, feature_names_in_
        Those of `PairLinearClassifier`, fitted to all rows with `alpha_`.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from everypair.sklearn import PairLinearClassifierCV
    >>> X, y = make_classification(500, weights=[0.9], random_state=0)
    >>> model = PairLinearClassifierCV(alphas=[1e-3, 1e-1, 10.0]).fit(X, y)
    >>> model.alpha_ in model.alphas_, model.scores_.shape
    (True, (5, 3))
    """

    alphas: int | ArrayLike = 10
    cv: Any = 5
    n_jobs: int | None = None

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> PairLinearClassifierCV:
        """Choose alpha by cross-validation and fit all rows with it.

        The parameters are those of `PairLinearClassifier.fit`. Weights and groups also apply to the
        validation AUC.

        Returns
        -------
        self
        """
        options, alphas = self._check_options(), _check_alphas(self.alphas)
        data = self._check_data(X, y, sample_weight, groups)
        aucs = Parallel(n_jobs=self.n_jobs)(
            delayed(_validation_aucs)(data.subset(train), data.subset(validation), options, alphas)
            for train, validation in self._folds(data)
        )
        scores = np.array(aucs)
        valid = ~np.isnan(scores).any(axis=1)
        if not valid.any():
            raise ValueError(
                "cv must leave both classes in the training and validation rows of some fold; "
                "no fold has them. Use fewer folds, or gather more rows of the rarer class."
            )
        self.alphas_, self.scores_ = alphas, scores
        self.alpha_ = float(alphas[int(np.argmax(scores[valid].mean(axis=0)))])
        self._fit_alpha(data, options, self.alpha_)
        return self

    def _folds(self, data: TrainingData) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Return the training and validation indices of each fold."""
        if data.groups is not None and isinstance(self.cv, int):
            splitter = model_selection.StratifiedGroupKFold(self.cv)
        else:
            splitter = model_selection.check_cv(self.cv, data.target, classifier=True)
        with warnings.catch_warnings():
            # Some splitters warn that they ignore the groups. The loss still uses them.
            warnings.filterwarnings("ignore", message="The groups parameter is ignored")
            return list(splitter.split(data.X, data.target, data.groups))


def _check_alphas(alphas: Any) -> Vector:
    if isinstance(alphas, int | np.integer) and not isinstance(alphas, bool):
        if alphas < 1:
            raise ValueError(f"alphas must be at least 1, or an array of penalties; got {alphas}.")
        return np.geomspace(10.0, 1e-6, int(alphas))
    checked = [check_alpha(alpha) for alpha in alphas]
    if not checked:
        raise ValueError("alphas must hold at least one penalty; got none. For example: 10.")
    return np.array(sorted(checked, reverse=True))


def _validation_aucs(
    train: TrainingData, validation: TrainingData, options: FitOptions, alphas: Vector
) -> list[float]:
    """Return the validation AUC of each alpha; each fit starts from the previous solution."""
    if not (train.has_pairs() and validation.has_pairs()):
        return [np.nan] * len(alphas)
    trainer = Trainer(train, options)
    coef, aucs = None, []
    for alpha in alphas:
        coef = trainer.fit(float(alpha), coef).coef
        aucs.append(auc(validation.X @ coef, validation.target, **validation.pair_options()))
    return aucs

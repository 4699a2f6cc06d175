"""The base class of both estimators: checks of parameters and data, scores and predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils import multiclass, validation  # type: ignore[import-untyped]

from everypair import surrogates
from everypair.sklearn._fit import FitOptions, Trainer
from everypair.sklearn._objective import TrainingData, Vector
from everypair.sklearn._solvers import SOLVERS
from everypair.sklearn._thresholds import check_threshold, threshold_from
from everypair.surrogates import Surrogate

# The square of this number, and of its inverse, is a normal float64.
_SMALLEST = 1e-150


# The dataclasses write the __init__ that scikit-learn reads the parameters from.
@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearBase(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear scorer of two classes with a threshold; subclasses define `fit`."""

    surrogate: str | Surrogate = "squared_hinge"
    margin: float | None = None
    threshold: str | float = "balanced"
    solver: str = "auto"
    tol: float = 1e-6
    max_iter: int = 200
    verbose: int = 0

    def decision_function(self, X: ArrayLike) -> Vector:
        """Compute the (n,) scores ``X @ coef_[0] - threshold_`` of the rows of X, of shape (n, d).

        X is dense or sparse. A score is above 0 where `predict` returns the second class.
        """
        validation.check_is_fitted(self)
        rows = validation.validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)
        return np.asarray(rows @ self.coef_[0] + self.intercept_[0])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the (n,) classes of the rows of X, of shape (n, d), dense or sparse.

        The class is ``classes_[1]`` where `decision_function` is above 0, else ``classes_[0]``.
        """
        above = self.decision_function(X) > 0.0
        return np.asarray(self.classes_[above.astype(np.intp)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        return tags

    def _check_options(self) -> FitOptions:
        """Check the parameters that both estimators have."""
        check_threshold(self.threshold)
        surrogate = surrogates.get(self.surrogate)
        lead = "by how much a positive should score above a negative"
        given = surrogate.default_margin if self.margin is None else self.margin
        margin = _check_number(given, "margin", lead)
        tol = _check_number(self.tol, "tol", "the relative norm of the gradient at which to stop")
        if self.solver != "auto" and self.solver not in SOLVERS:
            names = ", ".join(map(repr, ("auto", *SOLVERS)))
            raise ValueError(f"solver must be one of {names}; got {self.solver!r}.")
        max_iter: Any = self.max_iter
        if not isinstance(max_iter, Integral) or int(max_iter) < 1:
            raise ValueError(f"max_iter must be an integer of at least 1; got {max_iter!r}.")
        return FitOptions(surrogate, margin, self.solver, tol, int(max_iter), int(self.verbose))

    def _check_data(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, groups: ArrayLike | None
    ) -> TrainingData:
        """Check the data of `fit`, and set the attributes about classes and columns."""
        X, y = validation.validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        labels = validation.column_or_1d(y)
        multiclass.check_classification_targets(labels)
        classes = np.unique(labels)
        if len(classes) > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"{multiclass.type_of_target(labels)}: y holds {len(classes)} classes. Wrap the "
                "estimator in sklearn.multiclass.OneVsRestClassifier."
            )
        if len(classes) < 2:
            raise ValueError(
                "y must hold two classes, because a pair has one row of each; got only one class, "
                f"{classes.tolist()[0]!r}. Check how the rows were filtered or split."
            )
        positive = labels == classes[1]
        weights = None
        if sample_weight is not None:
            weights = validation._check_sample_weight(sample_weight, X, dtype=np.float64)
            validation.check_non_negative(weights, "`sample_weight`")
            for side, name in zip((~positive, positive), classes.tolist(), strict=True):
                if not weights[side].any():
                    raise ValueError(
                        "sample_weight must leave both classes with some weight; all rows of "
                        f"class {name!r} have weight zero, so that no pair is left."
                    )
            # The mean depends only on the ratios of weights; products of large ones could overflow.
            weights = weights / weights.max()
        largest = max(float(X.max()), -float(X.min()))
        if largest and not _SMALLEST <= largest <= 1.0 / _SMALLEST:
            raise ValueError(
                f"X must have entries whose squares float64 can hold; the largest is {largest:g}. "
                "Scale the columns, for example with sklearn.preprocessing.MaxAbsScaler."
            )
        data = TrainingData(X, positive, weights, _group_codes(groups, len(positive)))
        if not data.has_pairs():
            raise ValueError(
                "groups must leave some pair: no group holds rows of both classes. "
                "Pass coarser groups, or none to compare all rows."
            )
        self.classes_ = classes
        return data

    def _fit_alpha(
        self, data: TrainingData, options: FitOptions, alpha: float, start: Vector | None = None
    ) -> None:
        """Fit all rows with this alpha and set the fitted attributes."""
        solution = Trainer(data, options).fit(alpha, start)
        scores, rule = data.X @ solution.coef, check_threshold(self.threshold)
        self.threshold_ = threshold_from(rule, scores, data.positive, data.weights)
        self.coef_, self.intercept_ = solution.coef.reshape(1, -1), np.array([-self.threshold_])
        self.n_iter_, self.objective_ = solution.n_iter, solution.value


def check_alpha(alpha: object) -> float:
    """Check the strength of the penalty and return it as a float."""
    return _check_number(alpha, "alpha", "the strength of the penalty alpha / 2 * |coef|^2")


def _check_number(given: object, name: str, meaning: str) -> float:
    if isinstance(given, Real) and 0.0 <= float(given) < math.inf:
        return float(given)
    rule = f"{name} must be a finite number of at least 0"
    raise ValueError(f"{rule}; got {given!r}. It is {meaning}.")


def _group_codes(groups: ArrayLike | None, n: int) -> NDArray[np.int64] | None:
    if groups is None:
        return None
    if isinstance(groups, list | tuple) and set(map(type, groups)) in ({int}, {str}):
        # As objects: NumPy strings drop trailing NULs, and integers beyond int64 may be rounded.
        groups = np.array(groups, dtype=object)
    values = validation.column_or_1d(groups)
    if len(values) != n:
        raise ValueError(f"groups must have one value per row; got {len(values)} for {n} rows.")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)

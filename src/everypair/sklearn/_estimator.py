"""What both estimators share: checks at the door, scores and predictions."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils.multiclass import (  # type: ignore[import-untyped]
    check_classification_targets,
    type_of_target,
)
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from everypair import surrogates
from everypair.sklearn._fit import Knobs
from everypair.sklearn._objective import Rows
from everypair.sklearn._solvers import SOLVERS, Solution
from everypair.sklearn._thresholds import check_threshold, threshold_from

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["PairLinearBase", "check_alpha"]


class PairLinearBase(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear scorer of two classes with a threshold; `fit` is left to its children."""

    surrogate: Any
    margin: Any
    threshold: Any
    solver: Any
    tol: Any
    max_iter: Any
    verbose: Any
    classes_: NDArray[Any]
    coef_: NDArray[np.float64]
    intercept_: NDArray[np.float64]
    threshold_: float
    n_iter_: Any

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Score rows: positive where `predict` says the second class.

        Parameters
        ----------
        X : (n, d) dense or sparse

        Returns
        -------
        (n,) float64
            ``X @ coef_ - threshold_``.
        """
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)
        scores: NDArray[np.float64] = rows @ self.coef_[0] + self.intercept_[0]
        return scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each row: the second of `classes_` above the threshold.

        Parameters
        ----------
        X : (n, d) dense or sparse

        Returns
        -------
        (n,) of labels
        """
        above = self.decision_function(X) > 0.0
        return self.classes_[above.astype(np.intp)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        return tags

    def _rows(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, groups: ArrayLike | None
    ) -> Rows:
        """Check the data and keep what they say about classes and columns."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        labels = column_or_1d(y)
        check_classification_targets(labels)
        classes = np.unique(labels)
        if len(classes) > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"{type_of_target(labels)}: y holds {len(classes)} classes. Wrap the estimator in "
                "sklearn.multiclass.OneVsRestClassifier."
            )
        if len(classes) < 2:
            raise ValueError(
                f"y must hold two classes, for pairs have one row of each; got only one class, "
                f"{classes.tolist()[0]!r}. Check the filter or the split before it."
            )
        positive = labels == classes[1]
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
            for side, name in zip((~positive, positive), classes, strict=True):
                if not weights[side].any():
                    raise ValueError(
                        f"sample_weight must leave both classes with some weight; all rows of "
                        f"class {name!r} weigh zero, so that no pair is left."
                    )
            # Only ratios matter; sums of products of huge weights could overflow.
            weights = weights / weights.max()
        self.classes_ = classes
        return Rows(X, positive, weights, _group_codes(groups, positive, weights))

    def _knobs(self) -> Knobs:
        """Check the parameters."""
        if self.solver != "auto" and self.solver not in SOLVERS:
            names = ", ".join(map(repr, ("auto", *SOLVERS)))
            raise ValueError(f"solver must be one of {names}; got {self.solver!r}.")
        if not isinstance(self.max_iter, Integral) or self.max_iter < 1:
            raise ValueError(f"max_iter must be an integer of at least 1; got {self.max_iter!r}.")
        return Knobs(
            surrogates.get(self.surrogate),
            _number(self.margin, "margin", "the lead in score that a positive should have"),
            self.solver,
            _number(self.tol, "tol", "the relative norm of the gradient to stop at"),
            int(self.max_iter),
            int(self.verbose),
        )

    def _keep(self, rows: Rows, solution: Solution) -> None:
        """Set the attributes of a fitted scorer."""
        scores = rows.X @ solution.coef
        rule = check_threshold(self.threshold)
        self.threshold_ = threshold_from(rule, scores, rows.positive, rows.weights)
        self.coef_ = solution.coef.reshape(1, -1)
        self.intercept_ = np.array([-self.threshold_])
        self.n_iter_ = solution.n_iter


def check_alpha(alpha: object) -> float:
    """Return the strength of the penalty as a float, or say what is wrong with it."""
    return _number(alpha, "alpha", "the strength of the penalty alpha / 2 * |coef|^2")


def _number(given: object, name: str, meaning: str) -> float:
    if isinstance(given, Real) and 0.0 <= float(given) < math.inf:
        return float(given)
    raise ValueError(
        f"{name} must be a finite number of at least 0; got {given!r}. It is {meaning}."
    )


def _group_codes(
    groups: ArrayLike | None, positive: NDArray[np.bool_], weights: NDArray[np.float64] | None
) -> NDArray[np.int64] | None:
    if groups is None:
        return None
    values = column_or_1d(groups)
    if len(values) != len(positive):
        raise ValueError(
            f"groups must have one value a row; got {len(values)} values for {len(positive)} rows."
        )
    codes = np.unique(values, return_inverse=True)[1].astype(np.int64)
    heavy = np.ones(len(codes)) if weights is None else weights
    if not (np.bincount(codes, heavy * positive) * np.bincount(codes, heavy * ~positive)).any():
        raise ValueError(
            "groups must leave some pair: no group holds rows of both classes. "
            "Pass coarser groups, or none to compare all rows."
        )
    return codes

"""The base class of both classifiers: checks of the data, scores and predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils import multiclass, validation  # type: ignore[import-untyped]

from everypair.sklearn._fit import FitOptions, Trainer
from everypair.sklearn._objective import TrainingData, Vector
from everypair.sklearn._scorer import PairLinearScorer, check_range, check_weights, group_codes
from everypair.sklearn._thresholds import check_threshold, threshold_from
from everypair.surrogates import Surrogate


# The dataclasses write the __init__ that scikit-learn reads the parameters from.
@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearBase(ClassifierMixin, PairLinearScorer):  # type: ignore[misc]
    """A linear scorer of two classes with a threshold; subclasses define `fit`."""

    # Squares would let a few outliers decide: see benchmarks/linear_default.py.
    surrogate: str | Surrogate = "huber_hinge"
    threshold: str | float = "balanced"

    def decision_function(self, X: ArrayLike) -> Vector:
        """Compute the (n,) scores ``X @ coef_[0] - threshold_`` of the rows of X, of shape (n, d).

        X is dense or sparse. A score is above 0 where `predict` returns the second class.
        """
        validation.check_is_fitted(self)
        return np.asarray(self._scores(X, self.coef_[0]) + self.intercept_[0])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the (n,) classes of the rows of X, of shape (n, d), dense or sparse.

        The class is ``classes_[1]`` where `decision_function` is above 0, else ``classes_[0]``.
        """
        above = self.decision_function(X) > 0.0
        return np.asarray(self.classes_[above.astype(np.intp)])

    @property
    def predict_proba(self) -> NoReturn:
        """Raise AttributeError, so that ``hasattr`` is false: scores are not probabilities."""
        raise AttributeError(
            f"{type(self).__name__} has no predict_proba, because its scores are not probabilities."
            " Use decision_function, or sklearn.calibration.CalibratedClassifierCV around it."
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _check_options(self) -> FitOptions:
        check_threshold(self.threshold)
        return super()._check_options()

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
        weights = check_weights(sample_weight, X)
        if weights is not None:
            for side, name in zip((~positive, positive), classes.tolist(), strict=True):
                if not weights[side].any():
                    raise ValueError(
                        "sample_weight must leave both classes with some weight; all rows of "
                        f"class {name!r} have weight zero, so that no pair is left."
                    )
        check_range(X)
        data = TrainingData(X, positive, weights, group_codes(groups, len(positive)))
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
        self.threshold_ = threshold_from(rule, scores, data.target, data.weights)
        self.coef_, self.intercept_ = solution.coef.reshape(1, -1), np.array([-self.threshold_])
        self.n_iter_, self.objective_ = solution.n_iter, solution.value

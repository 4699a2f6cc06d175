"""Linear classifiers: their predictions and thresholds, and the one with a fixed penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils import multiclass, validation  # type: ignore[import-untyped]

from everypair.metrics import roc_curve
from everypair.sklearn._estimator import PairLinearEstimator, check_alpha
from everypair.sklearn._objective import TrainingData, Vector
from everypair.sklearn._solvers import FitOptions
from everypair.surrogates import Surrogate


@dataclass(kw_only=True, eq=False, repr=False)
class BinaryLinearClassifier(ClassifierMixin, PairLinearEstimator):  # type: ignore[misc]
    """A linear scorer of two classes with a threshold; subclasses define `fit`."""

    # Squares would let a few outliers decide: see studies/linear_default.py.
    surrogate: str | Surrogate = "huber_hinge"
    threshold: str | float = "balanced"

    def decision_function(self, X: ArrayLike) -> Vector:
        """Compute the (n,) scores ``X @ coef_[0] - threshold_`` of the rows of X, of shape (n, d).

        X is dense or sparse. A score is above 0 where `predict` returns the second class.
        """
        return np.asarray(self._scores(X) + self.intercept_[0])

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
        rule: object = self.threshold
        is_number = isinstance(rule, Real) and math.isfinite(rule)
        if not is_number and rule not in ("balanced", "prevalence"):
            raise ValueError(
                "threshold must be 'balanced' (best balanced accuracy on the training rows), "
                "'prevalence' (as many predicted positives as there are) or a finite number; got "
                f"{rule!r}."
            )
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
        data = self._training_data(X, labels == classes[1], sample_weight, groups)
        self.classes_ = classes
        return data

    def _fit_alpha(self, data: TrainingData, options: FitOptions, alpha: float) -> None:
        """Fit all rows with this alpha and set the fitted attributes."""
        coef = self._solve(data, options, alpha)
        self.threshold_ = threshold_from(self.threshold, data.X @ coef, data.target, data.weights)
        self.coef_, self.intercept_ = coef.reshape(1, -1), np.array([-self.threshold_])


@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearClassifier(BinaryLinearClassifier):
    r"""Linear classifier that minimises an L2-penalised loss over all (positive, negative) pairs.

    .. math::

        \min_w \; \frac{1}{n_+ n_-} \sum_{i \in P} \sum_{j \in N} \phi(m - (x_i - x_j)^\top w)
        + \frac{\alpha}{2} \|w\|^2

    where :math:`\phi` is the surrogate and m the margin. The mean is weighted by `sample_weight`;
    with groups it is taken over the pairs inside a group.

    Parameters
    ----------
    alpha : float, default=1e-2
        Strength of the penalty; the default suits standardised columns. The loss is a mean, so
        alpha does not depend on the number of rows; ``alpha = 1 / (C n)`` corresponds to
        ``LogisticRegression(C=C)`` on n rows.
    surrogate : str or Surrogate, default="huber_hinge"
        A name from `everypair.surrogates.names`, or one of your own. Losses that grow with the
        square of the shortfall, such as the paper's "squared_hinge", let outliers decide. A jump
        of the slope, as that of the linear hinge, is smoothed over a thousandth of the margin.
    margin : float, default=None
        By how much a positive should score above a negative; at least 0. None stands for the
        default of the surrogate: 1 for the square and the hinges, 0 for the smooth ones.
    threshold : {"balanced", "prevalence"} or float, default="balanced"
        The score ``X @ coef_[0]`` above which `predict` returns the positive class. "balanced"
        maximises the balanced accuracy on the training rows; with rare positives it predicts many
        more positives than there are. "prevalence" predicts as many positives as the training rows
        have. A number is used as it is.
    solver : {"auto", "newton-cg", "lbfgs"}, default="auto"
        "newton-cg" is Newton's method with exact Hessian-vector products, "lbfgs" is scipy's
        L-BFGS; both are preconditioned by the scatter matrix of the pair differences. "auto"
        chooses L-BFGS if X has at least 10 rows per column and at most 500 columns and the slope of
        the surrogate does not jump, and Newton's method otherwise.
    tol : float, default=1e-6
        Stop when the norm of the gradient, relative to that at zero coefficients, is at most tol.
    max_iter : int, default=200
        Maximum number of iterations of the solver.
    warm_start : bool, default=False
        Start from the coefficients of the previous fit.
    verbose : int, default=0
        If not 0, print one line per iteration.

    Attributes
    ----------
    classes_ : (2,) ndarray
        The labels, sorted; the second is the positive class.
    coef_ : (1, d) ndarray
        The coefficients w.
    intercept_ : (1,) ndarray
        Minus `threshold_`. The loss does not depend on an intercept.
    threshold_ : float
        Rows with scores ``X @ coef_[0]`` above it are predicted positive.
    n_iter_ : int
        Number of iterations of the solver.
    objective_ : float
        The value of the minimised function at `coef_`.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : (d,) ndarray
        The names of the columns, if X has them.

    See Also
    --------
    PairLinearClassifierCV : Chooses alpha by validation AUC.

    Notes
    -----
    One evaluation costs ``X @ w``, O(n log n) for the pairs, and ``X.T @ grad``; sparse X stays
    sparse. Scores are not probabilities: `sklearn.calibration.CalibratedClassifierCV` gives those.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from everypair.sklearn import PairLinearClassifier
    >>> X, y = make_classification(1000, weights=[0.95], random_state=0)
    >>> model = PairLinearClassifier().fit(X[:500], y[:500])
    >>> import everypair as ep
    >>> round(ep.auc(model.decision_function(X[500:]), y[500:]), 2)
    0.97
    """

    alpha: float = 1e-2
    warm_start: bool = False

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> PairLinearClassifier:
        """Fit the coefficients and choose the threshold.

        Parameters
        ----------
        X : (n, d) dense or sparse
        y : (n,)
            Any two distinct labels.
        sample_weight : (n,), optional
            The weight of a pair is the product of its two row weights.
        groups : (n,), optional
            Only pairs inside a group count (a query, a patient, a day).

        Returns
        -------
        self
        """
        alpha, options = check_alpha(self.alpha), self._check_options()
        self._fit_alpha(self._check_data(X, y, sample_weight, groups), options, alpha)
        return self


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
        return float(rule)
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

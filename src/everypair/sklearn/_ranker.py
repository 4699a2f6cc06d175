"""Linear models of a real target or of survival times that are trained on all ordered pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin  # type: ignore[import-untyped]
from sklearn.utils import validation  # type: ignore[import-untyped]

from everypair.inputs.survival import survival_from
from everypair.metrics import auc
from everypair.sklearn._estimator import PairLinearEstimator, check_alpha
from everypair.sklearn._objective import Vector

Model = TypeVar("Model", bound="_OrderedScorer")


@dataclass(kw_only=True, eq=False, repr=False)
class _OrderedScorer(PairLinearEstimator):
    """A linear scorer of ordered targets."""

    alpha: float = 1e-4
    warm_start: bool = False

    def predict(self, X: ArrayLike) -> Vector:
        """Compute the (n,) scores ``X @ coef_`` of the rows of X, of shape (n, d)."""
        return self._scores(X)

    def _fit(self: Model, X: Any, target: NDArray[Any], *weights: Any, **pairs: Any) -> Model:
        """Fit checked rows X, with the weights of rows and their groups."""
        alpha, options = check_alpha(self.alpha), self._check_options()
        data = self._training_data(X, target, *weights, **pairs)
        self.coef_, self.intercept_ = self._solve(data, options, alpha), 0.0
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearRanker(RegressorMixin, _OrderedScorer):  # type: ignore[misc]
    r"""Linear scorer that ranks rows by a real target, trained on all pairs with different targets.

    .. math::

        \min_w \; \frac{1}{|D|} \sum_{(i, j) \in D} \phi(m - (x_i - x_j)^\top w)
        + \frac{\alpha}{2} \|w\|^2, \qquad D = \{(i, j) : y_i > y_j\}

    where :math:`\phi` is the surrogate and m the margin (a rank SVM with real-valued utilities for
    the hinges). The mean is weighted by `sample_weight`; with groups, only pairs inside a group
    count.

    Parameters
    ----------
    alpha : float, default=1e-4
        Strength of the penalty.
    surrogate : str or Surrogate, default="squared_hinge"
    margin, solver, tol, max_iter, warm_start, verbose
        Those of `PairLinearClassifier`.

    Attributes
    ----------
    coef_ : (d,) ndarray
        The coefficients w.
    intercept_ : float
        Zero: the loss does not depend on an intercept.
    n_iter_, objective_, n_features_in_, feature_names_in_
        Those of `PairLinearClassifier`.

    See Also
    --------
    PairLinearSurvival : The same for censored times.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from everypair.sklearn import PairLinearRanker
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = PairLinearRanker().fit(X[:300], y[:300])
    >>> round(model.score(X[300:], y[300:]), 2)  # concordance; Kendall's tau is 2 C - 1
    0.76
    """

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> PairLinearRanker:
        """Fit the coefficients.

        Parameters
        ----------
        X : (n, d) dense or sparse
        y : (n,)
            Grades or real targets; larger should score higher.
        sample_weight, groups : (n,), optional
            Those of `PairLinearClassifier.fit`.

        Returns
        -------
        self
        """
        rows, target = validation.validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True
        )
        return self._fit(rows, target, sample_weight, groups, pairs="ordered")

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> float:
        """Return the share of pairs with different targets that are in order; ties half.

        The parameters are those of `fit`.
        """
        return auc(self.predict(X), y, weights=sample_weight, groups=groups, pairs="ordered")


@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearSurvival(_OrderedScorer):
    r"""Linear risk score of censored survival times, trained on all comparable pairs.

    .. math::

        \min_w \; \frac{1}{|D|} \sum_{(i, j) \in D} \phi(m - (x_i - x_j)^\top w)
        + \frac{\alpha}{2} \|w\|^2

    where D holds the pairs in which row i has an event before the time of row j, so that the
    earlier row should have the higher score.

    Parameters
    ----------
    alpha : float, default=1e-4
        Strength of the penalty.
    censoring : {"harrell", "uno"}, default="harrell"
        The weights of pairs, as in `everypair.pair_loss`.
    surrogate : str or Surrogate, default="squared_hinge"
    margin, solver, tol, max_iter, warm_start, verbose
        Those of `PairLinearClassifier`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, objective_, n_features_in_, feature_names_in_
        Those of `PairLinearRanker`.

    Examples
    --------
    >>> import numpy as np
    >>> from everypair.sklearn import PairLinearSurvival
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 3))
    >>> times, limits = rng.exponential(np.exp(-X[:, 0])), rng.exponential(2.0, 300)
    >>> y = np.column_stack([np.minimum(times, limits), times < limits])
    >>> round(PairLinearSurvival().fit(X, y).score(X, y), 2)
    0.76
    """

    censoring: Literal["harrell", "uno"] = "harrell"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> PairLinearSurvival:
        """Fit the coefficients.

        Parameters
        ----------
        X : (n, d) dense or sparse
        y : structured (n,), (n, 2), tuple or (n,)
            scikit-survival's array with a field of bools (the event) and one of times; columns
            (time, event); a tuple (times, events); or times that are negative where they are
            censored.
        sample_weight, groups : (n,), optional
            Those of `PairLinearClassifier.fit`.

        Returns
        -------
        self
        """
        rows = validation.validate_data(
            self, X, None if y is None else "no_validation", accept_sparse="csr", dtype=np.float64
        )
        times, events = survival_from(y)
        validation.check_consistent_length(rows, times)
        # Times that are negative where they are censored; -0.0 is a censored time of 0.
        signed = np.where(events, times, -times)
        pairs = {"pairs": "survival", "censoring": self.censoring}
        return self._fit(rows, signed, sample_weight, groups, **pairs)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return Harrell's concordance index of the scores; `y` is that of `fit`."""
        return auc(self.predict(X), y, pairs="survival")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

"""The linear classifier with a fixed strength of the penalty."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from everypair.sklearn._estimator import PairLinearBase
from everypair.sklearn._scorer import check_alpha


@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearClassifier(PairLinearBase):
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
        "newton-cg" is a trust-region method with exact Hessian-vector products, "lbfgs" is scipy's
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
        data = self._check_data(X, y, sample_weight, groups)
        warm = self.warm_start and hasattr(self, "coef_")
        warm = warm and self.coef_.shape[1] == data.X.shape[1]
        self._fit_alpha(data, options, alpha, self.coef_[0].copy() if warm else None)
        return self

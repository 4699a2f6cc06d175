"""The estimator for one strength of the penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everypair.sklearn._estimator import PairLinearBase, check_alpha
from everypair.sklearn._fit import Trainer
from everypair.sklearn._thresholds import check_threshold

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from everypair.surrogates import Surrogate

__all__ = ["PairLinearClassifier"]


class PairLinearClassifier(PairLinearBase):
    """Linear classifier that ranks: a surrogate over every (positive, negative) pair, L2-penalised.

    It minimises, over coefficients w and with the mean over all pairs (or over those inside a
    group), ``mean surrogate(margin - (x_pos - x_neg) w) + alpha / 2 |w|^2``.

    Parameters
    ----------
    alpha : float, default=1e-4
        Strength of the penalty. It stands beside a mean, so it does not depend on the number of
        rows: ``LogisticRegression(C=C)`` on n rows penalises as much as ``alpha = 1 / (C n)``.
    surrogate : str or Surrogate, default="squared_hinge"
        A name from `everypair.surrogates.names`, or one of your own. Where its slope jumps, as the
        linear hinge's does, the kink is rounded over a thousandth of the margin.
    margin : float, default=1.0
        The lead in score that a positive should have over a negative.
    threshold : {"balanced", "prevalence"} or float, default="balanced"
        Where `predict` cuts the scores ``X @ coef_``: for the best balanced accuracy on the
        training rows, for as many predicted positives as the training rows have, or there.
    solver : {"auto", "newton-cg", "lbfgs"}, default="auto"
        A trust region with exact Hessian-vector products, or scipy's L-BFGS, both in coordinates
        scaled by the scatter of pair differences. "auto" takes L-BFGS for tall X (at least 10 rows
        a column, at most 500 columns) and surrogates without kinks, where it makes fewer passes,
        and Newton's method elsewhere.
    tol : float, default=1e-6
        Stop when the norm of the gradient, relative to that at zero coefficients, is this small.
    max_iter : int, default=200
        Most iterations of the solver.
    warm_start : bool, default=False
        Start from the coefficients of the last fit.
    verbose : int, default=0
        Write a line an iteration.

    Attributes
    ----------
    classes_ : (2,) ndarray
        The labels, sorted; the second is the positive one.
    coef_ : (1, d) ndarray
    intercept_ : (1,) ndarray
        Minus `threshold_`: pairs do not know an intercept.
    threshold_ : float
        Scores ``X @ coef_`` above it are predicted positive.
    n_iter_ : int
    objective_ : float
        What was minimised, at `coef_`.
    n_features_in_ : int
    feature_names_in_ : (d,) ndarray
        Where X has names of columns.

    See Also
    --------
    PairLinearClassifierCV : Chooses alpha by validation AUC.

    Notes
    -----
    One pass costs ``X @ w``, O(n log n) for the pairs, and ``X.T @ g``; sparse X stays sparse.
    `sample_weight` multiplies: a pair weighs the product of its two weights. Scores are no
    probabilities; wrap it in `sklearn.calibration.CalibratedClassifierCV` for those.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from everypair.sklearn import PairLinearClassifier
    >>> X, y = make_classification(1000, weights=[0.95], random_state=0)
    >>> model = PairLinearClassifier().fit(X[:500], y[:500])
    >>> import everypair as ep
    >>> round(ep.auc(model.decision_function(X[500:]), y[500:]), 2)
    0.96
    """

    def __init__(
        self,
        *,
        alpha: float = 1e-4,
        surrogate: str | Surrogate = "squared_hinge",
        margin: float = 1.0,
        threshold: str | float = "balanced",
        solver: str = "auto",
        tol: float = 1e-6,
        max_iter: int = 200,
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.alpha = alpha
        self.surrogate = surrogate
        self.margin = margin
        self.threshold = threshold
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.verbose = verbose

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
        y : (n,) of any two labels
        sample_weight : (n,), optional
            A pair weighs the product of its two weights.
        groups : (n,), optional
            Only pairs inside a group count: queries, patients, days.

        Returns
        -------
        self
        """
        alpha, knobs = check_alpha(self.alpha), self._knobs()
        check_threshold(self.threshold)
        rows = self._rows(X, y, sample_weight, groups)
        solution = Trainer(rows, knobs).fit(alpha, self._start(rows.X.shape[1]))
        self._keep(rows, solution)
        self.objective_ = solution.value
        return self

    def _start(self, n_columns: int) -> NDArray[np.float64] | None:
        known: Any = getattr(self, "coef_", None) if self.warm_start else None
        return known[0].copy() if known is not None and known.shape[1] == n_columns else None

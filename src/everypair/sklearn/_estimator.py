"""The base class of all estimators: parameters, checks of the data, and scores ``X @ coef``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils import validation  # type: ignore[import-untyped]

from everypair import surrogates
from everypair.inputs import pair_options
from everypair.inputs.groups import group_codes, group_values
from everypair.sklearn._objective import TrainingData, Vector
from everypair.sklearn._solvers import FitOptions
from everypair.sklearn._trainer import SOLVERS, Trainer
from everypair.surrogates import Surrogate

# The square of this number, and of its inverse, is a normal float64.
_SMALLEST = 1e-150


# The dataclasses write the __init__ that scikit-learn reads the parameters from.
@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearEstimator(BaseEstimator):  # type: ignore[misc]
    """A linear scorer that is trained on pairs; subclasses define `fit`."""

    surrogate: str | Surrogate = "squared_hinge"
    margin: float | None = None
    solver: str = "auto"
    tol: float = 1e-6
    max_iter: int = 200
    verbose: int = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _scores(self, X: ArrayLike) -> Vector:
        """Check the rows of X, of shape (n, d), and return their scores without an intercept."""
        validation.check_is_fitted(self)
        rows = validation.validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)
        return np.asarray(rows @ self.coef_.ravel())

    def _check_options(self) -> FitOptions:
        """Check the parameters that all estimators have."""
        surrogate = surrogates.get(self.surrogate)
        margin = pair_options.check_margin(self.margin, surrogate.default_margin)
        tol = check_number(self.tol, "tol", "the relative norm of the gradient at which to stop")
        if self.solver != "auto" and self.solver not in SOLVERS:
            names = ", ".join(map(repr, ("auto", *SOLVERS)))
            raise ValueError(f"solver must be one of {names}; got {self.solver!r}.")
        max_iter: Any = self.max_iter
        if not isinstance(max_iter, Integral) or int(max_iter) < 1:
            raise ValueError(f"max_iter must be an integer of at least 1; got {max_iter!r}.")
        return FitOptions(surrogate, margin, self.solver, tol, int(max_iter), int(self.verbose))

    def _training_data(
        self, X: Any, target: NDArray[Any], sample_weight: Any, groups: Any, **pairs: Any
    ) -> TrainingData:
        """Check the values of X, the weights and the groups; X and the target are arrays."""
        largest = max(float(X.max()), -float(X.min()))
        if largest and not _SMALLEST <= largest <= 1.0 / _SMALLEST:
            raise ValueError(
                f"X must have entries whose squares float64 can hold; the largest is {largest:g}. "
                "Scale the columns, for example with sklearn.preprocessing.MaxAbsScaler."
            )
        weights = codes = None
        if sample_weight is not None:
            weights = validation._check_sample_weight(sample_weight, X, dtype=np.float64)
            validation.check_non_negative(weights, "`sample_weight`")
            # The mean depends only on the ratios of weights; products of large ones could overflow.
            weights = weights / (weights.max() or 1.0)
        if groups is not None:
            values = group_values(groups)
            if len(values) != len(target):
                raise ValueError(
                    f"groups must have one value per row; got {len(values)} for {len(target)} "
                    "rows. Check that both come from the same rows."
                )
            (codes,) = group_codes(values)
        data = TrainingData(X, target, weights, codes, **pairs)
        if not data.has_pairs():
            raise ValueError(
                "y, sample_weight and groups must leave a pair to compare: rows of both classes, "
                "of two different targets, or an event before another time, with weights above 0 "
                f"and in one group; got none with n_samples={len(target)}. Check how the rows were "
                "filtered and weighted, and pass coarser groups, or none to compare all rows."
            )
        return data

    def _solve(self, data: TrainingData, options: FitOptions, alpha: float) -> Vector:
        """Return the coefficients of all rows, and set the attributes about the solution."""
        start = None
        if getattr(self, "warm_start", False) and hasattr(self, "coef_"):
            start = self.coef_.flatten() if self.coef_.size == data.X.shape[1] else None
        solution = Trainer(data, options).fit(alpha, start)
        self.n_iter_, self.objective_ = solution.n_iter, solution.value
        return solution.coef


def check_alpha(alpha: object) -> float:
    """Check the strength of the penalty and return it as a float."""
    return check_number(alpha, "alpha", "the strength of the penalty alpha / 2 * |coef|^2")


def check_number(value: object, name: str, meaning: str) -> float:
    """Check a parameter that must be a finite number of at least 0."""
    if isinstance(value, Real) and 0.0 <= float(value) < math.inf:
        return float(value)
    rule = f"{name} must be a finite number of at least 0"
    raise ValueError(f"{rule}; got {value!r}. It is {meaning}.")

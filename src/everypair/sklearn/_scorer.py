"""Base class of all estimators: parameters, checks of the rows, and scores ``X @ coef``."""

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
from everypair.losses import pair_loss
from everypair.sklearn._fit import FitOptions
from everypair.sklearn._objective import Vector
from everypair.sklearn._solvers import SOLVERS
from everypair.surrogates import Surrogate

# The square of this number, and of its inverse, is a normal float64.
_SMALLEST = 1e-150


# The dataclasses write the __init__ that scikit-learn reads the parameters from.
@dataclass(kw_only=True, eq=False, repr=False)
class PairLinearScorer(BaseEstimator):  # type: ignore[misc]
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

    def _scores(self, X: ArrayLike, coef: Vector) -> Vector:
        """Check the rows of X, of shape (n, d), and return ``X @ coef``."""
        validation.check_is_fitted(self)
        rows = validation.validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)
        return np.asarray(rows @ coef)

    def _check_options(self) -> FitOptions:
        """Check the parameters that all estimators have."""
        surrogate = surrogates.get(self.surrogate)
        lead = "by how much the row that should score higher should lead"
        given = surrogate.default_margin if self.margin is None else self.margin
        margin = check_number(given, "margin", lead)
        tol = check_number(self.tol, "tol", "the relative norm of the gradient at which to stop")
        if self.solver != "auto" and self.solver not in SOLVERS:
            names = ", ".join(map(repr, ("auto", *SOLVERS)))
            raise ValueError(f"solver must be one of {names}; got {self.solver!r}.")
        max_iter: Any = self.max_iter
        if not isinstance(max_iter, Integral) or int(max_iter) < 1:
            raise ValueError(f"max_iter must be an integer of at least 1; got {max_iter!r}.")
        return FitOptions(surrogate, margin, self.solver, tol, int(max_iter), int(self.verbose))


def check_weights(sample_weight: ArrayLike | None, X: Any) -> Vector | None:
    """Check the weights and divide them by the largest one.

    The mean depends only on the ratios of weights; products of large ones could overflow.
    """
    if sample_weight is None:
        return None
    weights: Vector = validation._check_sample_weight(sample_weight, X, dtype=np.float64)
    validation.check_non_negative(weights, "`sample_weight`")
    return weights / (weights.max() or 1.0)


def check_range(X: Any) -> None:
    """Raise if the squares of the entries of X overflow or vanish."""
    largest = max(float(X.max()), -float(X.min()))
    if largest and not _SMALLEST <= largest <= 1.0 / _SMALLEST:
        raise ValueError(
            f"X must have entries whose squares float64 can hold; the largest is {largest:g}. "
            "Scale the columns, for example with sklearn.preprocessing.MaxAbsScaler."
        )


def check_alpha(alpha: object) -> float:
    """Check the strength of the penalty and return it as a float."""
    return check_number(alpha, "alpha", "the strength of the penalty alpha / 2 * |coef|^2")


def check_number(given: object, name: str, meaning: str) -> float:
    """Check a parameter that must be a finite number of at least 0."""
    if isinstance(given, Real) and 0.0 <= float(given) < math.inf:
        return float(given)
    rule = f"{name} must be a finite number of at least 0"
    raise ValueError(f"{rule}; got {given!r}. It is {meaning}.")


def group_codes(groups: ArrayLike | None, n: int) -> NDArray[np.int64] | None:
    """Check the groups and number them from 0."""
    if groups is None:
        return None
    if isinstance(groups, list | tuple) and set(map(type, groups)) in ({int}, {str}):
        # As objects: NumPy strings drop trailing NULs, and integers beyond int64 may be rounded.
        groups = np.array(groups, dtype=object)
    values = validation.column_or_1d(groups)
    if len(values) != n:
        raise ValueError(
            f"groups must have one value per row; got {len(values)} for {n} rows. Check that both "
            "come from the same rows."
        )
    pair_loss(np.zeros(n), np.zeros(n), groups=groups)  # raises an error if a group is missing
    return np.unique(values, return_inverse=True)[1].astype(np.int64)

"""Smooth average precision as an objective of the three libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.boosting._catboost import CatboostTables
from everypair.boosting._lightgbm import LightgbmCall
from everypair.boosting._logistic_hess import logistic_hess
from everypair.boosting._makers import catboost_maker, maker
from everypair.boosting._scaled_loss import Data, check_one_column
from everypair.boosting._xgboost import XgboostCall
from everypair.row_sums import smooth_precision_loss
from everypair.surrogates import sigmoid


@maker
def lightgbm_average_precision_objective(
    *, temperature: float = 1.0
) -> LightgbmAveragePrecisionObjective:
    r"""Make an objective for LightGBM from the smooth average precision of all rows.

    .. math::

        L(s) = 2 T \sum_g W_g \left(1 - \frac{1}{W_g^+} \sum_{i \in P_g} w_i
            \frac{w_i + \sum_{k \in P_g, k \ne i} w_k \sigma((s_k - s_i) / T)}
                 {w_i + \sum_{k \in g, k \ne i} w_k \sigma((s_k - s_i) / T)} \right)

    summed over the groups g, with :math:`W_g` the weight of all rows of a group and
    :math:`W_g^+` that of its positives :math:`P_g`; without groups (``group`` of a Dataset) all
    rows are one. The gradient takes O(n log n) in each round.

    Parameters
    ----------
    temperature : float
        T, the difference of scores over which two rows change places; above 0.

    Returns
    -------
    callable
        To be used as that of `lightgbm_objective`.

    Notes
    -----
    The factor 2 T W gives rows of equal scores the gradients of the logistic loss, as for
    `lightgbm_objective`. The loss is not convex, and its own second derivative is negative for many
    rows. The Hessian is therefore that of the logistic loss at the same scores, with the best
    intercept, as with ``lightgbm_objective(hessian="logistic")``.

    Examples
    --------
    >>> import numpy as np
    >>> objective = lightgbm_average_precision_objective()
    >>> grad, hess = objective(np.array([1, 0, 0, 0]), np.zeros(4))
    >>> print(grad.round(2), hess)
    [-0.96  0.32  0.32  0.32] [0.1875 0.1875 0.1875 0.1875]
    """
    return LightgbmAveragePrecisionObjective(temperature)


@maker
def xgboost_average_precision_objective(
    *, temperature: float = 1.0
) -> XgboostAveragePrecisionObjective:
    """Make an objective for XGBoost from the smooth average precision of all rows.

    Loss, parameter and Hessian are those of `lightgbm_average_precision_objective`. Use the result
    as that of `xgboost_objective`, whose notes on ``base_score`` apply.

    Examples
    --------
    >>> import numpy as np
    >>> objective = xgboost_average_precision_objective(temperature=0.5)
    >>> grad, hess = objective(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4))
    >>> print(grad.round(2))
    [-0.96  0.32  0.32  0.32]
    """
    return XgboostAveragePrecisionObjective(temperature)


@catboost_maker
def catboost_average_precision_objective(
    labels: ArrayLike, *, weights: ArrayLike | None = None, temperature: float = 1.0
) -> CatboostAveragePrecisionObjective:
    """Make an objective for CatBoost from the smooth average precision of one training set.

    Loss, temperature and Hessian are those of `lightgbm_average_precision_objective`, without
    groups. `labels`, `weights` and the use of the result are those of `catboost_objective`.

    Examples
    --------
    >>> import numpy as np
    >>> objective = catboost_average_precision_objective([1, 0, 0, 0])
    >>> objective.calc_ders_range(np.zeros(2), np.array([1.0, 0.0]), None).round(4).tolist()
    [[0.96, -0.1875], [-0.32, -0.1875]]
    """
    return CatboostAveragePrecisionObjective(labels, weights, temperature)


class SmoothAveragePrecision:
    """Smooth average precision in the units of the logistic loss; base class of the objectives."""

    function = "SmoothAveragePrecision"  # the call that makes an object, for its repr

    def __init__(self, temperature: float) -> None:
        sigmoid(temperature)  # checks it
        self.temperature = float(temperature)

    def derivatives(self, data: Data) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the (n,) gradient and the (n,) Hessian that the library uses."""
        scores, labels, weights, groups = data
        check_one_column(scores)
        # As in `ScaledLoss`, differences of scores keep their digits in float32.
        centred = (scores - scores[0]).astype(np.float32)
        positive = labels > 0
        kept = np.ones(positive.shape, bool) if weights is None else weights > 0.0
        w = None if weights is None else weights[kept]
        codes = None if groups is None else groups[kept]
        grad = np.zeros_like(centred)
        grad[kept] = smooth_precision_loss(
            centred[kept],
            positive[kept],
            self._shares(positive[kept], w, codes),
            temperature=self.temperature,
            weights=w,
            codes=codes,
        )[1]
        return grad, logistic_hess(centred, positive, weights, groups)

    def _shares(
        self,
        positive: NDArray[np.bool_],
        weights: NDArray[np.float64] | None,
        groups: NDArray[np.int64] | None,
    ) -> NDArray[np.float64]:
        """Return the factor of each positive in the loss."""
        w = np.ones(positive.shape) if weights is None else weights
        codes = np.zeros(positive.shape, np.int64) if groups is None else groups
        totals, of_pos = np.bincount(codes, w), np.bincount(codes, w * positive)
        own = codes[positive]
        shares: NDArray[np.float64] = w[positive] * totals[own] / of_pos[own]
        return 2.0 * self.temperature * shares

    def __repr__(self) -> str:
        return f"{self.function}(temperature={self.temperature:g})"


class LightgbmAveragePrecisionObjective(LightgbmCall, SmoothAveragePrecision):
    """The objective that `lightgbm_average_precision_objective` returns."""

    function = "lightgbm_average_precision_objective"


class XgboostAveragePrecisionObjective(XgboostCall, SmoothAveragePrecision):
    """The objective that `xgboost_average_precision_objective` returns."""

    function = "xgboost_average_precision_objective"


class CatboostAveragePrecisionObjective(CatboostTables, SmoothAveragePrecision):
    """The objective that `catboost_average_precision_objective` returns."""

    function = "catboost_average_precision_objective"

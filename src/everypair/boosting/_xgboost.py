"""XGBoost: an objective and a metric for `train` and for the scikit-learn estimators."""

from __future__ import annotations

from typing import Literal

from everypair.boosting._scaled_loss import (
    SOFT_HINGE,
    Censoring,
    Hessian,
    Metric,
    Pairs,
    ScaledLoss,
)
from everypair.metrics.tie_blocks import Average
from everypair.surrogates import Surrogate


def xgboost_objective(
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float | None = None,
    hessian: Hessian = "pairs",
    pairs: Pairs = "binary",
    censoring: Censoring = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> ScaledLoss:
    r"""Make an objective for XGBoost from the loss over all pairs that should be in order.

    .. math::

        L(s) = \frac{1}{W} \sum_{i \in P} \sum_{j \in N} w_i w_j
               \, \tilde\phi(\tilde m - (s_i - s_j)), \qquad W = \sum_k w_k

    with the scaled surrogate and margin of `lightgbm_objective`. Gradient and diagonal Hessian are
    those of all pairs and take O(n log n) in each round; XGBoost's own ``rank:pairwise`` samples
    pairs. With the ``qid`` or ``group`` of a DMatrix only pairs inside a group count, and the
    weights are those of the groups, as everywhere in XGBoost.

    Parameters
    ----------
    surrogate, margin, hessian
        Those of `lightgbm_objective`, but the default Hessian is the exact one of the pairs, which
        is the better choice with XGBoost's default regularisation. ``min_child_weight``,
        ``reg_lambda`` and ``learning_rate`` act as they do on the logistic loss.
    pairs, censoring, max_fpr, min_tpr
        Those of `lightgbm_objective`. Survival labels are coded as for XGBoost's ``survival:cox``:
        negative times are censored.

    Returns
    -------
    callable
        Pass it as ``obj=`` to ``xgboost.train``, or as ``objective=`` to ``XGBClassifier`` or
        ``XGBRegressor``. It returns the gradient and the Hessian, each of shape (n,). It can be
        pickled, copied and used for any number of models.

    Notes
    -----
    Start from score 0: ``base_score=0`` for ``xgboost.train`` and ``XGBRegressor``, and
    ``base_score=0.5`` for ``XGBClassifier``, which reads it as a probability. The loss does not
    depend on an intercept, so another value would only be added to all scores. Scores rank rows but
    are not log-odds; ``predict(X, output_margin=True)`` returns them. ``XGBRanker`` does not accept
    custom objectives: with groups, use ``xgboost.train``.

    Examples
    --------
    >>> import numpy as np
    >>> grad, hess = xgboost_objective()(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4))
    >>> grad.round(4).tolist()
    [-0.75, 0.25, 0.25, 0.25]
    """
    options = surrogate, margin, hessian, pairs, censoring, max_fpr, min_tpr
    return ScaledLoss("xgboost_objective", *options)


def xgboost_metric(
    metric: Literal["auc", "loss"] = "auc",
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float | None = None,
    pairs: Pairs = "binary",
    censoring: Censoring = "harrell",
    average: Average = "pairs",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> Metric:
    """Make an evaluation metric for XGBoost.

    Parameters
    ----------
    metric, surrogate, margin, pairs, censoring, average, max_fpr, min_tpr
        Those of `lightgbm_metric`.

    Returns
    -------
    callable
        Pass it as ``custom_metric=`` to ``xgboost.train`` or as ``eval_metric=`` to an estimator.
        Early stopping maximises ``auc_pairs``, because the name begins with "auc", and minimises
        ``loss_pairs``.

    Examples
    --------
    >>> import numpy as np
    >>> xgboost_metric()(np.array([1.0, 0.0, 0.0]), np.array([0.3, 0.1, 0.9]))
    0.5
    """
    options = surrogate, margin, pairs, censoring, average, max_fpr, min_tpr
    return Metric("xgboost", metric, *options)

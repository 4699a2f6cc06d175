"""XGBoost: an objective and a metric for `train` and for the scikit-learn estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from everypair.boosting import _scaled_loss
from everypair.boosting._scaled_loss import SOFT_HINGE, Hessian, Pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from everypair.surrogates import Surrogate

__all__ = ["xgboost_metric", "xgboost_objective"]


def xgboost_objective(
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float = 1.0,
    hessian: Hessian = "pairs",
) -> XgboostObjective:
    """Return the pair loss as an objective for XGBoost.

    Exact gradient and diagonal Hessian over every pair, in O(n log n) for each round; XGBoost's own
    ``rank:pairwise`` samples pairs. Sample weights count (a pair weighs the product of its two).
    With the ``qid`` or ``group`` of a DMatrix only pairs inside a group do, and weights are those
    of the groups, as everywhere in XGBoost.

    Parameters
    ----------
    surrogate, margin, hessian
        Those of `lightgbm_objective`, but with the pairs' own Hessian by default: XGBoost
        regularises by default, and then that is the better one. Scaled in the same way:
        ``min_child_weight``, ``reg_lambda``
        and ``learning_rate`` act as they do on the logistic loss.

    Returns
    -------
    callable
        Pass it as ``obj=`` to ``xgboost.train``, or as ``objective=`` to ``XGBClassifier`` or
        ``XGBRegressor``. It can be pickled, copied and used for any number of models.

    Notes
    -----
    Start from score 0: ``base_score=0`` for ``xgboost.train`` and ``XGBRegressor``, and
    ``base_score=0.5`` for ``XGBClassifier``, which reads it as a probability. Pairs know no
    intercept, so that another value would only be added to every score. Scores rank without being
    log-odds; ask for them by ``predict(X, output_margin=True)``. ``XGBRanker`` takes no objective
    of one's own: with groups, use ``xgboost.train``.

    Examples
    --------
    >>> import numpy as np
    >>> grad, hess = xgboost_objective()(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4))
    >>> grad.round(4).tolist()
    [-0.75, 0.25, 0.25, 0.25]
    """
    return XgboostObjective(Pairs(surrogate, margin, hessian))


def xgboost_metric(
    metric: Literal["auc", "loss"] = "auc",
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float = 1.0,
) -> XgboostMetric:
    """Return the matching evaluation metric for XGBoost.

    Parameters
    ----------
    metric, surrogate, margin
        Those of `lightgbm_metric`.

    Returns
    -------
    callable
        Pass it as ``custom_metric=`` to ``xgboost.train`` or as ``eval_metric=`` to an estimator.
        Early stopping maximises what is called ``auc_pairs``, as all names that begin with "auc",
        and minimises ``loss_pairs``.

    Examples
    --------
    >>> import numpy as np
    >>> xgboost_metric()(np.array([1.0, 0.0, 0.0]), np.array([0.3, 0.1, 0.9]))
    0.5
    """
    return XgboostMetric(_scaled_loss.check_metric(metric), Pairs(surrogate, margin))


class XgboostObjective:
    """What `xgboost_objective` returns."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs

    def __repr__(self) -> str:
        return f"xgboost_objective({self.pairs!r})"

    # XGBoost's estimators look for a parameter called sample_weight.
    def __call__(
        self, first: Any, second: Any, sample_weight: Any = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return gradient and Hessian of (scores, matrix) or (labels, scores, weights)."""
        return self.pairs.derivatives(*_read(first, second, sample_weight))


class XgboostMetric:
    """What `xgboost_metric` returns."""

    def __init__(self, metric: Literal["auc", "loss"], pairs: Pairs) -> None:
        self.metric = metric
        self.pairs = pairs
        self.__name__ = f"{metric}_pairs"

    def __call__(
        self, first: Any, second: Any, sample_weight: Any = None
    ) -> tuple[str, float] | float:
        """Return name and value of (scores, matrix), or the value of (labels, scores, weights)."""
        found = _scaled_loss.measure(self.metric, self.pairs, *_read(first, second, sample_weight))
        return (self.__name__, found) if hasattr(second, "get_label") else found


def _read(
    first: Any, second: Any, weight: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
    """Return scores, labels, weights and groups from either interface."""
    if not hasattr(second, "get_label"):
        labels = np.asarray(first)
        return np.asarray(second), labels, _scaled_loss.row_weights(weight), None
    labels = second.get_label()
    # The bounds of the groups, from 0 to n; empty without groups.
    sizes = np.diff(second.get_uint_info("group_ptr").astype(np.int64))
    groups = _scaled_loss.group_ids(sizes, labels.shape[0])
    weights = _scaled_loss.row_weights(second.get_weight())
    if groups is not None and weights is not None and weights.shape[0] == sizes.shape[0]:
        weights = weights[groups]
    return first, labels, weights, groups

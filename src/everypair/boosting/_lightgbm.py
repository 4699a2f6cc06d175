"""LightGBM: an objective and a metric for `train` and for the scikit-learn estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from everypair.boosting import _scaled_loss
from everypair.boosting._scaled_loss import SOFT_HINGE, Hessian, Pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from everypair.surrogates import Surrogate

__all__ = ["lightgbm_metric", "lightgbm_objective"]


def lightgbm_objective(
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float = 1.0,
    hessian: Hessian = "logistic",
) -> LightgbmObjective:
    """Return the pair loss as an objective for LightGBM.

    The exact gradient over every pair, in the time of a few passes over the scores. Sample weights
    count (a pair weighs the product of its two), and with groups (``group`` of a Dataset or of
    ``LGBMRanker.fit``) only pairs inside a group do.

    Parameters
    ----------
    surrogate : str or Surrogate
        By default the soft hinge, a piecewise quadratic neighbour of the logistic loss whose slope
        stays bounded; ``"squared_hinge"`` and ``"huber_hinge"`` are others. It needs curvature,
        so ``"linear_hinge"`` is refused.
    margin : float
        In the unit of the surrogate.
    hessian : {"logistic", "pairs"}
        What stands for the curvature of a row, by which trees weigh it. ``"logistic"``: that of the
        logistic loss at the same scores, with the intercept that makes the probabilities add up to
        the positives. ``"pairs"``: the exact diagonal Hessian of the pair loss. Half of that lies
        on the positives, however few: with LightGBM's defaults trees then overfit, while with
        ``lambda_l2=1`` and ``min_sum_hessian_in_leaf=1`` it is the better one. It takes longer.

    Returns
    -------
    callable
        Pass it as ``params["objective"]`` to ``lightgbm.train``, or as ``objective=`` to an
        estimator. It can be pickled, copied and used for any number of models.

    Notes
    -----
    *Scaling.* The surrogate is stretched along the scores and scaled so that a pair with equal
    scores has slope 1 and curvature 1/2, for any surrogate and margin, and the mean over pairs is
    multiplied by n p (1 - p), where p is the share of positives. So at the start a positive has
    gradient -(1 - p) and a negative p: those of the logistic loss with the best intercept, which
    LightGBM starts from. The Hessians add up to those of the logistic loss as well. So
    ``min_sum_hessian_in_leaf``, ``lambda_l2`` and ``learning_rate`` act as they do there.

    *Scores.* Pairs know no intercept: training starts from 0, and scores rank without being
    log-odds. Ask for them by ``predict(X, raw_score=True)``.

    *Early stopping.* `LGBMClassifier` adds a logloss of its own, which means nothing for such
    scores and stops training early: pass ``metric="None"`` to it, and `lightgbm_metric` to ``fit``.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.array([1, 0, 0, 0])
    >>> grad, hess = lightgbm_objective()(labels, np.zeros(4))
    >>> grad.round(4).tolist(), hess.round(4).tolist()
    ([-0.75, 0.25, 0.25, 0.25], [0.1875, 0.1875, 0.1875, 0.1875])
    >>> lightgbm_objective(hessian="pairs")(labels, np.zeros(4))[1].round(4).tolist()
    [0.375, 0.125, 0.125, 0.125]
    """
    return LightgbmObjective(Pairs(surrogate, margin, hessian))


def lightgbm_metric(
    metric: Literal["auc", "loss"] = "auc",
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float = 1.0,
) -> LightgbmMetric:
    """Return the matching evaluation metric for LightGBM.

    Parameters
    ----------
    metric : {"auc", "loss"}
        The exact AUC, or the mean pair loss in the units of `lightgbm_objective`. Both count
        weights and groups.
    surrogate, margin
        Those of the objective; used by the loss only.

    Returns
    -------
    callable
        Pass it as ``feval=`` to ``lightgbm.train`` or as ``eval_metric=`` to ``fit``, and
        ``metric="None"`` to leave out LightGBM's own.

    Examples
    --------
    >>> import numpy as np
    >>> lightgbm_metric()(np.array([1.0, 0.0, 0.0]), np.array([0.3, 0.1, 0.9]))
    ('auc_pairs', 0.5, True)
    """
    return LightgbmMetric(_scaled_loss.check_metric(metric), Pairs(surrogate, margin))


class LightgbmObjective:
    """What `lightgbm_objective` returns."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs

    def __repr__(self) -> str:
        return f"lightgbm_objective({self.pairs!r})"

    # LightGBM's estimators count the parameters to know whether weights and groups are wanted.
    def __call__(
        self, first: Any, second: Any, weight: Any = None, group: Any = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return gradient and Hessian of (scores, dataset) or (labels, scores, ...)."""
        return self.pairs.derivatives(*_read(first, second, weight, group))


class LightgbmMetric:
    """What `lightgbm_metric` returns."""

    def __init__(self, metric: Literal["auc", "loss"], pairs: Pairs) -> None:
        self.metric = metric
        self.pairs = pairs
        self.__name__ = f"{metric}_pairs"

    def __call__(
        self, first: Any, second: Any, weight: Any = None, group: Any = None
    ) -> tuple[str, float, bool]:
        """Return name, value and whether higher is better."""
        found = _scaled_loss.measure(self.metric, self.pairs, *_read(first, second, weight, group))
        return self.__name__, found, self.metric == "auc"


def _read(
    first: Any, second: Any, weight: Any, group: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
    """Return scores, labels, weights and groups from either interface."""
    if hasattr(second, "get_label"):
        scores, labels = first, second.get_label()
        weight, group = second.get_weight(), second.get_group()
    else:
        labels, scores = first, second
    labels = np.asarray(labels)
    groups = _scaled_loss.group_ids(group, labels.shape[0])
    return scores, labels, _scaled_loss.row_weights(weight), groups

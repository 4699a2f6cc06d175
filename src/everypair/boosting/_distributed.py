"""Evaluation of XGBoost models that several workers train together.

XGBoost evaluates a custom metric on the rows of each worker and averages the values, which for the
AUC and for losses over pairs is not the value of all rows. The metric here sums counts over all
workers first. LightGBM gives custom metrics no access to its network: evaluate the predictions
after training, with `everypair.dask.evaluate`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from everypair.boosting._scaled_loss import SOFT_HINGE
from everypair.streaming import PairAccumulator, evaluate_across
from everypair.surrogates import Surrogate, get


class XgboostDistributedMetric:
    """The metric that `xgboost_distributed_metric` returns."""

    def __init__(
        self,
        metric: Literal["auc", "partial_auc", "loss"],
        surrogate: str | Surrogate,
        margin: float | None,
        max_fpr: float | None,
    ) -> None:
        if metric not in ("auc", "partial_auc", "loss"):
            raise ValueError(f"metric must be 'auc', 'partial_auc' or 'loss'; got {metric!r}.")
        if (metric == "partial_auc") != (max_fpr is not None):
            raise ValueError(
                "max_fpr must be given for metric='partial_auc', and for no other; got "
                f"max_fpr={max_fpr!r} and metric={metric!r}."
            )
        self.metric, self.margin, self.max_fpr = metric, margin, max_fpr
        self.surrogates = (get(surrogate),) if metric == "loss" else ()
        # Early stopping maximises metrics whose names begin with "auc".
        names = {"auc": "auc_pairs", "partial_auc": "auc_partial", "loss": "loss_pairs"}
        self.__name__ = names[metric]

    def __call__(self, scores: NDArray[Any], matrix: Any) -> tuple[str, float]:
        """Return the name and the value over the rows of all workers."""
        from xgboost import collective

        rows = PairAccumulator()
        weights = matrix.get_weight()
        rows.add(scores, matrix.get_label(), weights if len(weights) else None)

        def allreduce(array: NDArray[Any]) -> NDArray[Any]:
            total = collective.allreduce(np.ascontiguousarray(array), collective.Op.SUM)
            return np.asarray(total).reshape(array.shape)

        found = evaluate_across(
            rows, allreduce, rank=collective.get_rank(), world_size=collective.get_world_size(),
            surrogates=self.surrogates, margin=self.margin, max_fpr=self.max_fpr,
        )  # fmt: skip
        values = {"auc": found.auc, "partial_auc": found.partial_auc}
        value = values.get(self.metric, next(iter(found.losses.values()), None))
        assert value is not None
        return self.__name__, value


def xgboost_distributed_metric(
    metric: Literal["auc", "partial_auc", "loss"] = "auc",
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float | None = None,
    max_fpr: float | None = None,
) -> XgboostDistributedMetric:
    """Make a metric for XGBoost that is exact over the rows of all workers.

    XGBoost averages other custom metrics over the workers. Each round sends the scores of the
    rarer class and two counts for each of them, not all scores.

    Parameters
    ----------
    metric : {"auc", "partial_auc", "loss"}
    surrogate, margin
        Those of `pair_loss`, for the mean over all pairs with ``metric="loss"``.
    max_fpr : float, optional
        That of `partial_auc`.

    Returns
    -------
    callable
        Pass it as ``custom_metric=`` to ``xgboost.train`` or ``xgboost.dask.train``. Weights and
        groups are not supported. It works with a single worker as well.

    Examples
    --------
    >>> import numpy as np, xgboost
    >>> matrix = xgboost.DMatrix(np.zeros((4, 1)), label=[1, 1, 0, 0])
    >>> xgboost_distributed_metric()(np.array([0.5, 2.0, 0.0, 1.0]), matrix)
    ('auc_pairs', 0.75)
    """
    return XgboostDistributedMetric(metric, surrogate, margin, max_fpr)

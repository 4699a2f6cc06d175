"""Objective and metric of XGBoost models that several workers train together.

XGBoost calls an objective and a custom metric with the rows of one worker. A loss over the pairs of
each worker leaves out all pairs whose rows are on different workers, and an average of the workers'
AUCs is not the AUC of all rows. The objective and the metric of this module use the pairs of all
rows: the workers exchange the rows of the smaller class through `xgboost.collective`.

LightGBM gives Python functions no access to its network, so it has neither of the two.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from everypair import losses
from everypair.boosting._scaled_loss import SOFT_HINGE, ScaledLoss, check_one_column
from everypair.inputs import batches
from everypair.streaming import PairAccumulator, evaluate_across
from everypair.streaming.exchange import Workers
from everypair.surrogates import Surrogate, get

Metric = Literal["auc", "partial_auc", "loss"]

# Early stopping maximises metrics whose names begin with "auc".
_NAMES = {"auc": "auc_pairs", "partial_auc": "auc_partial", "loss": "loss_pairs"}


class XgboostDistributedObjective:
    """The objective that `xgboost_distributed_objective` returns."""

    def __init__(self, loss: ScaledLoss) -> None:
        self.loss = loss

    def __repr__(self) -> str:
        return repr(self.loss)

    def __call__(self, scores: NDArray[Any], matrix: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the gradient and the Hessian of the rows of this worker, each of shape (n,).

        Each pair is evaluated on the worker that has its row of the larger class. So the
        derivatives of the larger class are complete there, and those of the smaller class are the
        sums of what all workers have computed for it.
        """
        check_one_column(scores)
        workers, positive, weights = _workers(), np.zeros(0, bool), matrix.get_weight()
        if scores.shape[0]:  # a worker without rows takes part in all exchanges
            positive = batches.positives(batches.batch_from(scores, matrix.get_label()))
        n, n_pos = positive.shape[0], int(np.count_nonzero(positive))
        facts = workers.facts(n_pos, n - n_pos, len(weights) > 0, _has_groups(matrix))
        sizes, has_weights, has_groups = facts[:2], facts[2].any(), facts[3]
        if has_groups.any():
            raise ValueError(
                "rows must have no groups (qid) for an objective over all workers; those of worker "
                f"{int(np.argmax(has_groups))} have them. Use xgboost_objective in one process."
            )
        if sizes.sum(axis=1).min() == 0:
            return np.zeros_like(scores), np.zeros_like(scores)
        rows = np.ones((2 if has_weights else 1, n))
        rows[0] = scores
        if len(weights):
            rows[1] = weights
        total_weight = workers.sum(rows[1:].sum(axis=1)).item() if has_weights else sizes.sum()
        is_positive, shared = workers.smaller_class(rows, positive, sizes)
        small, n_shared = positive == is_positive, shared.shape[1]
        known = np.concatenate([shared, rows[:, ~small]], axis=1)
        derivatives = np.zeros((2, known.shape[1]))
        if known.shape[1] > n_shared:
            is_shared = np.arange(known.shape[1]) < n_shared
            # float32 is enough for differences, once a common offset is subtracted in float64.
            derivatives[:] = losses.pair_derivatives(
                (known[0] - known[0, 0]).astype(np.float32), is_shared == is_positive,
                surrogate=self.loss.surrogate, margin=self.loss.scaled_margin,
                weights=known[1] if has_weights else None, reduction="sum",
            )[1:]  # fmt: skip
        of_rows = np.empty((2, n))
        of_shared = workers.sum(derivatives[:, :n_shared])
        of_rows[:, small] = of_shared[:, workers.own(sizes[0 if is_positive else 1])]
        of_rows[:, ~small] = derivatives[:, n_shared:]
        grad, hess = of_rows / (total_weight or 1.0)
        return grad, hess


class XgboostDistributedMetric:
    """The metric that `xgboost_distributed_metric` returns."""

    def __init__(
        self,
        metric: Metric,
        surrogate: str | Surrogate,
        margin: float | None,
        max_fpr: float | None,
    ) -> None:
        if metric not in _NAMES:
            raise ValueError(f"metric must be 'auc', 'partial_auc' or 'loss'; got {metric!r}.")
        if (metric == "partial_auc") != (max_fpr is not None):
            raise ValueError(
                "max_fpr must be given for metric='partial_auc', and for no other; got "
                f"max_fpr={max_fpr!r} and metric={metric!r}."
            )
        self.metric, self.margin, self.max_fpr = metric, margin, max_fpr
        self.surrogates = [get(surrogate)] if metric == "loss" else []
        self.__name__ = _NAMES[metric]

    def __call__(self, scores: NDArray[Any], matrix: Any) -> tuple[str, float]:
        """Return the name and the value over the rows of all workers."""
        workers, rows, weights = _workers(), PairAccumulator(), matrix.get_weight()
        # With weights or groups, `evaluate_across` raises an error, and does so on all workers.
        groups = np.zeros(scores.shape[0], np.int64) if _has_groups(matrix) else None
        rows.add(scores, matrix.get_label(), weights if len(weights) else None, groups)
        result = evaluate_across(
            rows, workers.sum, rank=workers.rank, world_size=workers.size,
            surrogates=self.surrogates, margin=self.margin, max_fpr=self.max_fpr,
        )  # fmt: skip
        if self.metric == "loss":
            (value,) = result.losses.values()
        else:
            value = result.auc if result.partial_auc is None else result.partial_auc
        return self.__name__, value


def xgboost_distributed_objective(
    *, surrogate: str | Surrogate = SOFT_HINGE, margin: float | None = None
) -> XgboostDistributedObjective:
    """Make an objective for XGBoost over the pairs of the rows of all workers.

    Gradient and Hessian are those that `xgboost_objective` computes in a single process that has
    all rows; see there for the formula. Each round sends, of the class with fewer rows, the scores
    and the derivatives: 24 bytes a row, or 32 with weights.

    Parameters
    ----------
    surrogate, margin
        Those of `xgboost_objective`. The Hessian is the exact one of the pairs.

    Returns
    -------
    callable
        Pass it as ``obj=`` to ``xgboost.dask.train`` with ``base_score=0``, or to ``xgboost.train``
        inside an ``xgboost.collective.CommunicatorContext``. Weights are supported, groups are not.
        Workers may have one class only, or no rows. It works in a single process as well.

    Examples
    --------
    >>> import numpy as np, xgboost
    >>> matrix = xgboost.DMatrix(np.zeros((4, 1)), label=[1, 0, 0, 0])
    >>> grad, hess = xgboost_distributed_objective()(np.zeros(4), matrix)
    >>> grad.round(4).tolist()
    [-0.75, 0.25, 0.25, 0.25]
    """
    loss = ScaledLoss("xgboost_distributed_objective", surrogate, margin, "pairs")
    return XgboostDistributedObjective(loss)


def xgboost_distributed_metric(
    metric: Metric = "auc",
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
        Pass it as ``custom_metric=`` to ``xgboost.train`` or ``xgboost.dask.train``. Rows with
        weights or groups raise a ValueError, on all workers. It works with a single worker as well.

    Examples
    --------
    >>> import numpy as np, xgboost
    >>> matrix = xgboost.DMatrix(np.zeros((4, 1)), label=[1, 1, 0, 0])
    >>> xgboost_distributed_metric()(np.array([0.5, 2.0, 0.0, 1.0]), matrix)
    ('auc_pairs', 0.75)
    """
    return XgboostDistributedMetric(metric, surrogate, margin, max_fpr)


def _workers() -> Workers:
    """Return the workers of this training, which exchange arrays through `xgboost.collective`."""
    from xgboost import collective

    def allreduce(array: NDArray[Any]) -> NDArray[Any]:
        total = collective.allreduce(np.ascontiguousarray(array), collective.Op.SUM)
        return np.asarray(total).reshape(array.shape)

    return Workers(collective.get_rank(), collective.get_world_size(), allreduce)


def _has_groups(matrix: Any) -> bool:
    return len(matrix.get_uint_info("group_ptr")) > 0

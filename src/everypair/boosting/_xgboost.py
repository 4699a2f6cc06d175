"""XGBoost: an objective and a metric for one process, and those for several workers.

XGBoost calls an objective and a custom metric with the rows of one worker. A loss over the pairs of
each worker leaves out all pairs whose rows are on different workers, and an average of the workers'
AUCs is not the AUC of all rows. The distributed objective and metric use the pairs of all rows: the
workers exchange the rows of the smaller class through `xgboost.collective`. LightGBM gives Python
functions no access to its network, so it has neither of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from everypair import losses
from everypair.boosting._scaled_loss import (
    SOFT_HINGE,
    Censoring,
    Hessian,
    Metric,
    Pairs,
    ScaledLoss,
    Which,
    check_one_column,
)
from everypair.inputs import batches
from everypair.metrics.tie_blocks import Average
from everypair.streaming import PairAccumulator, evaluate_across
from everypair.streaming.exchange import Workers
from everypair.surrogates import Surrogate, get

# Early stopping maximises metrics whose names begin with "auc".
_NAMES = {"auc": "auc_pairs", "partial_auc": "auc_partial", "loss": "loss_pairs"}


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
    which = Which(pairs, censoring, max_fpr, min_tpr)
    return ScaledLoss("xgboost_objective", surrogate, margin, hessian, which)


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
    which = Which(pairs, censoring, max_fpr, min_tpr)
    return Metric("xgboost", metric, average, surrogate, margin, which)


def xgboost_distributed_objective(
    *, surrogate: str | Surrogate = SOFT_HINGE, margin: float | None = None
) -> Callable[..., tuple[NDArray[Any], NDArray[Any]]]:
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
    loss = ScaledLoss("xgboost_distributed_objective", surrogate, margin, "pairs", Which())
    return partial(_derivatives_across, loss)


def xgboost_distributed_metric(
    metric: Literal["auc", "partial_auc", "loss"] = "auc",
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float | None = None,
    max_fpr: float | None = None,
) -> Callable[..., tuple[str, float]]:
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
    if metric not in _NAMES:
        raise ValueError(f"metric must be 'auc', 'partial_auc' or 'loss'; got {metric!r}.")
    if (metric == "partial_auc") != (max_fpr is not None):
        raise ValueError(
            "max_fpr must be given for metric='partial_auc', and for no other; got "
            f"max_fpr={max_fpr!r} and metric={metric!r}."
        )
    surrogates = [get(surrogate)] if metric == "loss" else []
    options = {"surrogates": surrogates, "margin": margin, "max_fpr": max_fpr}
    return partial(_metric_across, metric, options)


def _derivatives_across(
    loss: ScaledLoss, scores: NDArray[Any], matrix: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the gradient and the Hessian of the rows of this worker, each of shape (n,).

    Each pair is evaluated on the worker that has its row of the larger class. So the derivatives of
    the larger class are complete there, and those of the smaller class are the sums of what all
    workers have computed for it.
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
    is_positive, shared_rows = workers.smaller_class(rows, positive, sizes)
    is_small, n_shared = positive == is_positive, shared_rows.shape[1]
    columns = np.concatenate([shared_rows, rows[:, ~is_small]], axis=1)
    derivatives = np.zeros((2, columns.shape[1]))
    if columns.shape[1] > n_shared:
        # float32 is enough for differences, once a common offset is subtracted in float64.
        derivatives[:] = losses.pair_derivatives(
            (columns[0] - columns[0, 0]).astype(np.float32),
            (np.arange(columns.shape[1]) < n_shared) == is_positive,
            surrogate=loss.surrogate, margin=loss.scaled_margin,
            weights=columns[1] if has_weights else None, reduction="sum",
        )[1:]  # fmt: skip
    of_rows = np.empty((2, n))
    of_shared = workers.sum(derivatives[:, :n_shared])
    of_rows[:, is_small] = of_shared[:, workers.own(sizes[0 if is_positive else 1])]
    of_rows[:, ~is_small] = derivatives[:, n_shared:]
    grad, hess = of_rows / (total_weight or 1.0)
    return grad, hess


def _metric_across(
    metric: str, options: dict[str, Any], scores: NDArray[Any], matrix: Any
) -> tuple[str, float]:
    """Return the name and the value over the rows of all workers."""
    workers, rows, weights = _workers(), PairAccumulator(), matrix.get_weight()
    # With weights or groups, `evaluate_across` raises an error, and does so on all workers.
    groups = np.zeros(scores.shape[0], np.int64) if _has_groups(matrix) else None
    rows.add(scores, matrix.get_label(), weights if len(weights) else None, groups)
    result = evaluate_across(
        rows, workers.sum, rank=workers.rank, world_size=workers.size, **options
    )
    if metric == "loss":
        (value,) = result.losses.values()
    else:
        value = result.auc if result.partial_auc is None else result.partial_auc
    return _NAMES[metric], value


def _workers() -> Workers:
    """Return the workers of this training, which exchange arrays through `xgboost.collective`."""
    from xgboost import collective

    def allreduce(array: NDArray[Any]) -> NDArray[Any]:
        total = collective.allreduce(np.ascontiguousarray(array), collective.Op.SUM)
        return np.asarray(total).reshape(array.shape)

    return Workers(collective.get_rank(), collective.get_world_size(), allreduce)


def _has_groups(matrix: Any) -> bool:
    return len(matrix.get_uint_info("group_ptr")) > 0

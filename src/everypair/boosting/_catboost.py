"""CatBoost: an objective over all pairs, although CatBoost passes about 1000 rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import metrics
from everypair.boosting._scaled_loss import SOFT_HINGE, Data, Hessian, ScaledLoss, data_from
from everypair.surrogates import Surrogate


def catboost_objective(
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float | None = None,
    hessian: Hessian = "pairs",
) -> CatboostObjective:
    r"""Make an objective for CatBoost from the loss over all pairs of one training set.

    .. math::

        L(s) = \frac{1}{W} \sum_{i \in P} \sum_{j \in N} w_i w_j
               \, \tilde\phi(\tilde m - (s_i - s_j)), \qquad W = \sum_k w_k

    with the scaled surrogate and margin of `lightgbm_objective`. CatBoost asks an objective for the
    derivatives of about a thousand rows at a time, but the two rows of a pair may be in different
    blocks; only a metric receives all scores. So the two work together: after each round the metric
    passes the scores to the objective, which computes the derivatives of all rows and stores them
    by score and class. For each block the objective looks them up.

    Parameters
    ----------
    labels : (n,)
        The labels of the training set, coded {0, 1}, in its order.
    weights : (n,) real, optional
        Its sample weights, if it has any.
    surrogate, margin, hessian
        Those of `xgboost_objective`.

    Returns
    -------
    object
        Pass it as ``loss_function=`` and its attribute `metric`, the exact AUC, as
        ``eval_metric=``. It can be used for one training at a time, on exactly these rows; so not
        with ``catboost.cv``, which trains on subsets.

    Raises
    ------
    RuntimeError
        During training, if CatBoost passes scores that the metric has not seen.

    Notes
    -----
    Needs ``boosting_type="Plain"``, ``leaf_estimation_iterations=1``,
    ``leaf_estimation_method="Newton"`` and ``metric_period=1`` (`params` holds all six), and no
    categorical columns. Groups are not supported, because CatBoost does not pass them to an
    objective.

    Examples
    --------
    >>> import numpy as np
    >>> objective = catboost_objective([1, 0, 0, 0])
    >>> objective.calc_ders_range(np.zeros(2), np.array([1.0, 0.0]), None).round(4).tolist()
    [[0.75, -0.375], [-0.25, -0.125]]
    """
    return CatboostObjective(labels, weights, surrogate, margin, hessian)


class CatboostTables:
    """What makes a loss with `derivatives` an objective of CatBoost: they are looked up by score.

    The parameters after the first two are those of the loss.
    """

    derivatives: Any

    def __init__(self, labels: ArrayLike, weights: ArrayLike | None, *options: Any) -> None:
        super().__init__(*options)
        _, self.labels, self.weights, _ = data_from([], np.array(labels), weights, None)
        self._row_weights = np.ones(len(self.labels)) if self.weights is None else self.weights
        self.metric = CatboostMetric(self)
        self.update(np.zeros(self.labels.shape[0]))
        self._initial_tables = self._tables

    # CatBoost copies its parameters, but the objective and its metric must stay the same objects.
    def __deepcopy__(self, memo: dict[int, Any]) -> CatboostTables:
        return self

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that CatBoost needs to train with this objective."""
        return {
            "loss_function": self,
            "eval_metric": self.metric,
            "boosting_type": "Plain",
            "leaf_estimation_method": "Newton",
            "leaf_estimation_iterations": 1,
            "metric_period": 1,
        }

    def update(self, scores: NDArray[np.float64]) -> None:
        """Compute the derivatives at these (n,) scores of the training set and store them."""
        derivatives = self.derivatives(Data(scores, self.labels, self.weights, None))
        w, weighted = self._row_weights, self._row_weights > 0.0
        grad, hess = (np.divide(d, w, out=np.zeros_like(d), where=weighted) for d in derivatives)
        self._tables = []
        for side in (self.labels <= 0, self.labels > 0):
            kept = side & weighted
            distinct, first = np.unique(scores[kept], return_index=True)
            self._tables.append((distinct, grad[kept][first], hess[kept][first]))

    def check_weights(self, weights: NDArray[np.float64] | None) -> None:
        """Raise an error if the weights of `fit` are not those of the objective."""
        if not np.allclose(1.0 if weights is None else weights, self._row_weights, rtol=1e-5):
            raise ValueError(
                "weights must be the same for the objective and for fit, because CatBoost passes "
                "an objective only some rows at a time; they differ. Pass them to both: "
                "catboost_objective(labels, weights=w) and fit(..., sample_weight=w)."
            )

    def calc_ders_range(
        self, approxes: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any] | None
    ) -> NDArray[np.float64]:
        """Return minus gradient and minus Hessian of a block of k rows, of shape (k, 2)."""
        scores, targets = np.asarray(approxes, dtype=np.float64), np.asarray(targets)
        weights = np.ones_like(scores) if weights is None else np.asarray(weights)
        out = np.zeros((scores.shape[0], 2))
        # All scores are 0 at the start of a training, which may not be the first one.
        tables = self._tables if scores.any() else self._initial_tables
        for positive, (distinct, grad, hess) in enumerate(tables):
            # The tables hold no rows of weight 0; their derivatives are 0.
            side = ((targets > 0) == bool(positive)) & (weights > 0.0)
            if not side.any():
                continue
            index = _nearest(distinct, scores[side])
            out[side] = -np.column_stack((grad[index], hess[index]))
        return out * weights[:, None]


class CatboostObjective(CatboostTables, ScaledLoss):
    """The objective that `catboost_objective` returns."""

    function = "catboost_objective"


def _nearest(distinct: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the index of each score among the stored ones, which it equals up to rounding."""
    right = np.searchsorted(distinct, scores).clip(max=distinct.shape[0] - 1)
    left = (right - 1).clip(min=0)
    nearest = np.where(scores - distinct[left] < distinct[right] - scores, left, right)
    if distinct.size and np.allclose(scores, distinct[nearest], rtol=1e-6, atol=1e-6):
        return nearest
    raise RuntimeError(
        "CatBoost passed scores that the metric has not seen. Train with the parameters of this "
        "objective, CatBoost({**objective.params, ...}), on the labels and weights that it was "
        "made from, without categorical columns (cat_features), baseline or init_model."
    )


class CatboostMetric:
    """The exact AUC; it also passes the scores of the training set to the objective."""

    def __init__(self, objective: CatboostTables) -> None:
        self.objective = objective

    def __deepcopy__(self, memo: dict[int, Any]) -> CatboostMetric:
        return self

    def is_max_optimal(self) -> bool:
        """Return True: larger is better."""
        return True

    def get_final_error(self, error: float, weight: float) -> float:
        """Return the AUC as it is, because it is not a mean over rows."""
        return error

    def evaluate(
        self, approxes: Any, target: Any, weight: NDArray[Any] | None
    ) -> tuple[float, float]:
        """Return the AUC of a data set, and a weight of 1."""
        scores, labels, weights, _ = data_from(approxes[0], target, weight, None)
        scores = scores.astype(np.float64)
        if np.array_equal(labels > 0, self.objective.labels > 0):
            self.objective.check_weights(weights)
            self.objective.update(scores)
        return metrics.auc(scores, labels.astype(np.float32), weights=weights), 1.0

"""CatBoost: an objective that knows all rows although it is asked about a thousand at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from everypair import metrics
from everypair.boosting import _scaled_loss
from everypair.boosting._scaled_loss import SOFT_HINGE, Hessian, Pairs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from everypair.surrogates import Surrogate

__all__ = ["catboost_objective"]


def catboost_objective(
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float = 1.0,
    hessian: Hessian = "pairs",
) -> CatboostObjective:
    """Return the pair loss as an objective for CatBoost, for one training set.

    CatBoost asks an objective for the derivatives of a thousand rows at a time, and a pair may
    straddle two such blocks. It shows all scores to its metric only. So objective and metric work
    together: after each round the metric hands on the scores, all pairs are summed at once, and the
    blocks read their rows from the result, which depends on a row's score and class alone.

    Parameters
    ----------
    labels : (n,)
        Those of the training set, coded {0, 1}, in its order.
    weights : (n,) real, optional
        Its sample weights, if it has any.
    surrogate, margin, hessian
        Those of `xgboost_objective`.

    Returns
    -------
    object
        Pass it as ``loss_function=`` and its attribute `metric`, the exact AUC, as
        ``eval_metric=``. It serves one training at a time, on all rows of these labels: not
        ``catboost.cv``, which trains on some.

    Raises
    ------
    RuntimeError
        In training, if scores arrive that the metric has not seen.

    Notes
    -----
    Needs ``boosting_type="Plain"``, ``leaf_estimation_iterations=1``,
    ``leaf_estimation_method="Newton"`` and ``metric_period=1`` (`params` holds all six), and no
    categorical columns. Groups are not supported: CatBoost does not tell an objective the group of
    a row.

    Examples
    --------
    >>> import numpy as np
    >>> objective = catboost_objective([1, 0, 0, 0])
    >>> objective.calc_ders_range(np.zeros(2), np.array([1.0, 0.0]), None).round(4).tolist()
    [[0.75, -0.375], [-0.25, -0.125]]
    """
    pairs = Pairs(surrogate, margin, hessian)
    return CatboostObjective(np.array(labels), _scaled_loss.row_weights(weights), pairs)


class CatboostObjective:
    """What `catboost_objective` returns."""

    def __init__(
        self,
        labels: NDArray[Any],
        weights: NDArray[np.float64] | None,
        pairs: Pairs,
    ) -> None:
        self.pairs = pairs
        self.labels = labels
        self.weights = weights
        self.metric = CatboostMetric(self)
        self.see(np.zeros(labels.shape[0]))
        self._at_start = self._tables

    def __repr__(self) -> str:
        return f"catboost_objective({self.pairs!r})"

    # CatBoost copies its parameters, and the copies of objective and metric must stay together.
    def __deepcopy__(self, memo: dict[int, Any]) -> CatboostObjective:
        return self

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of CatBoost that this objective needs."""
        return {
            "loss_function": self,
            "eval_metric": self.metric,
            "boosting_type": "Plain",
            "leaf_estimation_method": "Newton",
            "leaf_estimation_iterations": 1,
            "metric_period": 1,
        }

    def see(self, scores: NDArray[np.float64]) -> None:
        """Sum all pairs at these scores of the whole training set."""
        grad, hess = self.pairs.derivatives(scores, self.labels, self.weights, None)
        if self.weights is not None:
            heavy = self.weights > 0.0
            grad = np.divide(grad, self.weights, out=np.zeros_like(grad), where=heavy)
            hess = np.divide(hess, self.weights, out=np.zeros_like(hess), where=heavy)
        else:
            heavy = np.ones(scores.shape[0], dtype=bool)
        self._tables = []
        for side in (self.labels <= 0, self.labels > 0):
            kept = side & heavy
            nodes, at = np.unique(scores[kept], return_index=True)
            self._tables.append((nodes, grad[kept][at], hess[kept][at]))

    def check_weights(self, weights: NDArray[np.float64] | None) -> None:
        """Refuse to train with other weights than those of the objective."""
        ones = np.ones(self.labels.shape[0])
        given = ones if weights is None else weights
        known = ones if self.weights is None else self.weights
        if not np.allclose(given, known, rtol=1e-5):
            raise ValueError(
                "weights must be the same for the objective and for fit, because CatBoost shows an "
                "objective only some rows at a time; they differ. Pass them to both: "
                "catboost_objective(labels, weights=w) and fit(..., sample_weight=w)."
            )

    def calc_ders_range(
        self, approxes: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any] | None
    ) -> NDArray[np.float64]:
        """Return minus gradient and minus Hessian of a block of rows."""
        scores, targets = np.asarray(approxes, dtype=np.float64), np.asarray(targets)
        weights = np.ones_like(scores) if weights is None else np.asarray(weights)
        out = np.zeros((scores.shape[0], 2))
        # Another training begins where the last one has left its own tables.
        tables = self._tables if scores.any() else self._at_start
        for positive, (nodes, grad, hess) in enumerate(tables):
            # A row of weight 0 has no pair, and stands in no table.
            side = ((targets > 0) == bool(positive)) & (weights > 0.0)
            if not side.any():
                continue
            nearest = _nearest(nodes, scores[side])
            out[side, 0] = -grad[nearest]
            out[side, 1] = -hess[nearest]
        return out * weights[:, None]


def _nearest(nodes: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return where each score stands among the known ones, which it equals but for rounding."""
    right = np.searchsorted(nodes, scores).clip(max=nodes.shape[0] - 1)
    left = (right - 1).clip(min=0)
    nearest = np.where(scores - nodes[left] < nodes[right] - scores, left, right)
    if nodes.size and np.allclose(scores, nodes[nearest], rtol=1e-6, atol=1e-6):
        return nearest
    raise RuntimeError(
        "CatBoost asks about scores that the metric has not seen. Train with the parameters that "
        "this objective holds, CatBoost({**objective.params, ...}), on the labels and weights that "
        "it was made of, without categorical columns (cat_features), baseline or init_model."
    )


class CatboostMetric:
    """The exact AUC, which hands the scores of the training set to its objective."""

    def __init__(self, objective: CatboostObjective) -> None:
        self.objective = objective

    def __deepcopy__(self, memo: dict[int, Any]) -> CatboostMetric:
        return self

    def is_max_optimal(self) -> bool:
        """Larger is better."""
        return True

    def get_final_error(self, error: float, weight: float) -> float:
        """Return the AUC; it is not a sum over rows."""
        return error

    def evaluate(
        self, approxes: Any, target: Any, weight: NDArray[Any] | None
    ) -> tuple[float, float]:
        """Return the AUC of a set, and 1."""
        scores = np.asarray(approxes[0], dtype=np.float64)
        labels = np.asarray(target)
        weights = _scaled_loss.row_weights(weight)
        if np.array_equal(labels > 0, self.objective.labels > 0):
            self.objective.check_weights(weights)
            self.objective.see(scores)
        return metrics.auc(scores, labels.astype(np.float32), weights=weights), 1.0

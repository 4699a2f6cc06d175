"""CatBoost: an objective over all pairs, although CatBoost passes about 1000 rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import metrics
from everypair.boosting._scaled_loss import (
    SOFT_HINGE,
    Censoring,
    Data,
    Hessian,
    Pairs,
    ScaledLoss,
    Which,
    data_from,
)
from everypair.inputs import ranked
from everypair.surrogates import Surrogate


def catboost_objective(
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float | None = None,
    hessian: Hessian = "pairs",
    pairs: Pairs = "binary",
    censoring: Censoring = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> CatboostObjective:
    r"""Make an objective for CatBoost from the loss over all pairs of one training set.

    .. math::

        L(s) = \frac{1}{W} \sum_{i \in P} \sum_{j \in N} w_i w_j
               \, \tilde\phi(\tilde m - (s_i - s_j)), \qquad W = \sum_k w_k

    with the scaled surrogate and margin of `lightgbm_objective`. CatBoost asks an objective for the
    derivatives of about a thousand rows at a time, but the two rows of a pair may be in different
    blocks; only a metric receives all scores. So the two work together: after each round the metric
    passes the scores to the objective, which computes the derivatives of all rows and stores them
    by label and score. For each block the objective looks them up.

    Parameters
    ----------
    labels : (n,)
        The labels of the training set, in its order: coded {0, 1}; grades or real numbers with
        ``pairs="ordered"``; times, negative where they are censored, with ``pairs="survival"``.
    weights : (n,) real, optional
        Its sample weights, if it has any.
    surrogate, margin, hessian, pairs, censoring, max_fpr, min_tpr
        Those of `xgboost_objective`.

    Returns
    -------
    object
        Pass it as ``loss_function=`` and its attribute `metric`, the exact AUC or concordance, as
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
    which = Which(pairs, censoring, max_fpr, min_tpr)
    loss = ScaledLoss("catboost_objective", surrogate, margin, hessian, which)
    return CatboostObjective(loss, labels, weights)


class CatboostObjective:
    """The objective that `catboost_objective` returns."""

    def __init__(self, loss: ScaledLoss, labels: ArrayLike, weights: ArrayLike | None) -> None:
        array = np.array(labels)
        self.is_binary = loss.which.pairs == "binary"
        if not self.is_binary:  # CatBoost stores labels in float32
            array = ranked.target_from(array).astype(np.float32)
        self.loss = loss
        _, self.labels, self.weights, _ = data_from([], array, weights, None)
        self._row_weights = np.ones(len(self.labels)) if self.weights is None else self.weights
        self.metric = CatboostMetric(self)
        self.update(np.zeros(self.labels.shape[0]))
        self._initial_table = self._table

    # CatBoost copies its parameters, but the objective and its metric must stay the same objects.
    def __deepcopy__(self, memo: dict[int, Any]) -> CatboostObjective:
        return self

    def __repr__(self) -> str:
        return repr(self.loss)

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
        derivatives = self.loss.derivatives(Data(scores, self.labels, self.weights, None))
        weighted = self._row_weights > 0.0
        places = self.keys(self.labels[weighted]) + 1j * scores[weighted]
        order = np.argsort(places)
        per_weight = np.column_stack(derivatives)[weighted] / self._row_weights[weighted, None]
        self._table = places[order], per_weight[order]

    def keys(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return numbers that are equal for rows whose derivatives depend on the score alone."""
        return (labels > 0 if self.is_binary else labels).astype("f4")

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
        weighted = weights > 0.0  # the table holds no rows of weight 0; their derivatives are 0
        if weighted.any():
            # All scores are 0 at the start of a training, which may not be the first one.
            table = self._table if scores.any() else self._initial_table
            out[weighted] = -_lookup(*table, self.keys(targets[weighted]), scores[weighted])
        return out * weights[:, None]


def _lookup(
    places: NDArray[Any], derivatives: NDArray[Any], keys: NDArray[Any], scores: NDArray[Any]
) -> NDArray[Any]:
    """Return the derivatives of rows, whose scores equal stored ones up to rounding.

    `places` holds complex numbers, the key of a row's label plus i times its score; NumPy sorts
    them by the real part, then by the imaginary part.
    """
    right = np.searchsorted(places, keys + 1j * scores)
    neighbours = np.stack([right - 1, right]).clip(0, len(places) - 1)
    near = places[neighbours]
    distances = np.where(near.real == keys, np.abs(near.imag - scores), np.inf)
    if not (distances.min(axis=0) <= 1e-6 * (1.0 + np.abs(scores))).all():
        raise RuntimeError(
            "CatBoost passed scores that the metric has not seen. Train with the parameters of "
            "this objective, CatBoost({**objective.params, ...}), on the labels and weights that "
            "it was made from, without categorical columns (cat_features), baseline or init_model."
        )
    result: NDArray[Any] = derivatives[np.where(distances[0] < distances[1], *neighbours)]
    return result


class CatboostMetric:
    """The exact AUC or concordance; it also passes the training scores to the objective."""

    def __init__(self, objective: CatboostObjective) -> None:
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
        scores, labels = scores.astype(np.float64), labels.astype(np.float32)
        objective, loss = self.objective, self.objective.loss
        if np.array_equal(objective.keys(labels), objective.keys(objective.labels)):
            objective.check_weights(weights)
            objective.update(scores)
        pairs, censoring = loss.which[:2]
        return metrics.auc(scores, labels, weights=weights, pairs=pairs, censoring=censoring), 1.0

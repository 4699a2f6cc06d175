"""LightGBM: an objective and a metric for `train` and for the scikit-learn estimators."""

from __future__ import annotations

from typing import Literal

from everypair.boosting._scaled_loss import (
    SOFT_HINGE,
    Censoring,
    Hessian,
    Metric,
    Pairs,
    ScaledLoss,
    Which,
)
from everypair.metrics.tie_blocks import Average
from everypair.surrogates import Surrogate


def lightgbm_objective(
    *,
    surrogate: str | Surrogate = SOFT_HINGE,
    margin: float | None = None,
    hessian: Hessian | None = None,
    pairs: Pairs = "binary",
    censoring: Censoring = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> ScaledLoss:
    r"""Make an objective for LightGBM from the loss over all pairs that should be in order.

    .. math::

        L(s) = \frac{1}{W} \sum_{i \in P} \sum_{j \in N} w_i w_j
               \, \tilde\phi(\tilde m - (s_i - s_j)), \qquad W = \sum_k w_k

    where :math:`\tilde\phi` and :math:`\tilde m` are the surrogate and the margin in the units of
    the logistic loss (see Notes). The gradient is that of all pairs. With groups (``group``
    of a Dataset or of ``LGBMRanker.fit``) only pairs inside a group count.

    Parameters
    ----------
    surrogate : str or Surrogate
        By default the soft hinge, a piecewise quadratic approximation of the logistic loss with a
        bounded slope; ``"squared_hinge"`` and ``"huber_hinge"`` are others. It needs a second
        derivative, so ``"linear_hinge"`` is an error.
    margin : float, optional
        In the units of the surrogate; at least 0. The default is that of the surrogate: 1 for the
        square and the hinges, 0 for the smooth ones.
    hessian : {"logistic", "pairs"}, optional
        The Hessian of a row that LightGBM uses; by default "logistic" for binary pairs and "pairs"
        for others. ``"logistic"``: that of the logistic loss at the
        same scores, with the intercept that makes the sum of the probabilities equal the number of
        positives. ``"pairs"``: the exact diagonal Hessian of the pair loss; it takes longer. The
        positives have half of its sum, however few they are: with LightGBM's defaults trees then
        overfit, but with ``lambda_l2=1`` and ``min_sum_hessian_in_leaf=1`` it is the better choice.
    pairs : {"binary", "ordered", "survival"}
        Which pairs count. "ordered": all pairs of rows with different labels (grades or real
        numbers), inside their group if there are groups, of any size. "survival": labels are times,
        negative where they are censored, and scores are risks. The sums are then divided by
        :math:`\sum_q W_q^2 / \sum_q W_q` for groups q of weight W, which is W without groups.
    censoring : {"harrell", "uno"}
        Weights of survival pairs, as in `everypair.pair_loss`.
    max_fpr, min_tpr : float, optional
        Count only the highest negatives and the lowest positives, for a large partial AUC; as in
        `everypair.pair_loss`, by the scores of each round. Binary pairs only.

    Returns
    -------
    callable
        Pass it as ``params["objective"]`` to ``lightgbm.train``, or as ``objective=`` to an
        estimator. It returns the gradient and the Hessian, each of shape (n,). It can be pickled,
        copied and used for any number of models.

    Notes
    -----
    *Scaling.* The surrogate is scaled so that a pair with equal scores has slope 1 and second
    derivative 1/2, for any surrogate and margin. Let p be the share of positives. At equal scores
    a positive then has gradient -(1 - p) and a negative p: those of the logistic loss with the best
    intercept, from which LightGBM starts. The sum of the Hessians is also that of the logistic
    loss. So ``min_sum_hessian_in_leaf``, ``lambda_l2`` and ``learning_rate`` act as they do there.

    *Scores.* The loss does not depend on an intercept: training starts from 0, and scores rank rows
    but are not log-odds. ``predict(X, raw_score=True)`` returns them.

    *Early stopping.* `LGBMClassifier` adds its own log loss, which is meaningless for such scores
    and stops training too early: pass ``metric="None"`` to it, and `lightgbm_metric` to ``fit``.

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
    which = Which(pairs, censoring, max_fpr, min_tpr)
    return ScaledLoss("lightgbm_objective", surrogate, margin, hessian, which)


def lightgbm_metric(
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
    r"""Make an evaluation metric for LightGBM.

    Parameters
    ----------
    metric : {"auc", "loss"}
        The exact AUC of `everypair.auc`, or the mean over all pairs of
        :math:`\tilde\phi(\tilde m - (s_i - s_j))`, with the scaled surrogate of
        `lightgbm_objective`. Both use weights and groups.
    surrogate, margin
        Those of the objective; used by the loss only.
    pairs, censoring
        Those of the objective. For ordered and survival pairs the AUC is the concordance index.
    average : {"pairs", "groups", "rows"}
        How the AUC is averaged over groups, as in `everypair.auc`.
    max_fpr, min_tpr : float, optional
        Those of the objective. The AUC is then `everypair.partial_auc`, standardised as in
        scikit-learn; `max_fpr` must be above 0 for it.

    Returns
    -------
    callable
        Pass it as ``feval=`` to ``lightgbm.train`` or as ``eval_metric=`` to ``fit``, with
        ``metric="None"`` to disable LightGBM's own metric. It returns the name, the value and
        whether larger is better.

    Examples
    --------
    >>> import numpy as np
    >>> lightgbm_metric()(np.array([1.0, 0.0, 0.0]), np.array([0.3, 0.1, 0.9]))
    ('auc_pairs', 0.5, True)
    """
    which = Which(pairs, censoring, max_fpr, min_tpr)
    return Metric("lightgbm", metric, average, surrogate, margin, which)

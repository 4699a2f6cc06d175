r"""The pair loss in the units of the logistic loss, shared by the objectives of all libraries.

Boosting libraries weight a row by its Hessian: ``min_child_weight`` is a lower bound of the sum of
Hessians in a leaf, ``lambda`` is added to that sum, and the value of a leaf is the sum of gradients
divided by it. Their defaults were chosen for the logistic loss. The surrogate :math:`\phi` with
margin m is therefore replaced by

.. math::

    \tilde\phi(t) = \frac{c}{\phi'(m)} \phi(t / c), \qquad \tilde m = c m, \qquad
    c = 2 \phi''(m) / \phi'(m)

so that a pair with equal scores has slope 1 and second derivative 1/2, and the mean over pairs is
multiplied by :math:`W_+ W_- / (W_+ + W_-)`, where W are the total weights of the classes. At equal
scores the gradient of each row, and the sum of all Hessians, are then those of the logistic loss
with the best intercept. The sum over ordered or survival pairs is divided by
:math:`\sum_q W_q^2 / \sum_q W_q`, with the weight W of each group q: the weight of all rows without
groups, as for two classes.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import losses, metrics, surrogates
from everypair.boosting._logistic_hess import logistic_hess
from everypair.inputs import pair_options
from everypair.metrics.tie_blocks import Average, check_average
from everypair.surrogates import Surrogate, Term

Hessian = Literal["logistic", "pairs"]
Pairs = Literal["binary", "ordered", "survival"]
Censoring = Literal["harrell", "uno"]


class Which(NamedTuple):
    """Which pairs count: options of `everypair.pair_loss`."""

    pairs: Pairs = "binary"
    censoring: Censoring = "harrell"
    max_fpr: float | None = None
    min_tpr: float | None = None


class Data(NamedTuple):
    """The arguments of an objective or a metric; all arrays have shape (n,)."""

    scores: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None
    groups: NDArray[np.int64] | None


def _soft_hinge() -> Surrogate:
    """Interpolate the slope of the logistic loss linearly; margin 1 means a lead of 6 in scores."""
    knots = np.array([0.0, 11.0, 19.0, 30.0]) / 15.0
    slopes = np.array([0.0, 0.1, 0.9, 1.0])
    jumps = np.diff([0.0, *(np.diff(slopes) / np.diff(knots)), 0.0]).tolist()
    terms = (
        Term(jump / 2 * knot**2, -jump * knot, jump / 2, knot=knot)
        for jump, knot in zip(jumps, knots.tolist(), strict=True)
    )
    return Surrogate("soft_hinge", tuple(terms))


SOFT_HINGE = _soft_hinge()


class ScaledLoss:
    """The pair loss in the units of the logistic loss: an objective of LightGBM and XGBoost.

    The parameters are those of `lightgbm_objective`, after the name of the function that makes the
    object. The attributes `surrogate` and `scaled_margin` are the scaled ones; `original` and
    `margin` are those before scaling.
    """

    def __init__(
        self,
        function: str,
        surrogate: str | Surrogate,
        margin: float | None,
        hessian: Hessian | None,
        which: Which,
    ) -> None:
        pairs = which.pairs
        pair_options.check_pairs(pairs, which.censoring)
        pair_options.check_rates(which.max_fpr, which.min_tpr, pairs)
        original = SOFT_HINGE if surrogate == SOFT_HINGE.name else surrogates.get(surrogate)
        margin = pair_options.check_margin(margin, original.default_margin)
        slope, curvature = float(original.slope(margin)), float(original.curvature(margin))
        if slope <= 0.0 or curvature <= 0.0:
            raise ValueError(
                "surrogate must have a slope and a curvature above 0 where scores are equal, since "
                f"the value of a leaf is their ratio; {original.name!r} with margin={margin:g} "
                f"has slope {slope:g} and curvature {curvature:g} there. The default, and "
                "surrogate='squared_hinge', have both with margin=1."
            )
        if hessian is None:
            hessian = "logistic" if pairs == "binary" else "pairs"
        if hessian == "logistic" and pairs != "binary":
            raise ValueError(
                f"hessian must be 'pairs' if pairs is {pairs!r}, because the logistic loss has two "
                "classes; got 'logistic'."
            )
        if hessian not in ("logistic", "pairs"):
            raise ValueError(
                f"hessian must be 'logistic' or 'pairs', which is the exact one; got {hessian!r}."
            )
        self.function, self.which = function, which
        self.original, self.margin, self.hessian = original, margin, hessian
        stretch = 2.0 * curvature / slope
        self.scaled_margin = margin * stretch
        self.surrogate = original.scaled(1.0 / stretch, stretch / slope)

    def __call__(
        self, first: Any, second: Any, sample_weight: Any = None, group: Any = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return gradient and Hessian; see `data_from_call` for the arguments."""
        return self.derivatives(data_from_call(first, second, sample_weight, group))

    def derivatives(self, data: Data) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the (n,) gradient and the (n,) Hessian that the library uses."""
        scores, labels, weights, groups = data
        check_one_column(scores)
        # Boosting libraries store float32. The loss depends on differences of scores only, so
        # subtracting the first score in float64 keeps the digits of scores with a large offset.
        centred = np.empty(np.shape(scores), dtype=np.float32)
        np.subtract(scores, scores[0], out=centred, casting="same_kind")
        options, is_binary = self.options(data), self.which.pairs == "binary"
        if self.hessian == "logistic":
            _, grad = losses.pair_loss_and_grad(centred, labels, **options)
            grad *= np.float32(_scale_of_mean(labels > 0, weights))
            return grad, logistic_hess(centred, labels > 0, weights, groups)
        options["reduction"] = "mean" if is_binary else "sum"
        _, grad, hess = losses.pair_derivatives(centred, labels, **options)
        scale = _scale_of_mean(labels > 0, weights) if is_binary else _scale_of_sum(data)
        return grad * np.float32(scale), hess * np.float32(scale)

    def options(self, data: Data) -> dict[str, Any]:
        """Return the keyword arguments of `pair_loss`."""
        rows = {"weights": data.weights, "groups": data.groups}
        loss = {"surrogate": self.surrogate, "margin": self.scaled_margin}
        return {**loss, **self.which._asdict(), **rows}

    def __repr__(self) -> str:
        options = {"surrogate": self.original.name, "margin": self.margin, "hessian": self.hessian}
        which, default = self.which._asdict(), Which()._asdict()
        options |= {name: which[name] for name in which if which[name] != default[name]}
        arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"{self.function}({arguments})"


class Metric:
    """The exact (partial) AUC or concordance, or the mean scaled loss, as a metric of a library.

    The parameters are those of `lightgbm_metric`, after the name of the library.
    """

    def __init__(
        self,
        library: Literal["lightgbm", "xgboost"],
        metric: str,
        average: Average,
        surrogate: str | Surrogate,
        margin: float | None,
        which: Which,
    ) -> None:
        if metric not in ("auc", "loss"):
            raise ValueError(f"metric must be 'auc' or 'loss'; got {metric!r}.")
        check_average(average)
        self.library, self.metric, self.average = library, metric, average
        self.loss = ScaledLoss(f"{library}_objective", surrogate, margin, None, which)
        if metric == "auc" and which.max_fpr is not None:
            pair_options.check_rate(which.max_fpr, "max_fpr", 1.0, closed=False)
        self.__name__ = f"{metric}_pairs"

    def __call__(
        self, first: Any, second: Any, sample_weight: Any = None, group: Any = None
    ) -> tuple[str, float, bool] | tuple[str, float] | float:
        """Return what the library expects: the value, often with its name and direction.

        See `data_from_call` for the arguments.
        """
        value = self.value(data_from_call(first, second, sample_weight, group))
        if self.library == "lightgbm":
            return self.__name__, value, self.metric == "auc"
        return (self.__name__, value) if hasattr(second, "get_label") else value

    def value(self, data: Data) -> float:
        """Compute the metric of an evaluation set."""
        scores = np.asarray(data.scores, dtype=np.float64)
        if self.metric == "loss":
            return losses.pair_loss(scores, data.labels, **self.loss.options(data))
        options: dict[str, Any] = {"weights": data.weights, "groups": data.groups}
        options["average"] = self.average
        pairs, censoring, max_fpr, min_tpr = self.loss.which
        if max_fpr is None and min_tpr is None:
            return metrics.auc(scores, data.labels, pairs=pairs, censoring=censoring, **options)
        options |= {"max_fpr": 1.0 if max_fpr is None else max_fpr, "min_tpr": min_tpr or 0.0}
        return metrics.partial_auc(scores, data.labels, standardise=True, **options)


def check_one_column(scores: NDArray[Any]) -> None:
    """Raise an error about the scores of several classes."""
    if np.ndim(scores) != 1:
        raise ValueError(
            "labels must hold two classes; the booster has scores of shape "
            f"{np.shape(scores)}, one column for each of several classes. Train each class "
            "against the rest, as sklearn.multiclass.OneVsRestClassifier does."
        )


def data_from_call(first: Any, second: Any, weight: Any, group: Any) -> Data:
    """Read the arguments that a library calls an objective or a metric with.

    The native interfaces pass scores and a data set, the scikit-learn interfaces labels, scores and
    weights, and LightGBM the sizes of groups. LightGBM counts the parameters of a callable to
    decide what to pass, and XGBoost looks for one called sample_weight.
    """
    if not hasattr(second, "get_label"):
        return data_from(second, first, weight, group)
    if hasattr(second, "get_uint_info"):
        # XGBoost: the offsets of the groups, from 0 to n, or no numbers without groups.
        sizes = np.diff(second.get_uint_info("group_ptr").astype(np.int64))
    else:
        sizes = second.get_group()
    return data_from(first, second.get_label(), second.get_weight(), sizes)


def data_from(scores: ArrayLike, labels: ArrayLike, weights: Any, sizes: ArrayLike | None) -> Data:
    """Convert the arguments of a library; an empty array means no weights or no groups.

    `sizes` holds the sizes of consecutive groups. If there is one weight per group, all rows of the
    group get it.

    Examples
    --------
    >>> data_from([0.5, 1.0, 2.0], [0, 1, 0], [], [2, 1]).groups.tolist()
    [0, 0, 1]
    """
    scores, labels, groups = np.asarray(scores), np.asarray(labels), None
    weights = np.asarray(weights, np.float64) if weights is not None and np.size(weights) else None
    if sizes is not None and np.size(sizes):
        sizes, n = np.asarray(sizes), labels.shape[0]
        if sizes.sum() != n:
            raise ValueError(
                f"group must hold sizes that add up to the {n} rows; they add up to {sizes.sum()}. "
                "Pass the size of each group of consecutive rows."
            )
        groups = np.repeat(np.arange(sizes.shape[0]), sizes)
        if weights is not None and weights.shape[0] == sizes.shape[0]:
            weights = weights[groups]
    return Data(scores, labels, weights, groups)


def _scale_of_sum(data: Data) -> float:
    """Return ``sum_q W_q / sum_q W_q^2`` for groups q of weight W, or 1 without any weight."""
    n = data.labels.shape[0]
    codes = np.zeros(n, np.int64) if data.groups is None else data.groups
    w = np.bincount(codes, data.weights)
    return float(w.sum() / (w @ w)) if w.any() else 1.0


def _scale_of_mean(positive: NDArray[np.bool_], weights: NDArray[np.float64] | None) -> float:
    """Return ``W_pos W_neg / (W_pos + W_neg)``, or 0 without any weight."""
    w_pos = np.count_nonzero(positive) if weights is None else float(weights.sum(where=positive))
    w = positive.shape[0] if weights is None else float(weights.sum())
    return w_pos * (w - w_pos) / w if w else 0.0

"""All-pairs losses on arrays.

Data flow: scores, labels -> `Batch` -> the two classes -> moments -> value and derivatives.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches, pair_options
from everypair.kernel import choose
from everypair.kernel.request import Request
from everypair.surrogates import Surrogate

__all__ = ["PairDerivatives", "pair_derivatives", "pair_hvp", "pair_loss", "pair_loss_and_grad"]

Pairs = Literal["binary", "ordered", "survival"]
Censoring = Literal["harrell", "uno"]


class PairDerivatives(NamedTuple):
    r"""A loss, its gradient and the diagonal of its Hessian with respect to the scores.

    Attributes
    ----------
    value : float
        The loss :math:`L`.
    grad : (n,) or (n, 1) floating
        :math:`\partial L / \partial s_i`, in the shape and dtype of the scores.
    hess : (n,) or (n, 1) floating
        :math:`\partial^2 L / \partial s_i^2`, in the shape and dtype of the scores.
    """

    value: float
    grad: NDArray[Any]
    hess: NDArray[Any]


def pair_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Pairs = "binary",
    censoring: Censoring = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> float:
    r"""Average a surrogate loss over all pairs that should be in order.

    .. math::

        L(s) = \frac{\sum_{i \in P} \sum_{j \in N} w_i w_j \, \phi(m - (s_i - s_j))}
                    {\sum_{i \in P} \sum_{j \in N} w_i w_j}

    where P and N are the positive and the negative rows, :math:`\phi` is the surrogate and m the
    margin. Takes O(n log n) time for surrogates with a knot, O(n) without, and O(n) memory (paper,
    Algorithm 2). With ``pairs="ordered"`` the sums are over all pairs of rows with
    :math:`y_i > y_j`, with ``pairs="survival"`` over all pairs in which row i has an event before
    the time of row j; these take O(log k) times as long for k distinct targets.

    Parameters
    ----------
    scores : (n,) or (n, 1) real
        Finite model outputs; larger means more positive. Any order, any scale.
    labels : (n,) or (n, 1)
        Coded {0, 1}, {-1, +1} or bool. Grades or real numbers with ``pairs="ordered"``. With
        ``pairs="survival"``: columns (time, event) of shape (n, 2), scikit-survival's structured
        array, a tuple (times, events), or times that are negative where they are censored.
    surrogate : str or Surrogate
        A name from `everypair.surrogates.names`, or one of your own.
    margin : float, optional
        By how much a positive should score above a negative; at least 0. The default is that of the
        surrogate: 1 for the square and the hinges, 0 for the smooth ones.
    weights : (n,) real, optional
        The weight of a pair is the product of its two row weights. Finite and at least 0.
    groups : (n,) of any hashable values, optional
        Only pairs inside a group count (a query, a patient, a day).
    reduction : {"mean", "sum"}
        "mean" divides by the total weight of all pairs, as in the formula; "sum" does not.
    pairs : {"binary", "ordered", "survival"}
        Which row of a pair should score higher: the positive one; that of the higher label; or that
        with the earlier time, which must be an event. Scores are risks in the last case. Pairs of
        equal labels do not count; at equal times an event comes before a censored row.
    censoring : {"harrell", "uno"}
        With "uno" survival pairs weigh :math:`1 / G(t_i)^2`, where G is the Kaplan-Meier estimate
        of the censoring distribution from these rows.
    max_fpr, min_tpr : float, optional
        Only the highest negatives, a share of `max_fpr` of them in each group, and the lowest
        positives, a share of ``1 - min_tpr``, count: the loss of the partial AUC. They are
        selected by the scores given. 0 for `max_fpr` keeps the highest negative only.

    Returns
    -------
    float
        Zero if there is no pair, for example if all rows have one class.

    Raises
    ------
    ValueError
        If an argument is not as described; the message names the argument and the bad value.
    OverflowError
        If the loss or a derivative exceeds the range of float64, or the sum of all scores and the
        margins.

    See Also
    --------
    pair_loss_and_grad : The loss and its gradient, at little extra cost.
    everypair.naive.pair_loss : The same loss by the O(n^2) double sum.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.pair_loss([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])  # shortfalls 0.5, 1.5, -1 and 0
    0.625
    >>> ep.pair_loss([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0], surrogate="linear_hinge", reduction="sum")
    2.0
    >>> ep.pair_loss([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0], groups=["a", "b", "a", "b"])
    0.125
    >>> ep.pair_loss([0.5, 2.0, 0.0], [2.5, 3.0, 1.0], pairs="ordered")  # shortfalls -.5, -1 and .5
    0.0833...
    """
    batch = batches.batch_from(scores, labels, weights, groups, pairs, censoring, max_fpr, min_tpr)
    terms, mean = pair_options.loss_options(surrogate, margin, reduction)
    return choose.pair_sums(Request(batch, terms, mean)).value


def pair_loss_and_grad(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Pairs = "binary",
    censoring: Censoring = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> tuple[float, NDArray[Any]]:
    r"""Average a surrogate loss over all pairs, and compute its gradient.

    .. math::

        \frac{\partial L}{\partial s_i} = -\frac{w_i}{W} \sum_{j \in N} w_j \phi'(t_{ij})
        \quad (i \in P), \qquad
        \frac{\partial L}{\partial s_j} = \frac{w_j}{W} \sum_{i \in P} w_i \phi'(t_{ij})
        \quad (j \in N)

    with :math:`t_{ij} = m - (s_i - s_j)` and the total pair weight W (1 for "sum"). The parameters
    are those of `pair_loss`.

    Returns
    -------
    loss : float
    grad : (n,) or (n, 1) floating
        In the shape and dtype of the scores (float64 if those are integers). If a pair lies on a
        knot where the slope of the surrogate jumps, the slope from below is used.

    Examples
    --------
    >>> import everypair as ep
    >>> loss, grad = ep.pair_loss_and_grad([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
    >>> loss
    0.625
    >>> grad
    array([-1.  ,  0.  ,  0.25,  0.75])
    """
    batch = batches.batch_from(scores, labels, weights, groups, pairs, censoring, max_fpr, min_tpr)
    terms, mean = pair_options.loss_options(surrogate, margin, reduction)
    result = choose.pair_sums(Request(batch, terms, mean, grad=True))
    return result.value, cast("NDArray[Any]", result.grad)


def pair_derivatives(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Pairs = "binary",
    censoring: Censoring = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> PairDerivatives:
    r"""Average a surrogate loss over all pairs; compute its gradient and diagonal Hessian.

    .. math:: \frac{\partial^2 L}{\partial s_i^2} = \frac{w_i}{W} \sum_{j} w_j \phi''(t_{ij})

    over the rows j of the other class, with the symbols of `pair_loss_and_grad`. The parameters are
    those of `pair_loss`.

    Returns
    -------
    PairDerivatives
        The fields `value`, `grad` and `hess`; the arrays have the shape and dtype of the scores.

    Notes
    -----
    The second derivative is taken away from the knots: a jump of the slope at a knot adds nothing
    to it, so the Hessian of the linear hinge is zero.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.pair_derivatives([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0]).hess
    array([1. , 0. , 0.5, 0.5])
    """
    batch = batches.batch_from(scores, labels, weights, groups, pairs, censoring, max_fpr, min_tpr)
    terms, mean = pair_options.loss_options(surrogate, margin, reduction)
    value, _, grad, hess, _ = choose.pair_sums(Request(batch, terms, mean, grad=True, hess=True))
    return PairDerivatives(value, cast("NDArray[Any]", grad), cast("NDArray[Any]", hess))


def pair_hvp(
    scores: ArrayLike,
    labels: ArrayLike,
    vector: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Pairs = "binary",
    censoring: Censoring = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> NDArray[Any]:
    r"""Multiply the Hessian of the loss by a vector, without forming the matrix.

    .. math:: (H v)_i = \frac{w_i}{W} \sum_{j} w_j \phi''(t_{ij}) (v_i - v_j)

    over the rows j of the other class, with the symbols of `pair_loss_and_grad`. Jumps of the slope
    at a knot add nothing to the Hessian, as in `pair_derivatives`.

    Parameters
    ----------
    scores, labels and all options
        Those of `pair_loss`.
    vector : (n,) or (n, 1) real
        The vector v; finite.

    Returns
    -------
    (n,) or (n, 1) floating
        In the shape and dtype of the scores.

    Raises
    ------
    OverflowError
        If an entry exceeds the range of float64. Neither the vector nor the weights alone do that.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.pair_hvp([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0], [1.0, 0.0, 0.0, 0.0])
    array([ 1. ,  0. , -0.5, -0.5])
    """
    batch = batches.batch_from(scores, labels, weights, groups, pairs, censoring, max_fpr, min_tpr)
    terms, mean = pair_options.loss_options(surrogate, margin, reduction)
    v = batches.finite_column(vector, "vector", batch.scores.shape[0], np.float32)
    return choose.hessian_product(Request(batch, terms, mean, vector=v))

"""Exact all-pairs losses on arrays.

A batch flows: scores, labels -> checked arrays -> the two classes -> moments -> value and gradient.

>>> round(pair_loss([0.9, 0.2, 0.6], [1, 0, 0]), 2)  # shortfalls 0.3 and 0.7
0.29
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from everypair import _dispatch, _inputs, surrogates

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from everypair.surrogates import Surrogate

__all__ = ["PairDerivatives", "pair_derivatives", "pair_hvp", "pair_loss", "pair_loss_and_grad"]


class PairDerivatives(NamedTuple):
    """A loss, its gradient and the diagonal of its Hessian.

    Attributes
    ----------
    value : float
    grad, hess : ndarray
        Of the shape and the dtype of the scores.
    """

    value: float
    grad: NDArray[Any]
    hess: NDArray[Any]


def pair_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> float:
    """Average a surrogate over every (positive, negative) pair.

    Takes O(n log n) time with a hinge, O(n) without, and O(n) memory (paper, Algorithm 2).

    Parameters
    ----------
    scores : (n,) or (n, 1) real
        Larger means more positive. Need not be sorted or scaled, but must be finite.
    labels : (n,) or (n, 1)
        Coded {0, 1}, {-1, +1} or bool.
    surrogate : str or Surrogate
        A name from `everypair.surrogates.names`, or one of your own.
    margin : float
        The lead in score that a positive should have over a negative; at least 0.
    weights : (n,) real, optional
        A pair weighs the product of its two weights. Finite and at least 0.
    groups : (n,) of any hashable values, optional
        Only pairs inside a group count: queries, patients, days.
    reduction : {"mean", "sum"}
        The mean divides by the total weight of all pairs.

    Returns
    -------
    float
        Zero when there is no pair, as with one class only.

    Raises
    ------
    ValueError
        If an argument is not as described; the message says which, where and what to do.

    See Also
    --------
    pair_loss_and_grad : The loss and its gradient, in hardly more time.
    everypair.naive.pair_loss : The same by the double sum.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.pair_loss([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])  # shortfalls 0.5, 1.5, -1 and 0
    0.625
    >>> ep.pair_loss([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0], surrogate="linear_hinge", reduction="sum")
    2.0
    >>> ep.pair_loss([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0], groups=["a", "b", "a", "b"])
    0.125
    """
    batch = _inputs.batch_from(scores, labels, weights, groups)
    terms = surrogates.get(surrogate).at_knots(_inputs.check_margin(margin))
    return _dispatch.evaluate(batch, terms, _inputs.check_reduction(reduction)).value


def pair_loss_and_grad(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> tuple[float, NDArray[Any]]:
    """Average a surrogate over every pair, with its gradient in the scores.

    Parameters are those of `pair_loss`.

    Returns
    -------
    loss : float
    grad : ndarray
        Of the shape and the dtype of the scores (float64 where those are integers). At the knot of
        a surrogate with a kink, the slope from below.

    Examples
    --------
    >>> import everypair as ep
    >>> loss, grad = ep.pair_loss_and_grad([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0])
    >>> loss
    0.625
    >>> grad
    array([-1.  ,  0.  ,  0.25,  0.75])
    """
    batch = _inputs.batch_from(scores, labels, weights, groups)
    terms = surrogates.get(surrogate).at_knots(_inputs.check_margin(margin))
    result = _dispatch.evaluate(batch, terms, _inputs.check_reduction(reduction), grad=True)
    return result.value, cast("NDArray[Any]", result.grad)


def pair_derivatives(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> PairDerivatives:
    """Average a surrogate over every pair, with gradient and diagonal Hessian in the scores.

    Parameters are those of `pair_loss`.

    Returns
    -------
    PairDerivatives
        The fields `value`, `grad` and `hess`.

    Notes
    -----
    The Hessian is the second derivative almost everywhere: a jump of the slope at a knot adds
    nothing to it, so that of the linear hinge is zero.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.pair_derivatives([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0]).hess
    array([1. , 0. , 0.5, 0.5])
    """
    batch = _inputs.batch_from(scores, labels, weights, groups)
    terms = surrogates.get(surrogate).at_knots(_inputs.check_margin(margin))
    result = _dispatch.evaluate(
        batch, terms, _inputs.check_reduction(reduction), grad=True, hess=True
    )
    return PairDerivatives(
        result.value, cast("NDArray[Any]", result.grad), cast("NDArray[Any]", result.hess)
    )


def pair_hvp(
    scores: ArrayLike,
    labels: ArrayLike,
    vector: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> NDArray[Any]:
    """Multiply the Hessian of the loss in the scores by a vector, without forming it.

    Parameters
    ----------
    scores, labels, surrogate, margin, weights, groups, reduction
        Those of `pair_loss`.
    vector : (n,) or (n, 1) real
        Finite.

    Returns
    -------
    ndarray
        Of the shape and the dtype of the scores.

    Notes
    -----
    The Hessian is the second derivative almost everywhere, as in `pair_derivatives`.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.pair_hvp([0.5, 2.0, 0.0, 1.0], [1, 1, 0, 0], [1.0, 0.0, 0.0, 0.0])
    array([ 1. ,  0. , -0.5, -0.5])
    """
    batch = _inputs.batch_from(scores, labels, weights, groups)
    terms = surrogates.get(surrogate).at_knots(_inputs.check_margin(margin))
    result = _dispatch.evaluate(
        batch,
        terms,
        _inputs.check_reduction(reduction),
        vector=_inputs.vector_for(batch, vector),
    )
    return cast("NDArray[Any]", result.hvp)

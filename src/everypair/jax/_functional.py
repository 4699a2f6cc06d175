"""The loss over every pair, as a function of JAX arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from everypair import surrogates
from everypair.inputs import pair_options
from everypair.jax import _derivatives
from everypair.jax._inputs import Which, validate

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike

    from everypair.surrogates import Surrogate


def pair_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
) -> Array:
    """Average a surrogate over all pairs that should be in order; differentiable in the scores.

    Takes the time of a sort, or O(n) with a surrogate without knots and no groups, and O(n) memory;
    on any device, with shapes that depend on no value.

    Parameters
    ----------
    scores : (n,) or (n, 1) floating
        Larger means more positive; logits are fine. For several tasks use `jax.vmap`.
    labels : (n,) or (n, 1)
        Coded {0, 1}, {-1, +1} or bool; grades or real numbers with ``pairs="ordered"``; any form of
        survival labels that `everypair.pair_loss` takes with ``pairs="survival"``.
    surrogate : str or Surrogate
        A name from `everypair.surrogates.names`, or one of your own. Static under `jax.jit`.
    margin : float or scalar array, optional
        The lead in score that a positive should have over a negative; at least 0. May be traced.
        The default is that of the surrogate: 1 for the square and the hinges, 0 for the smooth
        ones.
    weights : (n,) real, optional
        A pair weighs the product of its two weights. Finite and at least 0. Not differentiated.
    groups : (n,) of whole numbers, optional
        Only pairs inside a group count: queries, patients, days.
    reduction : {"mean", "sum"}
        The mean divides by the total weight of all pairs. Static under `jax.jit`.
    pairs, censoring, max_fpr, min_tpr
        Those of `everypair.pair_loss`: which pairs count. Static under `jax.jit`. Ordered pairs
        take as many sums as the number of different labels has bits.

    Returns
    -------
    Array
        A number: zero, with a gradient of zero, where there is no pair, as with one class only.
        float64 for float64 scores, float32 for all others.

    Raises
    ------
    ValueError
        If a type or a shape is not as described, at trace time too; if a value is not, where values
        are known, which is outside of `jax.jit`.

    Notes
    -----
    Can be differentiated twice, in reverse and in forward mode (a third derivative of a smooth
    surrogate raises an error); works under `jax.jit` and `jax.vmap`. At the knot of a surrogate
    with a kink, the slope is that from below.

    Sums are kept in pairs of floats, so single precision is enough: the loss, the gradient and the
    Hessian agree with the double sum to the last digits of the scores' type at any offset.

    Under `jax.jit` values cannot be checked: a score that is not finite gives NaN, and a label is
    positive if it is larger than zero.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from everypair.jax import pair_loss
    >>> scores, labels = jnp.array([0.5, 2.0, 0.0, 1.0]), jnp.array([1, 1, 0, 0])
    >>> float(pair_loss(scores, labels))  # shortfalls 0.5, 1.5, -1 and 0
    0.625
    >>> jax.grad(pair_loss)(scores, labels).tolist()
    [-1.0, 0.0, 0.25, 0.75]
    """
    chosen = surrogates.get(surrogate)
    rates = pair_options.check_rates(max_fpr, min_tpr, pairs)
    which = Which(pairs, censoring, *(rates or (None, None)))
    x, data = validate(scores, labels, weights, groups, chosen, margin, reduction, which)
    return _derivatives.value(x, data)

"""Validate JAX arrays: types and shapes always, values where they are known.

While JAX traces a function, its arguments have types and shapes but no values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from everypair import _inputs
from everypair.arrays.double_double import Number
from everypair.arrays.terms import Exponential, Kinds, Powers, Smooth, Terms, by_kind
from everypair.jax._arrays import JaxArrays
from everypair.surrogates import ExponentialTerm

if TYPE_CHECKING:
    from jax.typing import ArrayLike

    from everypair.surrogates import Surrogate


for _static in (Powers, ExponentialTerm):
    jax.tree_util.register_static(_static)


class Data(NamedTuple):
    """The arguments of a loss besides the scores; its structure decides on the compiled program.

    `terms` is the result of `everypair.arrays.terms.by_kind`, with arrays for factors: a new margin
    does not compile a new program. The coefficients of smooth terms are constants of the program.
    """

    positive: Array
    weights: Array | None
    groups: Array | None
    terms: Kinds
    mean: Array


def validate(
    scores: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None,
    groups: ArrayLike | None,
    surrogate: Surrogate,
    margin: ArrayLike | None,
    reduction: str,
) -> tuple[Array, Data]:
    """Return the scores in the type that the loss is computed in, and the other arguments."""
    x = _array(scores, "scores")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        _inputs.raise_not_floats(x.dtype, "scores.astype(float)")
    if x.ndim != 1 and x.shape[1:] != (1,):
        advice = "For several tasks, call jax.vmap(pair_loss, in_axes=1)."
        if x.ndim != 2:
            advice = "Pass scores.ravel() if every entry is a row."
        raise ValueError(f"scores must have the shape (n,) or (n, 1); got {x.shape}. {advice}")
    n = x.shape[0]
    if x.size == 0:
        _inputs.raise_no_rows()
    work = jnp.promote_types(x.dtype, jnp.float32)
    y = _row_of(labels, "labels", n)
    w = None if weights is None else _row_of(weights, "weights", n)
    _check_values(x, y, w)
    data = Data(
        y > 0 if y.dtype != bool else y,
        None if w is None else w.astype(work),
        None if groups is None else _groups(groups, n),
        _terms(surrogate, margin, work),
        jnp.asarray(_inputs.check_reduction(reduction)),
    )
    return x.reshape(n).astype(work), data


def _array(given: ArrayLike, name: str) -> Array:
    if isinstance(given, Array):
        array = given
    else:
        try:
            array = jnp.asarray(given)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} must be an array of numbers; got {type(given).__name__}. "
                f"Pass jnp.asarray({name})."
            ) from error
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        _inputs.raise_not_real(name, array.dtype)
    return array


def _row_of(given: ArrayLike, name: str, n: int) -> Array:
    array = _array(given, name)
    if array.shape not in ((n,), (n, 1)):
        raise ValueError(
            f"{name} must have the shape ({n},), one entry per score; got {array.shape}. "
            "Check that both come from the same rows."
        )
    return array.reshape(n)


def _groups(given: Any, n: int) -> Array:
    if not isinstance(given, Array):
        # JAX has no strings and cuts 64 bits down to 32, so groups of any type are numbered here.
        values = np.asarray(given)
        given = jnp.asarray(np.unique(values, return_inverse=True)[1].reshape(values.shape))
    groups = _row_of(given, "groups", n)
    if not jnp.issubdtype(groups.dtype, jnp.integer) and groups.dtype != bool:
        _inputs.raise_group_dtype(groups.dtype, "jnp")
    return groups


def _check_values(x: Array, y: Array, w: Array | None) -> None:
    """Raise for invalid values of arrays that are not traced."""

    def known(array: Array | None) -> Any:
        if array is None or isinstance(array, jax.core.Tracer):
            return None
        narrow = array.dtype.itemsize < 4 and jnp.issubdtype(array.dtype, jnp.floating)
        return np.asarray(array.astype(jnp.float32) if narrow else array).reshape(-1)

    scores, labels = known(x), known(y)
    _inputs.positives(
        _inputs.batch_from(
            np.zeros(x.shape[0]) if scores is None else scores,
            np.zeros(x.shape[0]) if labels is None else labels,
            known(w),
        )
    )


def _terms(surrogate: Surrogate, margin: Any, work: Any) -> Kinds:
    """Return the terms at their knots. Only a traced margin is rounded to the work type."""
    traced = isinstance(margin, jax.core.Tracer)
    if traced and margin.shape != ():
        raise ValueError(
            f"margin must be one number; got the shape {margin.shape}. "
            "For several margins, call jax.vmap over them."
        )

    def number(values: tuple[float, ...]) -> Number:
        exact = np.array(values, np.float64)
        high = exact.astype(work)
        return Number(jnp.asarray(high), jnp.asarray((exact - high).astype(work)))

    def shifted(values: tuple[float, ...]) -> Number:
        shift = number(values)
        if not traced:
            return shift
        given = Number(jnp.broadcast_to(margin.astype(work), shift.high.shape))
        return JaxArrays(work).plus(shift, given)

    def as_arrays(terms: Terms | None) -> Terms | None:
        if terms is None:
            return None
        shift, *factors = terms
        return Terms(shifted(shift), *(None if f is None else number(f) for f in factors))

    known = 0.0 if traced else _inputs.check_margin(margin, surrogate.default_margin)
    kinds = by_kind(surrogate.at_margin(known), wide=work == jnp.float64)
    return Kinds(
        as_arrays(kinds.truncated),
        as_arrays(kinds.everywhere),
        tuple(Smooth(shifted(shift), powers) for shift, powers in kinds.smooth),
        tuple(Exponential(shifted(shift), term) for shift, term in kinds.exponential),
    )

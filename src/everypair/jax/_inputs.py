"""Validate JAX arrays: types and shapes always, values where they are known.

While JAX traces a function, its arguments have types and shapes but no values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from everypair.arrays import levels
from everypair.arrays.double_double import Number
from everypair.arrays.levels import Ranks
from everypair.arrays.numpy import NumpyArrays
from everypair.arrays.terms import Kinds, by_kind
from everypair.inputs import (
    batches,
    binary,
    convert,
    hardest,
    messages,
    pair_options,
    survival,
)
from everypair.inputs.groups import group_codes
from everypair.inputs.ranked import survival_keys, target_from
from everypair.jax._arrays import JaxArrays

if TYPE_CHECKING:
    from jax.typing import ArrayLike
    from numpy.typing import NDArray

    from everypair.surrogates import Surrogate


class Which(NamedTuple):
    """Which pairs count: the options of `everypair.jax.pair_loss`."""

    pairs: str
    censoring: str
    max_fpr: float | None
    min_tpr: float | None


class Data(NamedTuple):
    """The arguments of a loss besides the scores; its structure decides on the compiled program.

    Binary pairs have `positive`, `weights` and `groups`. All others have ranks, the weights of
    losers and the number of bits in `ranked`, and `weights` are those of winners. `terms` is the
    result of `everypair.arrays.terms.by_kind`, with arrays for factors: a new margin or temperature
    does not compile a new program.
    """

    positive: Array | None
    weights: Array | None
    groups: Array | None
    terms: Kinds
    mean: Array
    ranked: tuple[Ranks, Array | None, Array] | None


def validate(
    scores: ArrayLike,
    labels: Any,
    weights: ArrayLike | None,
    groups: Any,
    surrogate: Surrogate,
    margin: ArrayLike | None,
    reduction: str,
    which: Which,
) -> tuple[Array, Data]:
    """Return the scores in the type that the loss is computed in, and the other arguments."""
    pair_options.check_pairs(which.pairs, which.censoring)
    x = scores if isinstance(scores, Array) else jnp.asarray(convert.to_real(scores, "scores"))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        messages.raise_not_floats(x.dtype, "scores.astype(float)")
    if x.ndim != 1 and x.shape[1:] != (1,):
        advice = "For several tasks, call jax.vmap(pair_loss, in_axes=1)."
        if x.ndim != 2:
            advice = "Pass scores.ravel() if every entry is a row."
        raise ValueError(f"scores must have the shape (n,) or (n, 1); got {x.shape}. {advice}")
    if x.size == 0:
        messages.raise_no_rows()
    n, work = x.shape[0], jnp.promote_types(x.dtype, jnp.float32)
    with np.errstate(over="ignore"):  # `_check_values` reports weights that become infinite
        w = None if weights is None else jnp.asarray(_column(weights, "weights", n).astype(work))
    _check_values(x, w)
    x, g = x.reshape(n).astype(work), None if groups is None else _groups(groups, n)
    positive, ranked = None, None
    if which.pairs == "binary":
        y = _column(labels, "labels", n)
        positive = y > 0 if isinstance(y, Array) else jnp.asarray(binary.positive_rows(y))
        if which.max_fpr is not None or which.min_tpr is not None:
            w = hardest.hardest_weights(
                JaxArrays(work), lax.stop_gradient(x), positive,
                jnp.ones_like(x) if w is None else w, g,
                1.0 if which.max_fpr is None else which.max_fpr, which.min_tpr or 0.0,
            )  # fmt: skip
    else:
        w, ranked = _ranked(labels, w, g, which, work, n)
        g = None
    mean = jnp.asarray(pair_options.check_reduction(reduction))
    return x, Data(positive, w, g, _terms(surrogate, margin, work), mean, ranked)


def _ranked(
    labels: Any, w: Array | None, groups: Array | None, which: Which, work: Any, n: int
) -> tuple[Array | None, tuple[Ranks, Array | None, Array]]:
    """Return the weights of winners, and the ranks of ordered or survival targets."""
    xp, winner = JaxArrays(work), w
    if which.pairs == "survival":
        keys, times, events = _survival(labels, n)
        w = jnp.ones(n, work) if w is None else w
        factor = events
        if which.censoring == "uno":
            arrays: Any = xp, jnp.asarray(times, work), jnp.asarray(events), w
            if not (_is_traced(times) or _is_traced(w)):  # float64 loses no digit of float32
                exact = NumpyArrays(compensated=True)
                arrays = exact, times, events, np.asarray(w, np.float64)
            factor = survival.censoring_weights(*arrays)
        winner = w * jnp.asarray(factor, work)
    else:
        target = _column(labels, "labels", n)
        keys = [target if isinstance(target, Array) else _numbered(target_from(target))]
    ranks = levels.ranks_of(xp, keys, groups)
    n_bits = 32 - lax.clz(ranks.ranks.max())
    return winner, (ranks, w, jnp.maximum(n_bits, 1))


def _survival(labels: Any, n: int) -> tuple[list[Array], Any, Any]:
    """Return what to sort the rows by, times and events; the last two are arrays of NumPy if known.

    Labels are in any form that `everypair.pair_loss` takes.
    """
    parts = labels if isinstance(labels, tuple) else (labels,)
    if not any(map(_is_traced, parts)):
        arrays = tuple(map(_values, parts))
        target = survival.survival_from(arrays if isinstance(labels, tuple) else arrays[0])
        if len(target.times) != n:
            messages.raise_length("labels", len(target.times), n)
        return [_numbered(survival_keys(*target))], *target
    if len(parts) == 1 and labels.shape == (n, 2):
        parts = labels[:, 0], labels[:, 1]
    times, *events = (jnp.asarray(_column(part, "labels", n)) for part in parts)
    is_event = events[0] == 1 if events else ~jnp.signbit(times)
    times = jnp.abs(times.astype(jnp.promote_types(times.dtype, jnp.float32)))
    return [is_event.astype(jnp.uint8), -times], times, is_event


def _numbered(target: NDArray[Any]) -> Array:
    """Return numbers from 0 in the order of a target, of which JAX may not hold all digits."""
    return jnp.asarray(np.unique(target, return_inverse=True)[1])


def _is_traced(array: Any) -> bool:
    """Return whether an argument has a type and a shape only."""
    return isinstance(array, jax.core.Tracer)


def _values(values: Any) -> Any:
    """Return the values of a JAX array in NumPy; other arguments as they are."""
    if not isinstance(values, Array):
        return values
    narrow = values.dtype.itemsize < 4 and jnp.issubdtype(values.dtype, jnp.floating)
    return np.asarray(values.astype(jnp.float32) if narrow else values)


def _column(values: Any, name: str, n: int) -> Any:
    """Return real numbers, one for each row: a traced array as it is, others in NumPy."""
    array = values if _is_traced(values) else convert.to_real(_values(values), name)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        messages.raise_not_real(name, array.dtype)
    return _of_rows(array, name, n)


def _of_rows(array: Any, name: str, n: int) -> Any:
    if array.shape not in ((n,), (n, 1)):
        raise ValueError(
            f"{name} must have the shape ({n},), one entry per score; got {array.shape}. "
            "Check that both come from the same rows."
        )
    return array.reshape(n)


def _groups(values: Any, n: int) -> Array:
    # JAX has no strings and cuts 64 bits down to 32, so groups of any type are numbered here.
    array = values if isinstance(values, Array) else jnp.asarray(group_codes(values)[0])
    if not jnp.issubdtype(array.dtype, jnp.integer) and array.dtype != bool:
        messages.raise_group_dtype(array.dtype, "jnp")
    groups: Array = _of_rows(array, "groups", n)
    return groups


def _check_values(x: Array, w: Array | None) -> None:
    """Raise for invalid scores and weights that are not traced."""
    scores = np.zeros(x.shape[0]) if _is_traced(x) else _values(x)
    weights = None if _is_traced(w) else _values(w)
    batches.check_values(batches.batch_from(scores, np.zeros(x.shape[0], bool), weights))


def _terms(surrogate: Surrogate, margin: Any, work: Any) -> Kinds:
    """Return the terms at their knots. Only a traced margin is rounded to the work type."""
    is_traced = _is_traced(margin)
    if is_traced and margin.shape != ():
        raise ValueError(
            f"margin must be one number; got the shape {margin.shape}. "
            "For several margins, call jax.vmap over them."
        )

    def number(values: ArrayLike) -> Number:
        exact = np.array(values, np.float64)
        high = exact.astype(work)
        return Number(jnp.asarray(high), jnp.asarray((exact - high).astype(work)))

    def as_arrays(term: Any) -> Any:
        """Return a term with its numbers as arrays, the shift moved by a traced margin."""
        term = type(term)(*(None if part is None else number(part) for part in term))
        if not is_traced:
            return term
        shift = Number(jnp.broadcast_to(margin.astype(work), term.shift.high.shape))
        return term._replace(shift=JaxArrays(work).plus(term.shift, shift))

    value = 0.0 if is_traced else pair_options.check_margin(margin, surrogate.default_margin)
    kinds = by_kind(surrogate.at_margin(value), wide=work == jnp.float64)
    out: Kinds = jax.tree.map(as_arrays, kinds, is_leaf=lambda part: hasattr(part, "shift"))
    return out

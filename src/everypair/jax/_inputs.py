"""Validate JAX arrays: types and shapes always, values where they are known.

While JAX traces a function, its arguments have types and shapes but no values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from everypair.arrays import levels
from everypair.arrays.double_double import Number
from everypair.arrays.levels import Ranks
from everypair.arrays.numpy import NumpyArrays
from everypair.arrays.terms import Exponential, Kinds, Powers, Smooth, Terms, by_kind
from everypair.inputs import batches, hardest, messages, pair_options, survival
from everypair.jax._arrays import JaxArrays
from everypair.surrogates import ExponentialTerm

if TYPE_CHECKING:
    from jax.typing import ArrayLike

    from everypair.surrogates import Surrogate


for _static in (Powers, ExponentialTerm):
    jax.tree_util.register_static(_static)


class Which(NamedTuple):
    """Which pairs count: the options of `everypair.jax.pair_loss`."""

    pairs: str
    censoring: str
    max_fpr: float | None
    min_tpr: float | None


class Data(NamedTuple):
    """The arguments of a loss besides the scores; its structure decides on the compiled program.

    Binary pairs have `positive`, `weights` and `groups`. All others have `ranked`, and `weights`
    are those of winners. `terms` is the result of `everypair.arrays.terms.by_kind`, with arrays for
    factors: a new margin does not compile a new program. The coefficients of smooth terms are
    constants of the program.
    """

    positive: Array | None
    weights: Array | None
    groups: Array | None
    terms: Kinds
    mean: Array
    ranked: Ranked | None


class Ranked(NamedTuple):
    """Ordered or survival targets: ranks, the weights of losers, and the number of bits."""

    ranks: Ranks
    losers: Array | None
    n_bits: Array


def validate(
    scores: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None,
    groups: ArrayLike | None,
    surrogate: Surrogate,
    margin: ArrayLike | None,
    reduction: str,
    which: Which,
) -> tuple[Array, Data]:
    """Return the scores in the type that the loss is computed in, and the other arguments."""
    pair_options.check_pairs(which.pairs, which.censoring)
    x = _array(scores, "scores")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        messages.raise_not_floats(x.dtype, "scores.astype(float)")
    if x.ndim != 1 and x.shape[1:] != (1,):
        advice = "For several tasks, call jax.vmap(pair_loss, in_axes=1)."
        if x.ndim != 2:
            advice = "Pass scores.ravel() if every entry is a row."
        raise ValueError(f"scores must have the shape (n,) or (n, 1); got {x.shape}. {advice}")
    n = x.shape[0]
    if x.size == 0:
        messages.raise_no_rows()
    work = jnp.promote_types(x.dtype, jnp.float32)
    if which.pairs == "survival":
        labels = _signed_times(labels, n)
    y = _row_of(labels, "labels", n)
    w = None if weights is None else _row_of(weights, "weights", n)
    _check_values(x, y, w, which)
    w = None if w is None else w.astype(work)
    g = None if groups is None else _groups(groups, n)
    x = x.reshape(n).astype(work)
    positive, ranked = None, None
    if which.pairs == "binary":
        positive = y > 0 if y.dtype != bool else y
        if which.max_fpr is not None or which.min_tpr is not None:
            w = _hardest(x, positive, w, g, which)
    else:
        w, ranked = _ranked(y, w, g, which, work)
        g = None
    mean = jnp.asarray(pair_options.check_reduction(reduction))
    return x, Data(positive, w, g, _terms(surrogate, margin, work), mean, ranked)


def _signed_times(labels: Any, n: int) -> Any:
    """Return times that are negative where censored, from any form of survival labels."""
    if isinstance(labels, tuple) and len(labels) == 2:
        times, events = (_row_of(part, "labels", n) for part in labels)
    elif isinstance(labels, Array) and labels.shape == (n, 2) and n != 1:
        times, events = labels[:, 0], labels[:, 1]
    elif isinstance(labels, Array) and labels.shape in ((n,), (n, 1)):
        return labels
    else:
        found = survival.survival_from(labels)
        times, events = jnp.asarray(found.times), jnp.asarray(found.events)
    times = times.astype(jnp.promote_types(times.dtype, jnp.float32))
    signed = jnp.where(events == 1, times, jnp.where(events == 0, -times, jnp.nan))
    return jnp.where(times >= 0.0, signed, jnp.nan)


def _ranked(
    y: Array, w: Array | None, groups: Array | None, which: Which, work: Any
) -> tuple[Array | None, Ranked]:
    """Return the weights of winners, and the ranks of ordered or survival targets."""
    xp, keys, winner = JaxArrays(work), [y], w
    if which.pairs == "survival":
        times, events = jnp.abs(y), ~jnp.signbit(y)
        keys = [xp.as_uint8(events), -times]
        w = jnp.ones(y.shape, work) if w is None else w
        factor: Any = events
        if which.censoring == "uno":
            # Known times are read in float64, whose products lose no digit of float32.
            factor = survival.censoring_weights(xp, times.astype(work), events, w)
            if not (isinstance(y, jax.core.Tracer) or isinstance(w, jax.core.Tracer)):
                known = survival.Survival(np.asarray(times, np.float64), np.asarray(events))
                exact = survival.censoring_weights(
                    NumpyArrays(compensated=True), *known, np.asarray(w, np.float64)
                )
                factor = jnp.asarray(exact.astype(work))
        winner = w * factor
    ranks = levels.ranks_of(xp, keys, groups)
    n_bits = 32 - lax.clz(ranks.ranks.max())
    return winner, Ranked(ranks, w, jnp.maximum(n_bits, 1))


def _hardest(x: Array, positive: Array, w: Array | None, groups: Array | None, which: Which) -> Any:
    """Return the weights of the rows that a partial AUC keeps."""
    return hardest.hardest_weights(
        JaxArrays(x.dtype), lax.stop_gradient(x), positive,
        jnp.ones_like(x) if w is None else w, groups,
        1.0 if which.max_fpr is None else which.max_fpr, which.min_tpr or 0.0,
    )  # fmt: skip


def _array(given: ArrayLike, name: str) -> Array:
    if isinstance(given, Array):
        array = given
    else:
        try:
            array = jnp.asarray(given)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} must be an array of numbers; got {type(given).__name__}. "
                "Pass an array or a list of numbers."
            ) from error
        except OverflowError as error:
            _raise_whole_numbers(given, name, error)
        if not _are_kept(given, array):
            _raise_whole_numbers(given, name)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        messages.raise_not_real(name, array.dtype)
    return array


def _raise_whole_numbers(given: Any, name: str, error: Exception | None = None) -> NoReturn:
    raise ValueError(
        f"{name} must be whole numbers that JAX holds, which are those of int32 unless "
        f"jax_enable_x64 is set; got {abs(np.asarray(given)).max()}. Enable it, pass floats, or "
        "pass ranks: numpy.unique(values, return_inverse=True)[1]."
    ) from error


def _are_kept(given: Any, array: Array) -> bool:
    """Return whether JAX kept whole numbers; without x64 it drops their upper 32 bits."""
    if isinstance(array, jax.core.Tracer) or not jnp.issubdtype(array.dtype, jnp.integer):
        return True
    return bool((np.asarray(given) == np.asarray(array)).all())


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
        messages.raise_group_dtype(groups.dtype, "jnp")
    return groups


def _check_values(x: Array, y: Array, w: Array | None, which: Which) -> None:
    """Raise for invalid values of arrays that are not traced."""

    def known(array: Array | None) -> Any:
        if array is None or isinstance(array, jax.core.Tracer):
            return None
        narrow = array.dtype.itemsize < 4 and jnp.issubdtype(array.dtype, jnp.floating)
        return np.asarray(array.astype(jnp.float32) if narrow else array).reshape(-1)

    scores, labels = known(x), known(y)
    batch = batches.batch_from(
        np.zeros(x.shape[0]) if scores is None else scores,
        np.zeros(x.shape[0]) if labels is None else labels,
        known(w),
        pairs=which.pairs,
    )
    if which.pairs == "binary":
        batches.positives(batch)


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

    known = 0.0 if traced else pair_options.check_margin(margin, surrogate.default_margin)
    kinds = by_kind(surrogate.at_margin(known), wide=work == jnp.float64)
    return Kinds(
        as_arrays(kinds.truncated),
        as_arrays(kinds.everywhere),
        as_arrays(kinds.below),
        tuple(Smooth(shifted(shift), powers) for shift, powers in kinds.smooth),
        tuple(Exponential(shifted(shift), term) for shift, term in kinds.exponential),
    )

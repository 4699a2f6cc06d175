"""Moments of the two classes, for surrogates without knots: all pairs count, nothing is sorted.

Sums over all pairs are products of sums over the classes. With c near the mean of each class,
``a = c_neg + shift - c_pos`` and ``q = score - c_neg`` or ``c_pos - score``, a pair has the
shortfall ``d = a + q_pos + q_neg``, and with the sums W of w, F of w q and S of w q^2 in each class

    sum over pairs of d   = a W W' + (W F' + W' F)
    sum over pairs of d^2 = a^2 W W' + 2 a (W F' + W' F) + (W S' + W' S) + 2 F F'

An offset of all scores has vanished before anything is squared, and F is as small as c is near.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from everypair.jax._compensated import Number, each, minus, number, plus, times, total, two_sum
from everypair.jax._sorted_moments import finished

if TYPE_CHECKING:
    from jax import Array

    from everypair.jax._sorted_moments import Data, Truncated

__all__ = ["derivative_along", "value_and_grad"]


class _Classes(NamedTuple):
    """The positives and the negatives: two rows of an array, and their weights and masses."""

    inside: Array
    weights: Number
    mass: Number


def value_and_grad(_: Truncated, x: Array, data: Data) -> tuple[Array, Array]:
    """Return the loss and its gradient, in the type of the scores."""
    classes = _classes(x, data)
    b0, b1, b2 = (total(b) for b in data.terms[1:])
    shift = each(lambda part: part[0], data.terms.shift)

    centre = _centres(x, classes)
    apart = plus(two_sum(centre[1], -centre[0]), shift)
    sign = jnp.where(data.positive, -1.0, 1.0).astype(x.dtype)
    mean = jnp.where(data.positive, centre[0], centre[1])
    q = each(lambda part: sign * part, two_sum(x, -mean))
    weighted = times(classes.weights, q)
    first, second = _sums(weighted, classes), _sums(times(weighted, q), classes)

    slope = plus(b1, _twice(times(apart, b2)))
    flat = plus(b0, times(apart, plus(b1, times(apart, b2))))
    squares = plus(_across(classes.mass, second), _twice(_product(first)))
    value = plus(
        times(_product(classes.mass), flat),
        plus(times(_across(classes.mass, first), slope), times(squares, b2)),
    )
    mass, rest = (_opposite(data, a) for a in (classes.mass, first))
    across = plus(times(mass, plus(slope, _twice(times(q, b2)))), _twice(times(rest, b2)))
    grad = times(classes.weights, across)
    # Nothing is not negative: people read gradients.
    keep = ~data.positive | (grad.high == 0.0)
    grad = each(lambda part: jnp.where(keep, part, -part), grad)
    pair_weight = _product(classes.mass).high
    return finished(x, data, pair_weight, value), finished(x, data, pair_weight, grad)


def derivative_along(_: Truncated, x: Array, data: Data, z: Array) -> Array:
    """Return the Hessian times z."""
    classes = _classes(x, data)
    # The Hessian sends constants to zero: without the common part, less is left to cancel.
    along = number(z - z.min())
    pulls = _sums(times(classes.weights, along), classes)
    mass, opposite = (_opposite(data, a) for a in (classes.mass, pulls))
    pull = times(classes.weights, minus(times(along, mass), opposite))
    product = times(pull, _twice(total(data.terms.b2)))
    return finished(x, data, _product(classes.mass).high, product)


def _classes(x: Array, data: Data) -> _Classes:
    inside = jnp.stack([data.positive, ~data.positive])
    weights = number(jnp.ones_like(x) if data.weights is None else data.weights)
    found = _Classes(inside, weights, weights)
    return found._replace(mass=_sums(weights, found))


def _centres(x: Array, classes: _Classes) -> Array:
    """Return the mean score of each class; 0 where there is none."""
    counts = classes.inside & (classes.weights.high > 0.0)
    some = counts.any(-1)
    share = classes.weights.high / jnp.where(some, classes.mass.high, 1.0)[:, None]
    mean = _sums(times(number(share), number(x)), classes).high
    # Scores that are all the same are their mean, whatever rounding made of it.
    low = jnp.where(counts, x, jnp.inf).min(-1)
    high = jnp.where(counts, x, -jnp.inf).max(-1)
    return jnp.where(some, jnp.clip(mean, low, high), 0.0)


def _sums(a: Number, classes: _Classes) -> Number:
    """Return the sum over each class."""
    sums: Number = jax.vmap(total)(each(lambda part: jnp.where(classes.inside, part, 0.0), a))
    return sums


def _opposite(data: Data, a: Number) -> Number:
    """Return what the other class has, for each row."""
    return each(lambda part: jnp.where(data.positive, part[1], part[0]), a)


def _across(a: Number, b: Number) -> Number:
    return total(times(a, each(lambda part: part[::-1], b)))


def _product(a: Number) -> Number:
    return times(each(lambda part: part[0], a), each(lambda part: part[1], a))


def _twice(a: Number) -> Number:
    return each(lambda part: 2.0 * part, a)

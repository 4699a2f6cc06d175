"""Moments of one class below a point of the other, in operations of static shape.

Rows stand at z = score (positives) or score + shift (negatives), so that a term of the surrogate is
``b0 + b1 d + b2 d^2`` in d = z_neg - z_pos where d > 0. All rows of both classes are sorted by z.
With L the weight of the lower class before a gap between neighbours and U that of the upper class
after it, everything is a sum over gaps,

    T_i = sum over gaps up to row i of  gap L       first moment of the lower class below row i
    R_i = sum over gaps after row i of  gap U       first moment of the upper class above row i
    sum over pairs of d   = sum of  gap L U
    sum over pairs of d^2 = sum of  gap (2 T + gap L) U

in which no addend is negative and an offset of all scores has vanished. A term without a knot
counts the pairs with d <= 0 too: those are the pairs of a second side, with the classes exchanged.

The terms of a surrogate, and their sides, are rows of one array: however many there are, the
program has the same size, and their coefficients are data.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from everypair.jax._compensated import (
    Number,
    each,
    minus,
    number,
    plus,
    prefix,
    times,
    total,
    two_sum,
)

# Which terms have a knot: all that decides on the program, besides shapes.
Truncated = tuple[bool, ...]

__all__ = ["Data", "Terms", "Truncated", "derivative_along", "finished", "value_and_grad"]


class Terms(NamedTuple):
    """The coefficients of the terms seen from their knots, one entry for each term."""

    shift: Number
    b0: Number
    b1: Number
    b2: Number


class Data(NamedTuple):
    """What a loss is a function of, besides the scores."""

    positive: Array
    weights: Array | None
    groups: Array | None
    terms: Terms
    mean: Array


class _Side(NamedTuple):
    """Pairs of a lower row and an upper one, for every side of every term, in sorted rows."""

    order: Array
    is_upper: Array
    heads: Array
    gap: Number
    weights: Number
    lower: Number
    upper: Number
    below: Number
    above: Number
    terms: Terms


def value_and_grad(truncated: Truncated, x: Array, data: Data) -> tuple[Array, Array]:
    """Return the loss and its gradient, in the type of the scores."""
    side = _sides(truncated, x, data)
    _, b0, b1, b2 = side.terms
    before = _before(side.below, side.heads)
    step = times(side.gap, before)
    over = times(side.gap, side.above)
    first, over = _both_ways(step, over, side.heads)
    over = _after(over, side.heads)

    twice = each(lambda part: 2.0 * part, _before(first, side.heads))
    squares = times(side.gap, plus(twice, step))
    linear = plus(times(step, each(_column, b1)), times(squares, each(_column, b2)))
    jumps = times(times(side.upper, side.below), each(_column, b0))
    value = total(plus(jumps, times(linear, side.above)))

    zeroth = _chosen(side.is_upper, side.below, side.above)
    moment = _chosen(side.is_upper, first, over)
    slope = plus(
        times(zeroth, each(_column, b1)),
        times(moment, each(lambda part: 2.0 * _column(part), b2)),
    )
    slope = times(side.weights, slope)
    # Nothing is not negative: people read gradients.
    keep = side.is_upper | (slope.high == 0.0)
    grad = _rows(each(lambda part: jnp.where(keep, part, -part), slope), side.order)
    pair_weight = _pair_weight(side)
    return finished(x, data, pair_weight, value), finished(x, data, pair_weight, grad)


def derivative_along(truncated: Truncated, x: Array, data: Data, z: Array) -> Array:
    """Return the Hessian times z."""
    side = _sides(truncated, x, data)
    # The Hessian sends constants to zero: without the common part, less is left to cancel.
    z = z - z.min()
    along = number(jnp.take_along_axis(jnp.broadcast_to(z, side.order.shape), side.order, -1))
    mass = _chosen(side.is_upper, side.below, side.above)
    pulls = _both_ways(times(side.lower, along), times(side.upper, along), side.heads)
    opposite = _chosen(side.is_upper, *pulls)
    pull = times(side.weights, minus(times(along, mass), opposite))
    curvature = each(lambda part: 2.0 * _column(part), side.terms.b2)
    return finished(x, data, _pair_weight(side), _rows(times(pull, curvature), side.order))


def finished(x: Array, data: Data, pair_weight: Array, a: Number) -> Array:
    """Divide by the weight of all pairs for the mean; NaN where a score is not finite."""
    out = a.high + a.low
    out = out / jnp.where(data.mean & (pair_weight > 0.0), pair_weight, 1.0)
    # At an end that no pair spans, or without a weight, it would go unnoticed.
    return jnp.where(jnp.isfinite(x).all(), out, jnp.nan)


def _sides(truncated: Truncated, x: Array, data: Data) -> _Side:
    n_terms = len(truncated)
    shape = (n_terms, x.shape[0])
    positive = jnp.broadcast_to(data.positive, shape)

    def shift_of(part: Array) -> Array:
        return jnp.where(positive, 0.0, _column(part))

    place = plus(number(jnp.broadcast_to(x, shape)), each(shift_of, data.terms.shift))
    row = lax.broadcasted_iota(jnp.int32, shape, 1)
    # A tied negative comes first: a pair on the knot is not above it.
    keys = [*place, positive]
    if data.groups is not None:
        keys.insert(0, jnp.broadcast_to(data.groups, shape))
    *keys, order = lax.sort((*keys, row), dimension=1, num_keys=len(keys))
    high, low, is_pos = keys[-3:]
    gap = plus(two_sum(high, -jnp.roll(high, 1, -1)), number(low - jnp.roll(low, 1, -1)))
    heads = row == 0
    if data.groups is not None:
        heads |= keys[0] != jnp.roll(keys[0], 1, -1)

    # A term without a knot has a second side.
    second = tuple(i for i, has_knot in enumerate(truncated) if not has_knot)
    of_side = np.array((*range(n_terms), *second))
    flip = (np.arange(of_side.size) >= n_terms)[:, None]
    order, heads, is_upper = order[of_side], heads[of_side], is_pos[of_side] == flip
    w = number(jnp.ones_like(x)[order] if data.weights is None else data.weights[order])
    lower = each(lambda part: jnp.where(is_upper, 0.0, part), w)
    upper = each(lambda part: jnp.where(is_upper, part, 0.0), w)
    below, above = _both_ways(lower, upper, heads)
    # A gap that no pair spans may be far wider than all others: it would leave rounding errors.
    spanned = (_before(below, heads).high > 0.0) & (above.high > 0.0)
    gap = each(lambda part: jnp.where(spanned, part[of_side], 0.0), gap)
    terms = Terms(*(each(lambda part: part[of_side], b) for b in data.terms))
    sign = number(jnp.where(flip[:, 0], -1.0, 1.0).astype(x.dtype))
    terms = terms._replace(b1=times(terms.b1, sign))
    return _Side(order, is_upper, heads, gap, w, lower, upper, below, above, terms)


def _pair_weight(side: _Side) -> Array:
    """Return the weight of all pairs, whichever side they are on."""
    below, above, heads = (part[0] for part in (side.below.high, side.above.high, side.heads))
    head = lax.cummax(jnp.where(heads, jnp.arange(heads.size), 0))
    return total(number(jnp.where(_tails(heads), below * above[head], 0.0))).high


def _both_ways(up: Number, down: Number, heads: Array) -> tuple[Number, Number]:
    """Return the sums of `up` from the head of its group, and those of `down` to its end."""
    parts = [jnp.stack([a, b[..., ::-1]]) for a, b in zip(up, down, strict=True)]
    starts = jnp.stack([heads, _tails(heads)[..., ::-1]])
    sums = prefix(Number(*parts), starts)
    return each(lambda part: part[0], sums), each(lambda part: part[1][..., ::-1], sums)


def _before(a: Number, heads: Array) -> Number:
    """Return the entry of the row before, zero at the head of a group."""
    return each(lambda part: jnp.where(heads, 0.0, jnp.roll(part, 1, -1)), a)


def _after(a: Number, heads: Array) -> Number:
    """Return the entry of the row after, zero at the end of a group."""
    return each(lambda part: jnp.where(_tails(heads), 0.0, jnp.roll(part, -1, -1)), a)


def _tails(heads: Array) -> Array:
    # The last row is followed by the first one, which is a head.
    return jnp.roll(heads, -1, -1)


def _chosen(where: Array, a: Number, b: Number) -> Number:
    return Number(jnp.where(where, a.high, b.high), jnp.where(where, a.low, b.low))


def _column(part: Array) -> Array:
    return part[:, None]


def _rows(a: Number, order: Array) -> Number:
    """Bring sorted rows back to their places, and add up the sides."""
    side = lax.broadcasted_iota(jnp.int32, order.shape, 0)
    placed = each(
        lambda part: jnp.zeros_like(part).at[side, order].set(part, unique_indices=True), a
    )
    return reduce(plus, map(Number, *placed))

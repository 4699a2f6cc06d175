"""Running sums of exponentials, with loops that XLA compiles once.

The mathematics is that of `everypair.arrays.exponential_sums`: all blocks are passed at the same
time, from zero; the sums at their ends are carried from block to block; and from there all blocks
are passed once more.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from everypair.arrays.double_double import Arrays, Number, each
from everypair.arrays.exponential_sums import distances


class _Sums(NamedTuple):
    """The sums A and, if they are needed, B, of shape (K, m, tracks, ..., blocks)."""

    a: Number
    b: Number | None


def in_blocks(
    xp: Arrays,
    position: Number,
    start: Array | None,
    rate: Number,
    weights: Number,
    c: Number,
    e: Number | None,
) -> Number:
    """Return what `everypair.arrays.exponential_sums.exponential_sums` does."""
    n, n_powers = position.high.shape[-1], c.high.shape[-1]
    length = math.isqrt(n - 1) + 1
    distance = distances(xp, position, start, rate)

    def columns(a: Number) -> Number:
        """Return the rows of all blocks in turn, of shape (length, ..., blocks)."""

        def cut(part: Array) -> Array:
            padded = jnp.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, -n % length)])
            return jnp.moveaxis(padded.reshape(*part.shape[:-1], -1, length), -1, 0)

        return each(cut, a)

    def powers(u: Number) -> Number:
        """Return exp(-k u) for k = 1 to K, with dimensions for K and for the m weights in front."""
        factors = [xp.exp(each(lambda part: -part, u))]
        while (k := len(factors)) < n_powers:
            factors.append(xp.times(factors[k // 2], factors[(k - 1) // 2]))
        return each(lambda part: part[:, None], xp.stacked(factors))

    def moved(sums: _Sums, u: Number) -> _Sums:
        factors = powers(u)
        b = sums.b
        if b is not None:
            b = xp.times(xp.plus(b, xp.times(sums.a, u)), factors)
        return _Sums(xp.times(sums.a, factors), b)

    def add_row(sums: _Sums, row: tuple[Number, Number]) -> _Sums:
        sums = moved(sums, row[0])
        return sums._replace(a=xp.plus(sums.a, row[1]))

    def add_block(sums: _Sums, block: tuple[_Sums, Number]) -> tuple[_Sums, _Sums]:
        ends, span = block
        return jax.tree.map(xp.plus, moved(sums, span), ends, is_leaf=_is_number), sums

    def contracted(sums: _Sums) -> Number:
        def of_entry(c: Number, a: Number) -> Number:
            out = xp.contract(c, each(lambda part: part.reshape(n_powers, -1), a))
            return each(lambda part: part.reshape(-1, *a.high.shape[1:]), out)

        def of_part(c: Number, a: Number) -> Number:
            m, n_tracks = c.high.shape[:2]
            parts = [
                [
                    of_entry(_entry(c, (i, j)), _entry(a, (slice(None), i, j)))
                    for j in range(n_tracks)
                ]
                for i in range(m)
            ]
            return xp.stacked([xp.stacked(of_weights) for of_weights in parts])

        out = of_part(c, sums.a)
        return out if e is None or sums.b is None else xp.plus(out, of_part(e, sums.b))

    rows = columns(distance), columns(_filled(xp, weights))
    shape = (n_powers, *rows[1].high.shape[1:])
    zeros = _filled(xp, Number(jnp.zeros(shape, position.high.dtype)))
    zero_sums = _Sums(zeros, None if e is None else zeros)
    ends = lax.scan(lambda sums, row: (add_row(sums, row), None), zero_sums, rows)[0]
    no_span = each(lambda part: jnp.zeros_like(part[0]), rows[0])
    spans = lax.scan(lambda span, u: (xp.plus(span, u), None), no_span, rows[0])[0]
    blocks = jax.tree.map(lambda part: jnp.moveaxis(part, -1, 0), (ends, spans))
    first = jax.tree.map(lambda part: jnp.zeros_like(part[0]), blocks[0])
    before = jax.tree.map(
        lambda part: jnp.moveaxis(part, 0, -1), lax.scan(add_block, first, blocks)[1]
    )

    def output(sums: _Sums, row: tuple[Number, Number]) -> tuple[_Sums, Number]:
        sums = add_row(sums, row)
        return sums, contracted(sums)

    out: Number = lax.scan(output, before, rows)[1]
    return each(lambda part: jnp.moveaxis(part, 0, -1).reshape(*part.shape[1:-1], -1)[..., :n], out)


def _entry(a: Number, index: Any) -> Number:
    return each(lambda part: part[index], a)


def _is_number(value: Any) -> bool:
    return isinstance(value, Number)


def _filled(xp: Arrays, a: Number) -> Number:
    """Return a number with the parts that sums have, which loops need."""
    if not xp.compensated:
        return Number(a.high)
    return a if a.low is not None else Number(a.high, jnp.zeros_like(a.high))

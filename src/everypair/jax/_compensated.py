"""Numbers made of two floats, so that sums in single precision keep the digits of double.

A `Number` stands for ``high + low``, where the low part is what rounding took off the high one.

Compilers may contract ``a * b + c`` into one operation that rounds once, and one copy of an
expression and not another. So every product whose rounding would matter here is exact by itself: it
is one of two halves, cut by their bits. What is left to contract is far below the last digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax.typing import ArrayLike

    _Runs = tuple["Number", Array]

__all__ = ["Number", "each", "minus", "number", "plus", "prefix", "times", "total", "two_sum"]

# What keeps the upper half of a mantissa: the product of two such halves is exact.
_UPPER: dict[int, Any] = {4: np.uint32(0xFFFFF000), 8: np.uint64(0xFFFFFFFFF8000000)}
# Long enough that few blocks are left, short enough that an accelerator's lanes are all at work.
_BLOCK = 32
_FEW = 1024


class Number(NamedTuple):
    """An array of numbers ``high + low``."""

    high: Array
    low: Array


def number(a: Array) -> Number:
    """Return floats as numbers."""
    return Number(a, jnp.zeros_like(a))


def each(function: Callable[[Array], Array], a: Number) -> Number:
    """Apply a rearrangement to both parts."""
    return Number(function(a.high), function(a.low))


def two_sum(a: Array, b: Array) -> Number:
    """Return the rounded sum and exactly what the rounding left out (Knuth)."""
    s = a + b
    of_b = s - a
    return Number(s, (a - (s - of_b)) + (b - of_b))


def plus(a: Number, b: Number) -> Number:
    """Return a + b."""
    high, low = two_sum(a.high, b.high)
    return _normal(high, low + (a.low + b.low))


def minus(a: Number, b: Number) -> Number:
    """Return a - b."""
    return plus(a, each(jnp.negative, b))


def times(a: Number, b: Number) -> Number:
    """Return a * b."""
    a_upper, a_lower = _halves(a.high)
    b_upper, b_lower = _halves(b.high)
    middle = two_sum(a_upper * b_lower, a_lower * b_upper)
    high, low = two_sum(a_upper * b_upper, middle.high)
    rest = middle.low + a_lower * b_lower
    return _normal(high, low + (rest + (a.high * b.low + a.low * b.high)))


def total(a: Number) -> Number:
    """Return the sum of all entries."""
    a = each(jnp.ravel, a)
    while a.high.size > 1:
        a = lax.scan(lambda x, y: (plus(x, y), None), *_columns(a))[0]
    return each(lambda part: part[0], a)


def prefix(a: Number, starts: Array) -> Number:
    """Return the sums along the last dimension up to each entry, itself included.

    They start anew wherever `starts` says so, which has the same shape. Blocks of many rows are
    summed side by side, then few rows, or the sums of blocks, in doubling strides. All of these are
    loops: a tree of sums, written out, takes longer to compile than most batches take to compute.
    """
    n = a.high.shape[-1]
    if n <= _FEW:
        return _in_doubling_strides((a, starts))[0]
    nothing, columns = _columns((a, starts))
    blocks, inside = lax.scan(lambda x, y: (_joined(x, y),) * 2, nothing, columns)
    before = jax.tree.map(lambda part: _delayed(part, 1), _in_doubling_strides(blocks))
    sums: Number = jax.vmap(_joined, (None, 0))(before, inside)[0]
    return each(
        lambda part: jnp.moveaxis(part, 0, -1).reshape(*a.high.shape[:-1], -1)[..., :n], sums
    )


def _joined(x: _Runs, y: _Runs) -> _Runs:
    """Return the sums of x followed by y, and whether anything starts in there."""
    summed = plus(x[0], y[0])
    later = (jnp.where(y[1], new, old) for new, old in zip(y[0], summed, strict=True))
    return Number(*later), x[1] | y[1]


def _in_doubling_strides(runs: _Runs) -> _Runs:
    def reach_twice_as_far(i: Array, sums: _Runs) -> _Runs:
        return _joined(jax.tree.map(lambda part: _delayed(part, jnp.left_shift(1, i)), sums), sums)

    sums: _Runs = lax.fori_loop(0, runs[1].shape[-1].bit_length(), reach_twice_as_far, runs)
    return sums


def _delayed(part: Array, by: ArrayLike) -> Array:
    """Move entries along the last dimension, zeros first; by at most its length."""
    n = part.shape[-1]
    padded = jnp.concatenate([jnp.zeros_like(part), part], -1)
    return lax.dynamic_slice_in_dim(padded, n - by, n, -1)


def _columns(rows: Any) -> tuple[Any, Any]:
    """Cut the last dimension into blocks; return zeros for each, and their entries in turn."""

    def cut(part: Array) -> Array:
        padding = [(0, 0)] * (part.ndim - 1) + [(0, -part.shape[-1] % _BLOCK)]
        padded = jnp.pad(part, padding)
        return jnp.moveaxis(padded.reshape(*part.shape[:-1], -1, _BLOCK), -1, 0)

    columns = jax.tree.map(cut, rows)
    return jax.tree.map(lambda part: jnp.zeros_like(part[0]), columns), columns


def _normal(high: Array, low: Array) -> Number:
    s = high + low
    return Number(s, low - (s - high))


def _halves(a: Array) -> tuple[Array, Array]:
    mask = _UPPER[a.dtype.itemsize]
    upper = lax.bitcast_convert_type(lax.bitcast_convert_type(a, mask.dtype) & mask, a.dtype)
    return upper, a - upper

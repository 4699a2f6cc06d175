"""The pair sums in JAX operations of static shape.

XLA may contract ``a * b + c`` into one operation that rounds once, in one copy of an expression and
not in another. So each product whose rounding matters here is exact by itself: it is a product of
two halves of a mantissa, cut by their bits. What is left to contract is far below the last digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from everypair.arrays.double_double import Arrays, Number, each, two_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax.typing import ArrayLike

    from everypair.arrays.runs import Runs

    _Sums = tuple[Number, Array]

__all__ = ["JaxArrays"]

# Long enough that few blocks are left, short enough that an accelerator's lanes are all at work.
_BLOCK = 32
_FEW = 1024


class JaxArrays(Arrays):
    """The operations of JAX for arrays of this type."""

    where = staticmethod(jnp.where)
    concatenate = staticmethod(jnp.concatenate)
    zeros_like = staticmethod(jnp.zeros_like)
    isfinite = staticmethod(jnp.isfinite)
    broadcast = staticmethod(jnp.broadcast_to)

    def __init__(self, dtype: Any) -> None:
        super().__init__(compensated=True)
        info = jnp.finfo(dtype)
        self.mantissa_bits = info.nmant
        self.float_range = (float(info.tiny), float(info.max))
        self._integers = jnp.int64 if info.bits == 64 else jnp.int32

    def as_uint8(self, a: Array) -> Array:
        return a.astype(jnp.uint8)

    def column(self, factors: Any) -> Number:
        return each(lambda part: part[:, None], factors)

    def scaled(self, a: Number, factors: Any) -> Number:
        return self.times(a, self.column(factors))

    def keep_bits(self, a: Array, dropped: int) -> Array:
        bits = lax.bitcast_convert_type(a, self._integers) & -(1 << dropped)
        return lax.bitcast_convert_type(bits, a.dtype)

    def two_product(self, a: Array, b: Array) -> Number:
        half = (self.mantissa_bits + 2) // 2
        a_high, b_high = self.keep_bits(a, half), self.keep_bits(b, half)
        a_low, b_low = a - a_high, b - b_high
        middle = two_sum(a_high * b_low, a_low * b_high)
        product = two_sum(a_high * b_high, middle.high)
        return Number(product.high, product.low + (middle.low + a_low * b_low))

    def order(self, keys: Sequence[Array]) -> Array:
        rows = lax.broadcasted_iota(jnp.int32, keys[0].shape, keys[0].ndim - 1)
        return lax.sort((*reversed(keys), rows), num_keys=len(keys))[-1]

    def gather(self, a: Array, index: Array) -> Array:
        return jnp.take_along_axis(a, jnp.broadcast_to(index, a.shape), -1)

    def scatter(self, a: Array, index: Array) -> Array:
        if a.ndim == 1:
            return jnp.zeros_like(a).at[index].set(a, unique_indices=True)
        term = lax.broadcasted_iota(jnp.int32, index.shape, 0)
        return jnp.zeros_like(a).at[term, index].set(a, unique_indices=True)

    def bounds(self, groups: Array) -> tuple[Array, Array]:
        rows = self.row_numbers(groups)
        is_head = (rows == 0) | (groups != jnp.roll(groups, 1))
        is_tail = jnp.roll(is_head, -1)
        start = lax.cummax(jnp.where(is_head, rows, 0))
        return start, lax.cummin(jnp.where(is_tail, rows, groups.size), reverse=True)

    def row_numbers(self, like: Array) -> Array:
        return jnp.arange(like.shape[-1], dtype=jnp.int32)

    def roll(self, a: Array, by: int) -> Array:
        return jnp.roll(a, by, -1)

    def flip(self, a: Array) -> Array:
        return a[..., ::-1]

    def max(self, a: Array) -> Array:
        return a.max(-1, keepdims=True)

    def total(self, a: Number, *, counts: bool = False) -> Number:
        a = _filled(a)
        while a.high.shape[-1] > 1:
            a = lax.scan(lambda x, y: (self.plus(x, y), None), *_columns(a))[0]
        return a

    def prefix(self, a: Number, runs: Runs, *, counts: bool = False) -> Number:
        """Return the sums from the first row of each group up to each row.

        Blocks of rows are summed side by side, then the sums of blocks in doubling strides. Both are
        loops: a tree of sums, written out, takes longer to compile than most batches to compute.
        """
        return self._prefix(_filled(a), jnp.broadcast_to(runs.is_head, a.high.shape))

    def both_ways(
        self, up: Number, down: Number, runs: Runs, *, counts: bool = False
    ) -> tuple[Number, Number]:
        # One loop for both directions, which compiles in half the time.
        parts = zip(_filled(up), _filled(down), strict=True)
        heads = jnp.stack([runs.is_head, runs.is_tail[::-1]])[:, None]
        stacked = Number(*(jnp.stack([a, b[..., ::-1]]) for a, b in parts))
        sums = self._prefix(stacked, jnp.broadcast_to(heads, stacked.high.shape))
        return each(lambda part: part[0], sums), each(lambda part: part[1][..., ::-1], sums)

    def _prefix(self, a: Number, heads: Array) -> Number:
        n = a.high.shape[-1]
        if n <= _FEW:
            return self._in_doubling_strides((a, heads))[0]
        nothing, columns = _columns((a, heads))
        blocks, inside = lax.scan(lambda x, y: (self._joined(x, y),) * 2, nothing, columns)
        before = jax.tree.map(lambda part: _delayed(part, 1), self._in_doubling_strides(blocks))
        sums: Number = jax.vmap(self._joined, (None, 0))(before, inside)[0]
        return each(
            lambda part: jnp.moveaxis(part, 0, -1).reshape(*a.high.shape[:-1], -1)[..., :n], sums
        )

    def _joined(self, x: _Sums, y: _Sums) -> _Sums:
        """Return the sums of x followed by y, and whether a group starts in either."""
        summed = self.plus(x[0], y[0])
        later = (jnp.where(y[1], new, old) for new, old in zip(y[0], summed, strict=True))
        return Number(*later), x[1] | y[1]

    def _in_doubling_strides(self, sums: _Sums) -> _Sums:
        def reach_twice_as_far(i: Array, sums: _Sums) -> _Sums:
            by = jnp.left_shift(1, i)
            return self._joined(jax.tree.map(lambda part: _delayed(part, by), sums), sums)

        out: _Sums = lax.fori_loop(0, sums[1].shape[-1].bit_length(), reach_twice_as_far, sums)
        return out


def _filled(a: Number) -> Number:
    """Return a number with a low part, which loops need."""
    return a if a.low is not None else Number(a.high, jnp.zeros_like(a.high))


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

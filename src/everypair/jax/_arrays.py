"""The pair sums in JAX operations of static shape.

XLA may contract ``a * b + c`` into one operation that rounds once, in one copy of an expression and
not in another. So each product whose rounding matters here is exact by itself: it is a product of
two halves of a mantissa, cut by their bits. What is left to contract is far below the last digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from everypair.arrays.double_double import Arrays, Number, each, two_sum
from everypair.jax._exponential_sums import in_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax.typing import ArrayLike

    from everypair.arrays.rows import Runs

    _Sums = tuple[Number, Array]

# Long enough that few blocks are left, short enough that an accelerator's lanes are all at work.
_BLOCK = 32
_FEW = 1024


class JaxArrays(Arrays):
    """The operations of JAX for arrays of this type."""

    where = staticmethod(jnp.where)
    isfinite = staticmethod(jnp.isfinite)
    zeros_like = staticmethod(jnp.zeros_like)
    concatenate = staticmethod(jnp.concatenate)
    stack = staticmethod(jnp.stack)
    broadcast = staticmethod(jnp.broadcast_to)
    roll = staticmethod(lambda a, by: jnp.roll(a, by, -1))
    flip = staticmethod(lambda a: a[..., ::-1])
    max = staticmethod(lambda a: a.max(-1, keepdims=True))
    group_max = staticmethod(lambda a, start: jnp.full_like(a, -jnp.inf).at[start].max(a)[start])
    as_uint8 = staticmethod(lambda a: a.astype(jnp.uint8))
    row_numbers = staticmethod(lambda a: jnp.arange(a.shape[-1], dtype=jnp.int32))
    column = staticmethod(lambda factors: each(lambda part: part[:, None], factors))
    gather = staticmethod(lambda a, i: jnp.take_along_axis(a, jnp.broadcast_to(i, a.shape), -1))

    exponential = staticmethod(jnp.exp)
    floor = staticmethod(jnp.floor)
    running_count = staticmethod(lambda a: jnp.cumsum(a, -1, dtype=jnp.int32))
    running_product = staticmethod(lambda a: jnp.cumprod(a, -1))
    exponential_sums = staticmethod(in_blocks)
    repeat = staticmethod(lambda n, function, state: lax.fori_loop(0, n, function, state))

    def __init__(self, dtype: Any) -> None:
        super().__init__(compensated=True)
        self._dtype = dtype
        info: Any = np.finfo(dtype)
        self.mantissa_bits = info.nmant
        self.float_range = (float(info.tiny), float(info.max))

    def scaled(self, a: Number, factors: Number) -> Number:
        """Return `a` times one factor per term."""
        return self.times(a, self.column(factors))

    def two_product(self, a: Array, b: Array) -> Number:
        """Return a product and its rounding error, made of products that are exact."""
        (a_high, a_low), (b_high, b_low) = self.halves(a), self.halves(b)
        middle = two_sum(a_high * b_low, a_low * b_high)
        product = two_sum(a_high * b_high, middle.high)
        return Number(product.high, product.low + (middle.low + a_low * b_low))

    def constants(self, a: Any) -> Number:
        """See `Arrays`; what is not a Number yet holds small whole numbers."""
        return a if isinstance(a, Number) else Number(jnp.asarray(a, self._dtype))

    @staticmethod
    def keep_bits(a: Array, dropped: int) -> Array:
        """See `Arrays`."""
        integers = jnp.int32 if a.dtype == jnp.float32 else jnp.int64
        bits = lax.bitcast_convert_type(a, integers) & -(1 << dropped)
        return lax.bitcast_convert_type(bits, a.dtype)

    @staticmethod
    def order(keys: Sequence[Array]) -> Array:
        """See `Arrays`."""
        rows = lax.broadcasted_iota(jnp.int32, keys[0].shape, keys[0].ndim - 1)
        return lax.sort((*reversed(keys), rows), num_keys=len(keys))[-1]

    @staticmethod
    def scatter(a: Array, index: Array) -> Array:
        """See `Arrays`."""
        return jnp.put_along_axis(jnp.zeros_like(a), index, a, -1, inplace=False)

    @staticmethod
    def bounds(groups: Array) -> tuple[Array, Array]:
        """See `Arrays`."""
        rows = jnp.arange(groups.size, dtype=jnp.int32)
        is_head = (rows == 0) | (groups != jnp.roll(groups, 1))
        start = lax.cummax(jnp.where(is_head, rows, 0))
        last = jnp.where(jnp.roll(is_head, -1), rows, groups.size)
        return start, lax.cummin(last, reverse=True)

    def total(self, a: Number, *, counts: bool = False) -> Number:
        """Return the sum over the rows, with a last dimension of length 1."""
        if not self.compensated:
            return Number(a.high.sum(-1, keepdims=True))
        a = _filled(a)
        while a.high.shape[-1] > 1:
            a = lax.scan(lambda x, y: (self.plus(x, y), None), *_columns(a))[0]
        return a

    def prefix(self, a: Number, runs: Runs, *, counts: bool = False) -> Number:
        """Return the sums from the first row of each group up to each row.

        Blocks of rows are summed side by side, then the sums of blocks in doubling strides. Both
        are loops: a tree of sums, written out, compiles longer than most batches compute.
        """
        return self._prefix(_filled(a), jnp.broadcast_to(runs.is_head, a.high.shape))

    def _prefix(self, a: Number, heads: Array) -> Number:
        n = a.high.shape[-1]
        if n <= _FEW:
            return self._in_doubling_strides((a, heads))[0]
        start, columns = _columns((a, heads))
        blocks, inside = lax.scan(lambda x, y: (self._joined(x, y),) * 2, start, columns)
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

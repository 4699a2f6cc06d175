"""The pair sums in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.arrays import pair_sums, terms
from everypair.arrays.double_double import Number, each
from everypair.arrays.eager import SlicedSums

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from everypair.surrogates import PairTerm

    Floats = NDArray[np.float64]
    Array = NDArray[Any]

_BLOCK = 1 << 13


def evaluate(
    scores: Array,
    positive: NDArray[np.bool_],
    weights: Floats | None,
    offsets: NDArray[np.int64] | None,
    vector: Floats | None,
    pair_terms: tuple[PairTerm, ...],
    *,
    mean: bool,
    grad: bool,
    hess: bool,
) -> tuple[float, float, Floats | None, Floats | None, Floats | None]:
    """Return value, pair weight, gradient, diagonal Hessian and Hessian times vector.

    Rows of a group are contiguous, between `offsets`. What was not asked for is None.
    """
    compensated = pair_sums.needs_low_parts(
        wide=scores.dtype == np.float64,
        n_terms=len(pair_terms),
        weighted=weights is not None,
        grouped=offsets is not None,
    )
    # Scores that are huge, or hugely apart, may overflow: the result is inf, without a warning.
    with np.errstate(all="ignore"):
        value, pair_weight, *arrays = pair_sums.evaluate(
            NumpyArrays(compensated=compensated),
            scores.astype(np.float64, copy=False), positive, weights, _groups(offsets), vector,
            terms.by_kind(pair_terms, wide=scores.dtype == np.float64),
            mean=mean, grad=grad, hess=hess,
        )  # fmt: skip
    return float(value), float(pair_weight), *arrays


def concordance(
    scores: Array,
    positive: NDArray[np.bool_],
    weights: Floats | None,
    offsets: NDArray[np.int64] | None,
) -> tuple[float, float]:
    """Return the weight of the pairs in the right order, ties half, and that of all pairs.

    Both are over the same power of two, which weights of any size leave inside the range of floats.
    """
    with np.errstate(all="ignore"):
        right, pair_weight = pair_sums.concordance(
            NumpyArrays(compensated=True),
            scores.astype(np.float64, copy=False), positive, weights, _groups(offsets),
        )  # fmt: skip
    return float(right), float(pair_weight)


def _groups(offsets: NDArray[np.int64] | None) -> NDArray[np.intp] | None:
    if offsets is None:
        return None
    return np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))


def _in_blocks(function: Callable[[Number, Number], Number], a: Number, b: Number) -> Number:
    """Apply an elementwise operation to few rows at a time, so that its steps stay in cache."""
    n = max(a.high.shape[-1], b.high.shape[-1])
    if n <= _BLOCK:
        return function(a, b)

    def block(c: Number, rows: slice) -> Number:
        return c if c.high.shape[-1] == 1 else each(lambda part: part[..., rows], c)

    shape = np.broadcast_shapes(a.high.shape, b.high.shape)
    high, low = np.empty(shape), None
    for start in range(0, n, _BLOCK):
        rows = slice(start, start + _BLOCK)
        of_block = function(block(a, rows), block(b, rows))
        high[..., rows] = of_block.high
        if of_block.low is not None:
            low = np.empty(shape) if low is None else low
            low[..., rows] = of_block.low
    return Number(high, low)


class NumpyArrays(SlicedSums):
    """The operations of NumPy, in float64."""

    where = staticmethod(np.where)
    isfinite = staticmethod(np.isfinite)
    zeros_like = staticmethod(np.zeros_like)
    concatenate = staticmethod(np.concatenate)
    broadcast = staticmethod(np.broadcast_to)
    roll = staticmethod(lambda a, by: np.roll(a, by, -1))
    flip = staticmethod(lambda a: a[..., ::-1])
    sum = staticmethod(lambda a: a.sum(-1, keepdims=True))
    max = staticmethod(lambda a: a.max(-1, keepdims=True))
    cumsum = staticmethod(lambda a: a.cumsum(-1))
    as_uint8 = staticmethod(lambda a: a.astype(np.uint8))
    row_numbers = staticmethod(lambda a: np.arange(a.shape[-1]))
    column = staticmethod(lambda factors: Number(np.array(factors)[:, None]))
    gather = staticmethod(lambda a, i: np.take_along_axis(a, np.broadcast_to(i, a.shape), -1))

    exponential = staticmethod(np.exp)
    floor = staticmethod(np.floor)
    running_count = staticmethod(lambda a: a.cumsum(-1))
    running_sum = staticmethod(lambda a: a.cumsum(-1))
    running_product = staticmethod(lambda a: a.cumprod(-1))
    tensordot = staticmethod(lambda a, b: np.tensordot(a, b, 2))
    reverse = staticmethod(lambda a: a[::-1])
    constants = staticmethod(lambda a: Number(a))
    pick = staticmethod(lambda a, i: np.take(a, i, -1, mode="clip"))
    uncut = staticmethod(lambda a, n: np.moveaxis(a, 0, -1).reshape(*a.shape[1:-1], -1)[..., :n])

    @staticmethod
    def cut(a: Array, length: int) -> Array:
        """See `Arrays`."""
        missing = -a.shape[-1] % length
        if missing:
            a = np.concatenate([a, np.repeat(a[..., -1:], missing, -1)], -1)
        blocks = a.reshape(*a.shape[:-1], -1, length)
        return np.ascontiguousarray(np.moveaxis(blocks, -1, 0))

    def plus(self, a: Number, b: Number) -> Number:
        """Return a + b."""
        return _in_blocks(super().plus, a, b)

    def times(self, a: Number, b: Number) -> Number:
        """Return a * b."""
        return _in_blocks(super().times, a, b)

    @staticmethod
    def keep_bits(a: Array, dropped: int) -> Array:
        """See `Arrays`."""
        kept: Array = (a.view(np.int64) & -(1 << dropped)).view(np.float64)
        return kept

    @staticmethod
    def order(keys: list[Array]) -> Array:
        """See `Arrays`."""
        if len(keys) != 2:
            return np.lexsort(keys)
        # Sorting without stability is several times faster. Ties are put right afterwards.
        rank, value = keys
        order = np.argsort(value, -1)
        value = np.take_along_axis(value, order, -1)
        is_new = np.diff(value, axis=-1, prepend=np.nan) != 0.0
        if is_new.all():
            return order
        key = 3 * np.cumsum(is_new, -1) + np.take_along_axis(rank, order, -1)
        return np.take_along_axis(order, np.argsort(key, -1, kind="stable"), -1)

    @staticmethod
    def scatter(a: Array, index: Array) -> Array:
        """See `Arrays`."""
        out = np.empty_like(a)
        np.put_along_axis(out, index, a, -1)
        return out

    @staticmethod
    def bounds(groups: Array) -> tuple[Array, Array]:
        """See `Arrays`."""
        is_head = np.diff(groups, prepend=-1) != 0
        heads = np.append(np.flatnonzero(is_head), groups.size)
        number = np.cumsum(is_head)
        return heads[number - 1], heads[number] - 1

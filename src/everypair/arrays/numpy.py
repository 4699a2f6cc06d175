"""The pair sums in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.arrays import pair_sums, terms, uneven_groups
from everypair.arrays.double_double import Arrays, Number, each
from everypair.surrogates import KnotTerm, are_polynomials

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from everypair.surrogates import PairTerm

    Floats = NDArray[np.float64]
    Array = NDArray[Any]

_BLOCK = 1 << 13
_TINY, _LARGER = 2.0**-900, 2.0**200


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
    if are_polynomials(pair_terms) and _are_tiny(scores, pair_terms):
        # Products of denormal numbers and weights would lose digits. So distances are larger here,
        # and the surrogate by that to the power of its lowest degree.
        lowest = next(k for k in (0, 1, 2) if k == 2 or any(term[k + 1] for term in pair_terms))
        of_value, of_slope, of_bend = (_LARGER ** (lowest - k) for k in (0, 1, 2))
        larger_terms = tuple(
            KnotTerm(shift * _LARGER, b0 * of_value, b1 * of_slope, b2 * of_bend, truncated)
            for shift, b0, b1, b2, truncated in pair_terms
        )
        value, pair_weight, slopes, bends, products = evaluate(
            scores * _LARGER, positive, weights, offsets, vector, larger_terms,
            mean=mean, grad=grad, hess=hess,
        )  # fmt: skip
        with np.errstate(all="ignore"):
            return (
                value / of_value,
                pair_weight,
                None if slopes is None else slopes / of_slope,
                None if bends is None else bends / of_bend,
                None if products is None else products / of_bend,
            )
    if weights is not None and offsets is not None:

        def solve(rows: slice, group_weights: Floats) -> tuple[Any, ...]:
            of_rows = None if vector is None else vector[rows]
            return evaluate(
                scores[rows], positive[rows], group_weights, None, of_rows, pair_terms,
                mean=False, grad=grad, hess=hess,
            )  # fmt: skip

        if uneven_groups.are_uneven(positive, weights, offsets):
            result: tuple[Any, Any, Any, Any, Any]
            result = uneven_groups.sum_over_groups(solve, positive, weights, offsets, mean)
            return result
    compensated = pair_sums.needs_low_parts(
        pair_terms,
        wide=scores.dtype == np.float64,
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
    if weights is not None and offsets is not None:

        def solve(rows: slice, group_weights: Floats) -> tuple[Any, ...]:
            return concordance(scores[rows], positive[rows], group_weights, None)

        if uneven_groups.are_uneven(positive, weights, offsets):
            share, pair_weight = uneven_groups.sum_over_groups(
                solve, positive, weights, offsets, mean=True
            )
            return share, float(pair_weight > 0.0)
    with np.errstate(all="ignore"):
        right, pair_weight = pair_sums.concordance(
            NumpyArrays(compensated=True),
            scores.astype(np.float64, copy=False), positive, weights, _groups(offsets),
        )  # fmt: skip
    return float(right), float(pair_weight)


def _are_tiny(scores: Array, pair_terms: tuple[KnotTerm, ...]) -> bool:
    """Return whether all scores and shifts are next to the denormal numbers, but not all are 0."""
    shift = max(abs(term[0]) for term in pair_terms)
    return shift < _TINY and 0.0 < max(shift, float(abs(scores).max())) < _TINY


def _groups(offsets: NDArray[np.int64] | None) -> NDArray[np.intp] | None:
    if offsets is None:
        return None
    return np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))


def _gathered(a: Array, index: Array) -> Array:
    """Return the entries of the last dimension at (..., n) places."""
    if index.size == index.shape[-1]:  # for speed
        return a.take(index.reshape(-1), -1)
    return np.take_along_axis(a, np.broadcast_to(index, a.shape), -1)


class NumpyArrays(Arrays):
    """The operations of NumPy, in float64."""

    reads_values = True

    where = staticmethod(np.where)
    isfinite = staticmethod(np.isfinite)
    zeros_like = staticmethod(np.zeros_like)
    concatenate = staticmethod(np.concatenate)
    stack = staticmethod(lambda arrays: np.concatenate([a[None] for a in arrays]))
    broadcast = staticmethod(np.broadcast_to)
    roll = staticmethod(lambda a, by: np.concatenate([a[..., -by:], a[..., :-by]], -1))
    flip = staticmethod(lambda a: a[..., ::-1])
    sum = staticmethod(lambda a: a.sum(-1, keepdims=True))
    max = staticmethod(lambda a: a.max(-1, keepdims=True))
    cumsum = staticmethod(lambda a: a.cumsum(-1))
    as_uint8 = staticmethod(lambda a: a.astype(np.uint8))
    row_numbers = staticmethod(lambda a: np.arange(a.shape[-1]))
    column = staticmethod(lambda factors: Number(np.array(factors)[:, None]))
    gather = staticmethod(_gathered)

    exponential = staticmethod(np.exp)
    floor = staticmethod(np.floor)
    running_count = staticmethod(lambda a: a.cumsum(-1))
    running_product = staticmethod(lambda a: a.cumprod(-1))
    constants = staticmethod(lambda a: Number(np.asarray(a)))

    @staticmethod
    def blocks(a: Array, length: int) -> Array:
        """See `Arrays`."""
        padded = np.concatenate([a, np.zeros((*a.shape[:-1], -a.shape[-1] % length))], axis=-1)
        columns = padded.reshape(*a.shape[:-1], -1, length)
        return np.ascontiguousarray(columns.transpose(a.ndim, *range(a.ndim)))

    @staticmethod
    def group_max(a: Array, start: Array) -> Array:
        """See `Arrays`."""
        out = np.full_like(a, -np.inf)
        np.maximum.at(out, start, a)
        return out[start]

    def plus(self, a: Number, b: Number) -> Number:
        """Return a + b."""
        return self._blockwise(super().plus, a, b)

    def times(self, a: Number, b: Number) -> Number:
        """Return a * b."""
        return self._blockwise(super().times, a, b)

    def split(self, a: Number, sigma: Number) -> Number:
        """See `Arrays`."""
        return self._blockwise(super().split, a, sigma)

    def _blockwise(
        self, function: Callable[[Number, Number], Number], a: Number, b: Number
    ) -> Number:
        """Apply an elementwise operation to few rows at a time, so that its steps stay in cache."""
        n = max(a.high.shape[-1], b.high.shape[-1])
        if n <= _BLOCK or not (self.compensated or a.low is not None):
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

    @staticmethod
    def keep_bits(a: Array, dropped: int) -> Array:
        """See `Arrays`."""
        result: Array = (a.view(np.int64) & -(1 << dropped)).view(np.float64)
        return result

    @staticmethod
    def order(keys: list[Array]) -> Array:
        """See `Arrays`."""
        # Sorting without stability is several times faster.
        if len(keys) != 2 or keys[0].dtype != np.uint8:
            order = np.argsort(keys[0], -1)
            for key in keys[1:]:
                along = np.argsort(_gathered(key, order), -1, kind="stable")
                order = _gathered(order, along)
            return order
        # Ties are put right afterwards.
        rank, value = keys
        order = np.argsort(value, -1)
        value = _gathered(value, order)
        is_new = np.diff(value, axis=-1, prepend=np.nan) != 0.0
        if is_new.all():
            return order
        key = 3 * np.cumsum(is_new, -1) + _gathered(rank, order)
        return _gathered(order, np.argsort(key, -1, kind="stable"))

    @staticmethod
    def scatter(a: Array, index: Array) -> Array:
        """See `Arrays`."""
        out = np.empty_like(a)
        if index.size == index.shape[-1]:  # for speed
            out[..., index.reshape(-1)] = a
        else:
            np.put_along_axis(out, index, a, -1)
        return out

    @staticmethod
    def bounds(groups: Array) -> tuple[Array, Array]:
        """See `Arrays`."""
        is_head = np.ones(groups.size, bool)
        np.not_equal(groups[1:], groups[:-1], out=is_head[1:])
        heads = np.flatnonzero(is_head)
        number = is_head.cumsum() - 1
        return heads[number], np.append(heads[1:], groups.size)[number] - 1

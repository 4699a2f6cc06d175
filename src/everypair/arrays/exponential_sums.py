"""Running sums of exponentials of distances, stable at any offset and any spread.

Rows are sorted by position. With u = rate (p_i - p_j), which is not negative, wanted are sums over
k = 1, ..., K of c_k A_k + e_k B_k, where

    A_k(i) = sum of w_j exp(-k u)          B_k(i) = sum of w_j u exp(-k u)

over the rows j up to i in the group of i. Moving on by a distance v multiplies A_k by exp(-k v),
and turns B_k into (B_k + v A_k) exp(-k v).

**Why it is stable.** Every factor is at most one, and for weights of one sign all addends have that
sign: nothing overflows, and nothing cancels before the sum over k. Distances are differences of
positions, rounded once, so an offset of all positions cancels first. The factor exp(-k v) has a
relative error of k v times that of a float, and those of consecutive steps add up to k u times it;
beyond k u = 745 the factor is zero.

**In blocks.** Rows are cut into blocks, and all blocks are passed at the same time, from zero. The
sums at the ends of blocks are themselves summed in this way, with the lengths of the blocks as
distances, and from there all blocks are passed once more. So a sum is the result of some hundred
steps, rather than of one step per row.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add, matmul, mul
from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.arrays.double_double import Number, each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from everypair.arrays.double_double import Arrays

    Array = Any
    Sums = Sequence[Any]  # A and, if they are needed, B

# Long blocks need few operations of NumPy on arrays that stay in cache. On a GPU, short ones do.
_FEW_ROWS, _LONGEST_BLOCK, _SHORT_BLOCK = 20, 512, 8
FAR = 1500.0  # exp(-FAR) is 0


def exponential_sums(
    xp: Arrays,
    position: Number,
    start: Array,
    rate: Number,
    weights: Number,
    c: Number,
    e: Number | None,
) -> Number:
    """Return the running sums of m weights of each row, along several tracks.

    Parameters
    ----------
    xp : Arrays
        Use one without low parts for float64: plain sums keep 13 digits.
    position : Number of shape (tracks, ..., n)
        Not decreasing inside a group.
    start : integers, which broadcast to this shape, or None
        The first row of the group of each row. None: all rows are one group.
    rate : Number
        Broadcasts against positions.
    weights : Number of shape (m, tracks, ..., n)
    c, e : Number of shape (m, tracks, outputs, K); `e` is None if all its entries are 0

    Returns
    -------
    Number of shape (m, tracks, outputs, ..., n)

    Examples
    --------
    The sum of exp(-distance) over each row and the rows before it:

    >>> from everypair.arrays.numpy import NumpyArrays
    >>> position, one = Number(np.log([[1.0, 2.0, 4.0]])), Number(np.ones((1, 1, 1, 1)))
    >>> xp, w = NumpyArrays(compensated=False), Number(np.ones((1, 1, 3)))
    >>> exponential_sums(xp, position, None, Number(np.ones(1)), w, one, None).high.round(6)
    array([[[[1.  , 1.5 , 1.75]]]])
    """
    m, n_tracks, n_outputs, n_powers = c.high.shape
    n, n_batches = weights.high.shape[-1], math.prod(weights.high.shape[2:-1])
    k = xp.constants(np.arange(1.0, n_powers + 1.0))
    exponents: Any = each(lambda part: -part.reshape(-1, 1), k)
    u: Any = distances(xp, position, start, rate)
    u = each(lambda part: part.reshape(n_tracks, 1, n_batches, n), u)
    w: Any = each(lambda part: part.reshape(m, n_tracks, 1, n_batches, n), weights)
    factors: Any = [c] if e is None else [c, e]
    operations: tuple[Any, ...] = xp.plus, xp.times, xp.contract, xp.exp
    forms: tuple[Any, ...] = each, xp.stacked, xp.unstacked
    if not xp.compensated:  # arrays instead of numbers, for speed
        u, w, exponents, *factors = (a.high for a in (u, w, exponents, *factors))
        operations = add, mul, matmul, xp.exponential
        forms = _applied, xp.stack, list
    plus, times, contract, exp = operations
    apply, stacked, unstacked = forms

    def step(sums: Sums, u: Any, added: Sums) -> Sums:
        """Return the sums at the rows, from those at the rows before."""
        powers = exp(times(u, exponents))
        a, *b = sums
        moved = [times(a, powers), *(times(plus(part, times(a, u)), powers) for part in b)]
        return [*map(plus, moved, added), *moved[len(added) :]]

    def output(sums: Sums) -> Sums:
        return [reduce(plus, map(contract, factors, sums))]

    def running(n: int, u: Any, added: Sums, output: Callable[[Sums], Sums]) -> Sums:
        """Return outputs of the sums at each of n rows, which are the last dimension."""
        length = _SHORT_BLOCK
        if xp.reads_values:
            length = n if n <= _FEW_ROWS else min(math.isqrt(n - 1) // 2 + 1, _LONGEST_BLOCK)
        n_columns = n_batches * -(-n // length)

        def columns(a: Any) -> Any:
            return unstacked(
                apply(lambda a: xp.blocks(a, length).reshape(length, *a.shape[:-2], n_columns), a)
            )

        def rows(a: Array) -> Array:
            shape = (*a.shape[1:-1], n_batches, -1)
            a = a.reshape(length, -1, n_columns).swapaxes(0, 1).swapaxes(1, 2)
            return a.reshape(shape)[..., :n]

        def of_batches(a: Any) -> Any:
            return apply(lambda a: a.reshape(*a.shape[:-1], n_batches, -1), a)

        def of_rows_before(a: Array) -> Array:
            a = xp.where(xp.row_numbers(a) == 0, 0.0, xp.roll(a, 1))
            return a.reshape(*a.shape[:-2], n_columns)

        of_u, of_added = columns(u), list(zip(*map(columns, added), strict=True))
        shape = (m, n_tracks, n_powers, n_columns)
        zeros = apply(lambda a: xp.zeros_like(xp.broadcast(a, shape)), of_added[0][0])
        sums: Sums = [zeros] * len(factors)
        if n > length:
            for row in zip(of_u, of_added, strict=True):
                sums = step(sums, *row)
            span, ends = of_batches(reduce(plus, of_u)), list(map(of_batches, sums))
            sums = [apply(of_rows_before, a) for a in running(-(-n // length), span, ends, list)]
        outputs = []
        for row in zip(of_u, of_added, strict=True):
            sums = step(sums, *row)
            outputs.append(output(sums))
        return [apply(rows, stacked(parts)) for parts in zip(*outputs, strict=True)]

    (out,) = running(n, u, [w], output)
    shape = (m, n_tracks, n_outputs, *weights.high.shape[2:])
    out = out if xp.compensated else Number(out)
    return each(lambda part: part.reshape(shape), out)


def _applied(function: Callable[[Array], Array], a: Array) -> Array:
    return function(a)


def distances(xp: Arrays, position: Number, start: Array, rate: Number) -> Number:
    """Return the rate times the distance of each row from the row before, or `FAR` and no more."""
    before = each(lambda part: xp.roll(part, 1), position)
    u = xp.times(xp.minus(position, before), rate)
    is_far = (xp.row_numbers(u.high) == (0 if start is None else start)) | (u.high >= FAR)
    # Rounding may leave a distance below 0, and infinity less infinity is no number.
    is_near = ~is_far & (u.high > 0.0)
    u = each(lambda part: xp.where(is_near, part, 0.0), u)
    return Number(xp.where(is_far, FAR, u.high), u.low)

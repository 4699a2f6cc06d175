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

**In strides**, for libraries that run many rows at once: if A holds the sums over the m rows up to
each row, then the sums over 2 m rows are A plus that of m rows before, moved on by the distance to
there.

**In blocks**, for NumPy: rows are cut into blocks, and all blocks are passed through at the same
time, from zero. The sums at the ends of blocks are carried from block to block, and from there all
blocks are passed through once more. So a sum is the result of some hundred steps, rather than of
one step per row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from everypair.arrays.double_double import Number, each

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from everypair.arrays.double_double import Arrays

    Array = Any
    Floats = NDArray[np.float64]

_LONGEST_BLOCK = 512
_FAR = 1500.0  # exp(-_FAR) is 0


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
    if xp.reads_values:
        return Number(
            _in_blocks(
                position, start, rate.high, weights.high, c.high, None if e is None else e.high
            )
        )
    sums = xp.exponential_sums or _in_strides
    return cast("Number", sums(xp, position, start, rate, weights, c, e))


class _Sums(NamedTuple):
    """The sums A and, if they are needed, B, of shape (K, m, tracks, ..., n)."""

    a: Number
    b: Number | None


def _in_strides(
    xp: Arrays,
    position: Number,
    start: Array,
    rate: Number,
    weights: Number,
    c: Number,
    e: Number | None,
) -> Number:
    rows, n_powers = xp.row_numbers(position.high), c.high.shape[-1]
    exponents = xp.constants(-np.arange(1.0, n_powers + 1.0))
    shape = (n_powers, *[1] * position.high.ndim)
    exponents = each(lambda part: part.reshape(shape), exponents)

    def double(i: Any, sums: _Sums) -> _Sums:
        stride = 1 << i

        def earlier(a: Number) -> Number:
            return each(lambda part: xp.roll(part, stride), a)

        u = xp.times(xp.minus(position, earlier(position)), rate)
        is_near = (rows - stride >= (0 if start is None else start)) & (u.high < _FAR)
        # Rounding may leave a distance below 0.
        u = each(lambda part: xp.where(is_near & (u.high > 0.0), part, 0.0), u)
        factors = xp.exp(xp.times(u, exponents))
        factors = each(lambda part: xp.where(is_near, part, 0.0)[:, None], factors)
        a, b = earlier(sums.a), None
        if sums.b is not None:
            moved = xp.plus(earlier(sums.b), xp.times(a, u))
            b = xp.plus(sums.b, xp.times(moved, factors))
        return _Sums(xp.plus(sums.a, xp.times(a, factors)), b)

    a = each(lambda part: xp.broadcast(part, (n_powers, *part.shape)), weights)
    # Loops of JAX need the same parts before and after each step.
    if not xp.compensated:
        a = Number(a.high)
    elif a.low is None:
        a = Number(a.high, xp.zeros_like(a.high))
    n_strides = (position.high.shape[-1] - 1).bit_length()
    sums: _Sums = xp.repeat(
        n_strides, double, _Sums(a, None if e is None else each(xp.zeros_like, a))
    )

    def contracted(i: int, j: int) -> Number:
        def of_pair(c: Number, sums: Number) -> Number:
            return xp.contract(
                each(lambda part: part[i, j], c), each(lambda part: part[:, i, j], sums)
            )

        out = of_pair(c, sums.a)
        return out if e is None or sums.b is None else xp.plus(out, of_pair(e, sums.b))

    m, n_tracks = c.high.shape[:2]
    return xp.stacked([xp.stacked([contracted(i, j) for j in range(n_tracks)]) for i in range(m)])


def _in_blocks(
    position: Number,
    start: Array,
    rate: Floats,
    weights: Floats,
    c: Floats,
    e: Floats | None,
) -> Floats:
    is_used = c.any((0, 1, 2)) | (False if e is None else e.any((0, 1, 2)))
    n_powers = int(np.flatnonzero(is_used).max(initial=0)) + 1
    c, e = c[..., :n_powers], None if e is None else e[..., :n_powers]
    (m, n_tracks, n_outputs), n = c.shape[:3], weights.shape[-1]
    distance = np.diff(position.high, prepend=position.high[..., :1])
    if position.low is not None:
        distance += np.diff(position.low, prepend=position.low[..., :1])
    # Rounding may leave a distance below 0, and infinity less infinity is no number.
    u = np.fmin(np.fmax(rate * distance, 0.0), _FAR)
    if start is not None:
        u[start == np.arange(n)] = _FAR
    length = min(math.isqrt(n - 1) + 1, _LONGEST_BLOCK)

    def blocks(a: Floats) -> Floats:
        """Return the rows (..., n) of all blocks: an array (length, ..., 1, blocks)."""
        padded = np.concatenate([a, np.zeros((*a.shape[:-1], -n % length))], axis=-1)
        cut = np.moveaxis(padded.reshape(*a.shape[:-1], 1, -1, length), -1, 0)
        return np.ascontiguousarray(cut)

    w = weights.reshape(m, n_tracks, n)
    sums = _pass_blocks(blocks(u.reshape(n_tracks, n)), blocks(w), c, e)
    shape = (m, n_tracks, n_outputs, *weights.shape[2:])
    return sums.reshape(m, n_tracks, n_outputs, -1)[..., :n].reshape(shape)


def _pass_blocks(u: Floats, w: Floats, c: Floats, e: Floats | None) -> Floats:
    """Return the sums of all rows of blocks.

    Parameters
    ----------
    u : (length, tracks, 1, blocks)
        The distance of each row from the one before, which may be in the block before.
    w : (length, m, tracks, 1, blocks)
    c, e : (m, tracks, outputs, K)

    Returns
    -------
    (m, tracks, outputs, blocks, length)
    """
    k = np.arange(1.0, c.shape[-1] + 1.0)[:, None]
    a = np.zeros((*c.shape[:2], c.shape[-1], u.shape[-1]))
    b = None if e is None else np.zeros_like(a)

    def add_row(u_j: Floats, w_j: Floats) -> None:
        factors = np.exp(u_j * -k)
        if b is not None:
            np.add(b, a * u_j, out=b)
            np.multiply(b, factors, out=b)
        np.multiply(a, factors, out=a)
        np.add(a, w_j, out=a)

    for u_j, w_j in zip(u, w, strict=True):
        add_row(u_j, w_j)
    spans = u.sum(axis=0)
    factors = np.exp(spans * -k)
    for i in range(1, u.shape[-1]):
        if b is not None:
            b[..., i] += (b[..., i - 1] + spans[..., i] * a[..., i - 1]) * factors[..., i]
        a[..., i] += a[..., i - 1] * factors[..., i]
    for sums in (a, b):
        if sums is not None:  # each block starts with the sums of the block before
            sums[..., 1:] = sums[..., :-1].copy()
            sums[..., 0] = 0.0
    out = np.empty((u.shape[0], *c.shape[:3], u.shape[-1]))
    for u_j, w_j, out_j in zip(u, w, out, strict=True):
        add_row(u_j, w_j)
        np.matmul(c, a, out=out_j)
        if b is not None and e is not None:
            out_j += e @ b
    return np.moveaxis(out, 0, -1)

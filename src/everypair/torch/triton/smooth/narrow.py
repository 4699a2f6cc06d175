"""Blocks of rows whose positions are nearly equal: no row is passed, all follows from moments.

In a large batch, most blocks of sorted rows span a small part of a temperature. Let t be the
distance of a row from the middle of its block, and S_k the sum of w_j t_j^k over the rows of a
class in the block. If the rate times the span of a block is at most WIDTH, then

    state    A_k at an end of the block is exp(-k rate h) times a cubic polynomial of k rate in the
             S_k, where h is the distance of that end from the middle
    slope    of a row is a parabola in t: the slopes of pairs with rows outside, which are sums of
             exp(+-k rate t), and the Taylor polynomial of pairs inside, whose d is t_neg - t_pos
    loss     of all rows is a sum of products of these coefficients and the S_k

So one pass adds up eight moments of a block, and one evaluates a parabola for each row. The other
blocks, few of them, are passed row by row: see `walk`. They come first in a launch, because each
takes longer.

**Error.** The relative errors of a pair are, with WIDTH = 2^-8 and at most 12 powers: of a state
(k WIDTH / 2)^4 / 24 < 1.3e-8 for the highest power; of the slope, outside the block, (WIDTH / 2)^3
/ 6 = 1.3e-9 in units of the third derivative; of the slope inside, WIDTH^3 / 6 = 1e-8 in units of
the fourth derivative of the surrogate over its first, which `terms.expansion` bounds by 1. Together
they are less than the error of the fit for float32 scores, 5e-8. Other scores, other derivatives
and surrogates with factors |d| are always passed row by row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.smooth.state import (
    B0, B1, B2, CONSTANT, RATE, SCALE, distance, load_state, moved, place_at, powers_of,
    store_state,
)  # fmt: skip

# The numbers in `terms` that follow those of the surrogate: `terms.expansion`.
AT_0 = tl.constexpr(7)
WORDS = tl.constexpr(8)
"""Moments of a block: S_0, ..., S_3 of positives, then of negatives."""


@triton.jit
def block_of_program(blocks, NARROW: tl.constexpr):
    """Return the block of this program: from both ends inwards, if some blocks are narrow."""
    pid = tl.program_id(0)
    if NARROW > 0.0:
        found = tl.where(pid % 2 == 0, pid // 2, blocks - 1 - pid // 2)
    else:
        found = pid
    return found


@triton.jit
def ends_of_block(ranked, block, n, BLOCK: tl.constexpr):
    """Return the lowest and the highest position of a block; `ranked` points to the task."""
    start = block * BLOCK
    last = tl.minimum(start + BLOCK, n) - 1
    return tl.load(ranked + start).to(tl.float64), tl.load(ranked + last).to(tl.float64)


@triton.jit
def is_wide(ranked, block, n, rate, NARROW: tl.constexpr, BLOCK: tl.constexpr):
    """Return whether a block has to be passed row by row; so has one that is not finite."""
    if NARROW > 0.0:
        low, high = ends_of_block(ranked, block, n, BLOCK)
        found = ((high - low) * rate <= NARROW) == 0
    else:
        found = tl.full((), 1, tl.int1)
    return found


@triton.jit
def _block_state(s0, s1, s2, s3, h, sign: tl.constexpr, rate, K: tl.constexpr):
    """Return the state of rows at an end: sign is 1 for the upper end, -1 for the lower one."""
    powers = powers_of(tl.exp(-rate * h), K)
    found = ()
    for k in tl.static_range(K):
        x = (sign * (k + 1)) * rate
        found += (powers[k] * (s0 + x * (s1 + x * (0.5 * s2 + x * s3 / 6.0))),)
    first = tl.maximum(h * s0 - sign * s1, 0.0)
    second = tl.maximum(h * (h * s0 - 2.0 * sign * s1) + s2, 0.0)
    found += (s0, first, second)
    return found


@triton.jit
def sum_narrow_block(
    ranked, order, labels, weights, position, signed, chunk_states, moments, terms, block, blocks,
    task, n, HAS_WEIGHTS: tl.constexpr, K: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Store the signed weights, the moments and the states at the ends of a narrow block.

    The arguments are those of `sums.arrange` and `sums.chunk_sums`. `signed` is stored in the order
    of rows here. Of `position`, the first and the last entry of the block are stored.

    moments  (tasks, blocks, WORDS) float64, written
    TILE     rows that are read at once
    """
    BLOCK: tl.constexpr = CHUNK * CHUNKS
    rate = tl.load(terms + RATE)
    base = (task * blocks + block) * BLOCK
    low, high = ends_of_block(ranked + task * n, block, n, BLOCK)
    middle = 0.5 * low + 0.5 * high
    zero = tl.zeros((), tl.float64)
    p0, p1, p2, p3 = zero, zero, zero, zero
    n0, n1, n2, n3 = zero, zero, zero, zero
    for start in range(0, BLOCK, TILE):
        # 1. Signed weights of TILE rows.
        i = start + tl.arange(0, TILE)
        nth = block * BLOCK + i
        inside = nth < n
        source = task * n + tl.load(order + task * n + nth, mask=inside, other=0)
        t = tl.load(ranked + task * n + tl.minimum(nth, n - 1)).to(tl.float64) - middle
        label = tl.load(labels + source, mask=inside, other=0)
        if HAS_WEIGHTS:
            w = tl.load(weights + source, mask=inside, other=0.0).to(tl.float64)
        else:
            w = tl.where(inside, 1.0, 0.0).to(tl.float64)
        w = tl.where(inside, w, 0.0)
        pos, neg = tl.where(label > 0, w, 0.0), tl.where(label <= 0, w, 0.0)
        tl.store(signed + base + i, (pos - neg).to(signed.dtype.element_ty))
        # 2. Their moments.
        t2 = t * t
        p0 += tl.sum(pos, 0)
        n0 += tl.sum(neg, 0)
        p1 += tl.sum(pos * t, 0)
        n1 += tl.sum(neg * t, 0)
        p2 += tl.sum(pos * t2, 0)
        n2 += tl.sum(neg * t2, 0)
        p3 += tl.sum(pos * (t2 * t), 0)
        n3 += tl.sum(neg * (t2 * t), 0)
    # 3. Store the moments, the ends, and the states at the ends where `block_sums` reads them.
    to = moments + (task * blocks + block) * WORDS
    store_state(to, 1, (p0, p1, p2, p3, n0, n1, n2, n3), WORDS)
    tl.store(position + base, low.to(position.dtype.element_ty))
    tl.store(position + base + BLOCK - 1, high.to(position.dtype.element_ty))
    stride = tl.full((), CHUNKS, tl.int64) * blocks
    chunk_states += task * 4 * SIZE * stride + CHUNKS - 1
    up = chunk_states + block * CHUNKS
    down = chunk_states + 2 * SIZE * stride + (blocks - 1 - block) * CHUNKS
    above, below = high - middle, middle - low
    store_state(up, stride, _block_state(p0, p1, p2, p3, above, 1, rate, K), SIZE)
    store_state(down, stride, _block_state(p0, p1, p2, p3, below, -1, rate, K), SIZE)
    up += SIZE * stride
    down += SIZE * stride
    store_state(up, stride, _block_state(n0, n1, n2, n3, above, 1, rate, K), SIZE)
    store_state(down, stride, _block_state(n0, n1, n2, n3, below, -1, rate, K), SIZE)


@triton.jit
def _expanded(state, fit: tl.constexpr, x, FITS: tl.constexpr, K: tl.constexpr):
    """Return the coefficients of t^0, t^1, t^2 in the sum over k of c_k A_k exp(k x t)."""
    a = tl.zeros_like(state[0])
    b, c = a, a
    for k in tl.static_range(K):
        if FITS[2 * (fit * K + k)] != 0.0:
            part = FITS[2 * (fit * K + k)] * state[k]
            a += part
            b += (k + 1.0) * part
            c += (0.5 * (k + 1.0) * (k + 1.0)) * part
    return a, b * x, c * x * x


@triton.jit
def _polynomial(state, sign: tl.constexpr, b0, b1, b2, K: tl.constexpr):
    """Return coefficients of t of the sum of b0 + b1 d + b2 d^2; d grows with t if sign is 1."""
    w = state[K]
    m = tl.where((b1 == 0.0) & (b2 == 0.0), 0.0, state[K + 1])
    q = tl.where(b2 == 0.0, 0.0, state[K + 2])
    return b0 * w + (b1 * m + b2 * q), sign * (b1 * w + 2.0 * b2 * m), b2 * w


@triton.jit
def _inside(s0, s1, s2, sign: tl.constexpr, f1, f2, f3):
    """Return coefficients of t of the slope with the rows of the other class in the block.

    They have the moments s0, s1, s2, and d is sign * (t - t_j); f1, f2, f3 are the derivatives of
    the surrogate at d = 0.
    """
    constant = f1 * s0 - sign * f2 * s1 + 0.5 * f3 * s2
    return constant, sign * f2 * s0 - f3 * s1, 0.5 * f3 * s0


@triton.jit
def walk_narrow_block(
    ranked, order, position, signed, block_states, moments, shares, grad, terms, block, blocks,
    task, n, share, WANT_GRAD: tl.constexpr, FITS: tl.constexpr, K: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Store the gradient of each row of a narrow block, and the loss of the block.

    The arguments are those of `walk.walk` and `sum_narrow_block`; `share` is the divisor of the
    mean, inverted.
    """
    rate, scale = tl.load(terms + RATE), tl.load(terms + SCALE)
    b0, b1, b2 = tl.load(terms + B0), tl.load(terms + B1), tl.load(terms + B2)
    constant = tl.load(terms + CONSTANT)
    f0, f1, f2, f3 = load_state(terms + AT_0, 1, rate > 0.0, 4)
    base = (task * blocks + block) * BLOCK
    low, high = ends_of_block(ranked + task * n, block, n, BLOCK)
    middle = 0.5 * low + 0.5 * high
    s = load_state(moments + (task * blocks + block) * WORDS, 1, blocks > 0, WORDS)
    # 1. Pairs inside the block.
    pos0, pos1, pos2 = _inside(s[4], s[5], s[6], -1, f1, f2, f3)
    neg0, neg1, neg2 = _inside(s[0], s[1], s[2], 1, f1, f2, f3)
    d1 = s[5] * s[0] - s[4] * s[1]
    d2 = s[6] * s[0] - 2.0 * s[5] * s[1] + s[4] * s[2]
    d3 = s[7] * s[0] - 3.0 * s[6] * s[1] + 3.0 * s[5] * s[2] - s[4] * s[3]
    loss = f0 * s[0] * s[4] + f1 * d1 + 0.5 * f2 * d2 + f3 * d3 / 6.0
    # 2. Pairs with rows below the block (way 0) and above it (way 1).
    for way in tl.static_range(2):
        if way == 0:
            nth, edge, x = block, base - 1, -rate
        else:
            nth, edge, x = blocks - 1 - block, base + BLOCK, rate
        before = place_at(position, position, edge, nth > 0, False)
        gap = tl.where(nth > 0, distance((middle, 0.0 * middle), before), 0.0)
        states = block_states + way * 2 * SIZE * blocks + nth - 1
        pos = moved(load_state(states, blocks, nth > 0, SIZE), gap, rate, K, 0, 1)
        neg = load_state(states + SIZE * blocks, blocks, nth > 0, SIZE)
        neg = moved(neg, gap, rate, K, 0, 1)
        if way == 0:  # the loss of each pair is that of its upper row
            v0, v1, v2 = _expanded(pos, 0, x, FITS, K)
            w0, w1, w2 = _polynomial(pos, 1, b0, b1, b2, K)
            loss += (scale * v0 + w0) * s[4] + (scale * v1 + w1) * s[5] + (scale * v2 + w2) * s[6]
            v0, v1, v2 = _expanded(neg, 1, x, FITS, K)
            loss += scale * (v0 * s[0] + v1 * s[1] + v2 * s[2]) + constant * neg[K] * s[0]
        if WANT_GRAD:
            v0, v1, v2 = _expanded(pos, 2 + way, x, FITS, K)
            neg0 += scale * rate * v0
            neg1 += scale * rate * v1
            neg2 += scale * rate * v2
            v0, v1, v2 = _expanded(neg, 3 - way, x, FITS, K)
            pos0 += scale * rate * v0
            pos1 += scale * rate * v1
            pos2 += scale * rate * v2
            if way == 0:
                w0, w1, _ = _polynomial(pos, 1, b1, 2.0 * b2, 0.0 * b2, K)
                neg0 += w0
                neg1 += w1
            else:
                w0, w1, _ = _polynomial(neg, -1, b1, 2.0 * b2, 0.0 * b2, K)
                pos0 += w0
                pos1 += w1
    tl.store(shares + block, loss)
    # 3. The gradient of each row.
    if WANT_GRAD:
        bad = tl.load(ranked + task * n).to(tl.float64) * 0.0
        bad += tl.load(ranked + task * n + n - 1).to(tl.float64) * 0.0
        for start in range(0, BLOCK, TILE):
            i = start + tl.arange(0, TILE)
            at_row = block * BLOCK + i
            inside = at_row < n
            own = tl.load(signed + base + i).to(tl.float64)
            to = task * n + tl.load(order + task * n + at_row, mask=inside, other=0)
            t = tl.load(ranked + task * n + at_row, mask=inside, other=0.0).to(tl.float64) - middle
            of_neg = neg0 + t * (neg1 + t * neg2)
            of_pos = pos0 + t * (pos1 + t * pos2)
            slope = share * own * tl.where(own < 0.0, of_neg, of_pos)
            slope = tl.where(own == 0.0, 0.0, -slope) + bad
            tl.store(grad + to, slope.to(grad.dtype.element_ty), mask=inside)

"""Compute the loss and its derivatives from the states of chunks and blocks, row by row."""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.smooth.narrow import block_of_program, is_wide, walk_narrow_block
from everypair.torch.triton.smooth.state import (
    B0, B1, B2, CONSTANT, RATE, SCALE, contracted, distance, load_state, moved, place_at, plus,
    with_row,
)  # fmt: skip

# The fits in FITS: value, slope and curvature, each for d > 0 and for d <= 0.
VALUE, SLOPE, CURVATURE = (tl.constexpr(k) for k in (0, 2, 4))


@triton.jit
def _state_before(chunk_states, block_states, nth, chunk, gap, rate, blocks, K: tl.constexpr,
                  LINEAR: tl.constexpr, KINDS: tl.constexpr, SIZE: tl.constexpr,
                  CHUNKS: tl.constexpr):  # fmt: skip
    """Return the state of all rows before a chunk; `gap` is its distance from the block before."""
    stride = tl.full((), CHUNKS, tl.int64) * blocks
    nth += 0 * chunk
    of_blocks = load_state(block_states + nth - 1, blocks, nth > 0, SIZE)
    of_chunks = load_state(chunk_states + nth * CHUNKS + chunk - 1, stride, chunk > 0, SIZE)
    return plus(moved(of_blocks, gap, rate, K, LINEAR, KINDS), of_chunks, SIZE)


@triton.jit
def _of_rows(is_neg, pos, neg, kind: tl.constexpr, fit: tl.constexpr, way: tl.constexpr,
             FITS: tl.constexpr, K: tl.constexpr, LINEAR: tl.constexpr,
             KINDS: tl.constexpr):  # fmt: skip
    """Return the contraction that each row reads: that of the other class.

    On the way upwards, a negative has passed the positives with d > 0, and a positive the negatives
    with d <= 0. Downwards it is the other way round.
    """
    of_pos = contracted(pos, kind, fit + way, FITS, K, LINEAR, KINDS)
    of_neg = contracted(neg, kind, fit + 1 - way, FITS, K, LINEAR, KINDS)
    return tl.where(is_neg, of_pos, of_neg)


@triton.jit
def walk(
    ranked, order, position, low, signed, along, row, chunk_states, block_states, partial, moments,
    shares, grad, hess, hvp, value, pair_weight, one_class, terms, counters, n, MEAN: tl.constexpr,
    COUNTED: tl.constexpr, WANT_GRAD: tl.constexpr, WANT_HESS: tl.constexpr,
    HAS_VECTOR: tl.constexpr, HAS_LOW: tl.constexpr, FITS: tl.constexpr, K: tl.constexpr,
    LINEAR: tl.constexpr, KINDS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, STEP: tl.constexpr, NARROW: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute the loss, and the derivatives that are asked for, of each row.

    Programs: (blocks, tasks). See the package `triton` for other arguments, and `sums` for those
    that its kernels write.

    partial   (3, tasks, padded) float64, written and read: sums over the pairs above each row
    shares    (tasks, blocks) float64, written and read: the loss of each program
    terms     the `Numbers` of the surrogate
    FITS      coefficients (c, e) of K powers of each fit
    STEP      losses that are added up at once
    """
    # 1. The weight of all pairs, from the states of the last block; 0 or NaN from the first and
    #    last position, because a sort puts what is not finite at an end.
    rate, scale = tl.load(terms + RATE), tl.load(terms + SCALE)
    b0, b1, b2 = tl.load(terms + B0), tl.load(terms + B1), tl.load(terms + B2)
    constant = tl.load(terms + CONSTANT)
    blocks = tl.num_programs(0)
    block = block_of_program(blocks, NARROW)
    task = tl.program_id(1).to(tl.int64)
    tasks = tl.num_programs(1)
    BLOCK: tl.constexpr = CHUNK * CHUNKS
    W: tl.constexpr = KINDS * K * (1 + LINEAR)
    stride = tl.full((), CHUNKS, tl.int64) * blocks
    block_states += task * 4 * SIZE * blocks
    chunk_states += task * 4 * SIZE * stride
    w_pos = tl.load(block_states + W * blocks + blocks - 1)
    w_neg = tl.load(block_states + (SIZE + W) * blocks + blocks - 1)
    pairs = w_pos * w_neg
    bad = tl.load(ranked + task * n).to(tl.float64) * 0.0
    bad += tl.load(ranked + task * n + n - 1).to(tl.float64) * 0.0
    share = 1.0 / tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
    lane = tl.arange(0, CHUNKS)
    zero = tl.zeros((CHUNKS,), tl.float64)
    base = (task * blocks + block) * BLOCK
    at = base + lane
    slopes = partial + at
    curves = slopes + tasks * blocks * BLOCK
    pulls = curves + tasks * blocks * BLOCK
    losses = zero
    shares += task * blocks
    wide = is_wide(ranked + task * n, block, n, rate, NARROW, BLOCK)
    # 2. Downwards, then upwards: each lane goes through its chunk; unless the block is narrow.
    if wide:
        for way in tl.static_range(1, -1, -1):
            # 3. The place before the chunk, and the states there.
            if way == 0:
                nth, chunk, first, step = block, lane, 0, CHUNKS
                edge, previous = base - 1, at + (CHUNK - 1) * CHUNKS - 1
            else:
                nth, chunk = blocks - 1 - block, CHUNKS - 1 - lane
                first, step = (CHUNK - 1) * CHUNKS, -CHUNKS
                edge, previous = base + BLOCK, at + 1
            before_block = place_at(position, low, edge + 0 * lane, nth + 0 * lane > 0, HAS_LOW)
            before_chunk = place_at(position, low, previous, chunk > 0, HAS_LOW)
            own_place = place_at(position, low, at + first, lane >= 0, HAS_LOW)
            gap = distance(before_chunk, before_block)
            gap = tl.where(chunk > 0, tl.where(nth > 0, gap, 0.0), 0.0)
            states = block_states + way * 2 * SIZE * blocks
            chunks = chunk_states + way * 2 * SIZE * stride
            pos = _state_before(chunks, states, nth, chunk, gap, rate, blocks, K, LINEAR, KINDS,
                                SIZE, CHUNKS)  # fmt: skip
            neg = _state_before(chunks + SIZE * stride, states + SIZE * blocks, nth, chunk, gap,
                                rate, blocks, K, LINEAR, KINDS, SIZE, CHUNKS)  # fmt: skip
            high = tl.where(nth > 0, before_block[0], own_place[0])
            rest = tl.where(nth > 0, before_block[1], own_place[1])
            high = tl.where(chunk > 0, before_chunk[0], high)
            rest = tl.where(chunk > 0, before_chunk[1], rest)
            for j in range(CHUNK):
                # 4. Move on to the next row.
                offset = first + j * step
                p = place_at(position, low, at + offset, lane >= 0, HAS_LOW)
                gap = distance(p, (high, rest))
                high, rest = p
                own = tl.load(signed + at + offset).to(tl.float64)
                is_neg = own < 0.0
                z = zero
                if HAS_VECTOR:
                    z = tl.load(along + at + offset)
                pos = moved(pos, gap, rate, K, LINEAR, KINDS)
                neg = moved(neg, gap, rate, K, LINEAR, KINDS)
                # 5. The polynomial applies to pairs with d > 0: see `_of_rows`.
                has_poly = is_neg if way == 0 else own > 0.0
                w = tl.where(is_neg, pos[W], neg[W])
                m = tl.where(is_neg, pos[W + 1], neg[W + 1])
                if way == 0:
                    q = tl.where(b2 == 0.0, 0.0, pos[W + 2])
                    m1 = tl.where(b1 == 0.0, 0.0, m)
                    poly = tl.where(has_poly, b0 * w + (b1 * m1 + b2 * q), constant * w)
                    found = _of_rows(is_neg, pos, neg, 0, VALUE, way, FITS, K, LINEAR, KINDS)
                    losses += tl.where(own == 0.0, 0.0, tl.abs(own) * (scale * found + poly))
                if WANT_GRAD:
                    m2 = tl.where(b2 == 0.0, 0.0, m)
                    found = _of_rows(is_neg, pos, neg, 0, SLOPE, way, FITS, K, LINEAR, KINDS)
                    slope = scale * rate * found + tl.where(has_poly, b1 * w + 2.0 * b2 * m2, 0.0)
                if WANT_HESS or HAS_VECTOR:
                    found = _of_rows(is_neg, pos, neg, 0, CURVATURE, way, FITS, K, LINEAR, KINDS)
                    curve = scale * rate * rate * found + tl.where(has_poly, 2.0 * b2 * w, 0.0)
                if HAS_VECTOR:
                    found = _of_rows(is_neg, pos, neg, 1, CURVATURE, way, FITS, K, LINEAR, KINDS)
                    zs = tl.where(is_neg, pos[W + 3], neg[W + 3])
                    pull = scale * rate * rate * found + tl.where(has_poly, 2.0 * b2 * zs, 0.0)
                pos = with_row(pos, tl.maximum(own, 0.0), z, K, LINEAR, KINDS)
                neg = with_row(neg, tl.maximum(-own, 0.0), z, K, LINEAR, KINDS)
                # 6. Store the sums downwards; or add them, and store the derivatives.
                if way == 1:
                    if WANT_GRAD:
                        tl.store(slopes + offset, slope)
                    if WANT_HESS or HAS_VECTOR:
                        tl.store(curves + offset, curve)
                    if HAS_VECTOR:
                        tl.store(pulls + offset, pull)
                else:
                    inside = block * BLOCK + lane * CHUNK + j < n
                    to = task * n + tl.load(row + at + offset)
                    if WANT_GRAD:
                        slope = share * own * (slope + tl.load(slopes + offset))
                        slope = tl.where(own == 0.0, 0.0, -slope) + bad
                        tl.store(grad + to, slope.to(grad.dtype.element_ty), mask=inside)
                    if WANT_HESS or HAS_VECTOR:
                        curve += tl.load(curves + offset)
                    if WANT_HESS:
                        found = tl.where(own == 0.0, 0.0, share * tl.abs(own) * curve) + bad
                        tl.store(hess + to, found.to(hess.dtype.element_ty), mask=inside)
                    if HAS_VECTOR:
                        pull = z * curve - (pull + tl.load(pulls + offset))
                        found = tl.where(own == 0.0, 0.0, share * tl.abs(own) * pull) + bad
                        tl.store(hvp + to, found.to(hvp.dtype.element_ty), mask=inside)
            tl.debug_barrier()
        tl.store(shares + block, tl.sum(losses, 0))
    if NARROW > 0.0:
        if wide == 0:
            walk_narrow_block(ranked, order, position, signed, block_states, moments, shares, grad,
                              terms, block, blocks, task, n, share, WANT_GRAD, FITS, K, SIZE, BLOCK,
                              TILE)  # fmt: skip
    # 7. The last program adds up the losses, and sets the counter to 0 again.
    tl.debug_barrier()
    if tl.atomic_add(counters + task, 1, sem="acq_rel", scope="gpu") == blocks - 1:
        total = tl.zeros((STEP,), tl.float64)
        for start in range(0, blocks, STEP):
            k = start + tl.arange(0, STEP)
            total += tl.load(shares + k, mask=k < blocks, other=0.0)
        loss = tl.sum(total, 0) * share + bad
        tl.store(value + task, loss.to(value.dtype.element_ty))
        tl.store(pair_weight + task, pairs + bad)
        if COUNTED:
            tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))
        tl.store(counters + task, 0)

"""Sort the rows' data, and add up the states of chunks and blocks of sorted rows.

CHUNK consecutive rows make a chunk, CHUNKS chunks a block; the last block is filled up with rows of
weight 0. Inside a block, rows are stored by their number in the chunk first, so that the lanes of a
program, one for each chunk, read consecutive words.

There are two ways through the rows. Way 0 goes upwards, from the lowest position, and way 1
downwards. Blocks and chunks are numbered along the way. The state of a chunk holds all rows of its
block up to its end, that of a block all rows up to its end. Both are stored in columns: for each
way and class (0 are positives, 1 negatives) SIZE columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.common.double_double import two_sum
from everypair.torch.triton.smooth.narrow import block_of_program, is_wide, sum_narrow_block
from everypair.torch.triton.smooth.state import (
    RATE, SHIFT, carry_linear, carry_moments, carry_power, distance, exponent, no_rows, place_at,
    scanned, store_state, times, with_far_row,
)  # fmt: skip


@triton.jit
def arrange(
    ranked, order, scores, labels, weights, vector, terms, position, low, signed, along, row, n,
    HAS_WEIGHTS: tl.constexpr, HAS_VECTOR: tl.constexpr, HAS_LOW: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Store what is needed of each row in the order of positions, but not of narrow blocks.

    Programs: (blocks, tasks). See the package `triton` for other arguments.

    ranked, order  (tasks, n) float and int64, read: sorted positions, and where they came from
    position       (tasks, padded) float, written: the positions
    low            (tasks, padded) float64, written if HAS_LOW: what rounding took from them
    signed         (tasks, padded) int8, or float if HAS_WEIGHTS, written: the weights, 1 without
                   them; negative for negatives, 0 for rows whose label is NaN
    along          (tasks, padded) float64, written if HAS_VECTOR: the vector less its first entry
    row            (tasks, padded) int32, written: `order`
    terms          the `Numbers` of the surrogate
    NARROW         the largest width of narrow blocks, or 0
    """
    block = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    BLOCK: tl.constexpr = CHUNK * CHUNKS
    wide = is_wide(ranked + task * n, block, n, tl.load(terms + RATE), NARROW, BLOCK)
    if wide:
        chunk, j = tl.arange(0, CHUNKS)[:, None], tl.arange(0, CHUNK)[None, :]
        nth = block * BLOCK + chunk * CHUNK + j
        inside = nth < n
        to = (task * tl.num_programs(0) + block) * BLOCK + j * CHUNKS + chunk
        source = tl.load(order + task * n + nth, mask=inside, other=0)
        p = tl.load(ranked + task * n + tl.minimum(nth, n - 1))
        label = tl.load(labels + task * n + source, mask=inside, other=0)
        if HAS_WEIGHTS:
            own = tl.load(weights + task * n + source, mask=inside, other=0.0).to(tl.float64)
            own = tl.where(label > 0, own, tl.where(label <= 0, -own, 0.0))
        else:
            own = tl.where(label > 0, 1, tl.where(label <= 0, -1, 0))
        own = tl.where(inside, own, tl.zeros_like(own))
        tl.store(position + to, p.to(position.dtype.element_ty))
        tl.store(signed + to, own.to(signed.dtype.element_ty))
        tl.store(row + to, source.to(tl.int32))
        if HAS_LOW:
            s = tl.load(scores + task * n + source, mask=inside, other=0.0).to(tl.float64)
            shift = tl.load(terms + SHIFT)
            _, error = two_sum(s, tl.where(label > 0, 0.0, shift))
            # Rows that fill up the last block stand where the last row does.
            tl.store(low + to, tl.where(inside, error, 0.0))
        if HAS_VECTOR:
            z = tl.load(vector + task * n + source, mask=inside, other=0.0).to(tl.float64)
            tl.store(along + to, z - tl.load(vector + task * n).to(tl.float64))


@triton.jit
def chunk_sums(
    ranked, order, labels, weights, position, low, signed, along, terms, chunk_states, moments, n,
    HAS_WEIGHTS: tl.constexpr, HAS_VECTOR: tl.constexpr, HAS_LOW: tl.constexpr, K: tl.constexpr,
    LINEAR: tl.constexpr, KINDS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, NARROW: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Store the states of chunks; of narrow blocks, the state of the last chunk alone.

    Programs: (blocks, tasks). `arrange` describes the arguments that are read.

    terms            the `Numbers` of the surrogate
    chunk_states     (tasks, 2, 2, SIZE, blocks, CHUNKS) float64, written
    moments, TILE    see `narrow.sum_narrow_block`
    K, LINEAR, KINDS, SIZE  powers, whether there are B_k, kinds of weights, length: see `state`
    """
    rate = tl.load(terms + RATE)
    blocks = tl.num_programs(0)
    block = block_of_program(blocks, NARROW)
    task = tl.program_id(1).to(tl.int64)
    BLOCK: tl.constexpr = CHUNK * CHUNKS
    lane = tl.arange(0, CHUNKS)
    zero = tl.zeros((CHUNKS,), tl.float64)
    base = (task * blocks + block) * BLOCK
    stride = tl.full((), CHUNKS, tl.int64) * blocks
    wide = is_wide(ranked + task * n, block, n, rate, NARROW, BLOCK)
    if wide:
        for way in tl.static_range(2):
            # 1. Add up the rows of each chunk at its end.
            if way == 0:
                at, last, nth = base + lane, (CHUNK - 1) * CHUNKS, block
                before = -1
            else:
                at, last, nth = base + CHUNKS - 1 - lane, 0, blocks - 1 - block
                before = 1
            end = place_at(position, low, at + last, lane >= 0, HAS_LOW)
            pos = no_rows(zero, K, LINEAR, KINDS)
            neg = no_rows(zero, K, LINEAR, KINDS)
            for j in range(CHUNK):
                p = place_at(position, low, at + j * CHUNKS, lane >= 0, HAS_LOW)
                own = tl.load(signed + at + j * CHUNKS).to(tl.float64)
                z = zero
                if HAS_VECTOR:
                    z = tl.load(along + at + j * CHUNKS)
                gap = distance(end, p)
                pos = with_far_row(pos, tl.maximum(own, 0.0), z, gap, rate, K, LINEAR, KINDS)
                neg = with_far_row(neg, tl.maximum(-own, 0.0), z, gap, rate, K, LINEAR, KINDS)
            # 2. Carry the sums from chunk to chunk.
            earlier = place_at(position, low, at + last + before, lane > 0, HAS_LOW)
            gap = tl.where(lane > 0, distance(end, earlier), 0.0)
            to = chunk_states + (task * 4 + 2 * way) * SIZE * stride + nth * CHUNKS + lane
            store_state(to, stride, scanned(pos, gap, rate, K, LINEAR, KINDS), SIZE)
            to += SIZE * stride
            store_state(to, stride, scanned(neg, gap, rate, K, LINEAR, KINDS), SIZE)
    if NARROW > 0.0:
        if wide == 0:
            sum_narrow_block(ranked, order, labels, weights, position, signed, chunk_states,
                             moments, terms, block, blocks, task, n, HAS_WEIGHTS, K, SIZE, CHUNK,
                             CHUNKS, TILE)  # fmt: skip


@triton.jit
def _end_of(position, low, base, nth, blocks, way, mask, BLOCK: tl.constexpr,
            HAS_LOW: tl.constexpr):  # fmt: skip
    """Return the last place of blocks along a way."""
    at = tl.where(way == 0, (nth + 1) * BLOCK - 1, (blocks - 1 - nth) * BLOCK)
    return place_at(position, low, base + at, mask, HAS_LOW)


@triton.jit
def _last(a, STEP: tl.constexpr):
    """Return the last entry."""
    return tl.sum(tl.where(tl.arange(0, STEP) == STEP - 1, a, 0.0), 0)


@triton.jit
def block_sums(
    position, low, terms, chunk_states, block_states, blocks, HAS_LOW: tl.constexpr,
    K: tl.constexpr, LINEAR: tl.constexpr, KINDS: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Store the states of blocks.

    Programs: (2 ways x 2 classes x (KINDS K + 1), tasks), one for each power, and for the moments.

    chunk_states  read, see `chunk_sums`
    block_states  (tasks, 2, 2, SIZE, blocks) float64, written
    STEP          blocks that are added up at once
    """
    # 1. Which columns this program computes.
    rate = tl.load(terms + RATE)
    ENTRIES: tl.constexpr = KINDS * K + 1
    entry = tl.program_id(0) % ENTRIES
    columns = tl.program_id(0) // ENTRIES
    way = columns // 2
    task = tl.program_id(1).to(tl.int64)
    base = task * blocks * (CHUNK * CHUNKS)
    first = (entry // K) * (K * (1 + LINEAR)) + entry % K
    stride = tl.full((), CHUNKS, tl.int64) * blocks
    chunk_states += (task * 4 + columns) * SIZE * stride + first * stride
    block_states += ((task * 4 + columns) * SIZE + first) * blocks
    zero = tl.zeros((), tl.float64)
    a_before, b_before, q_before, z_before = zero, zero, zero, zero
    for start in range(0, blocks, STEP):
        # 2. STEP blocks, and their distances from the blocks before.
        nth = start + tl.arange(0, STEP)
        inside = nth < blocks
        here = _end_of(position, low, base, nth, blocks, way, inside, CHUNK * CHUNKS, HAS_LOW)
        earlier = _end_of(
            position, low, base, nth - 1, blocks, way, inside & (nth > 0), CHUNK * CHUNKS, HAS_LOW
        )
        gap = tl.where(inside & (nth > 0), distance(here, earlier), 0.0)
        at = chunk_states + nth.to(tl.int64) * CHUNKS + (CHUNKS - 1)
        a = tl.load(at, mask=inside, other=0.0)
        # 3. Scan, and move on what the blocks before have.
        if entry < KINDS * K:
            u = exponent(gap, rate)
            f = tl.exp(-u * (entry % K + 1).to(tl.float64))
            if LINEAR:
                b = tl.load(at + K * stride, mask=inside, other=0.0)
                u, f, a, b = tl.associative_scan((u, f, a, b), 0, carry_linear)
                b += (b_before + u * a_before) * f
                tl.store(block_states + K * blocks + nth, b, mask=inside)
                b_before = _last(b, STEP)
            else:
                f, a = tl.associative_scan((f, a), 0, carry_power)
            a += a_before * f
        else:
            b = tl.load(at + stride, mask=inside, other=0.0)
            q = tl.load(at + 2 * stride, mask=inside, other=0.0)
            g, a, b, q = tl.associative_scan((gap, a, b, q), 0, carry_moments)
            further = b_before + g * a_before
            q += q_before + times(g, b_before + further)
            a += a_before
            b += further
            tl.store(block_states + blocks + nth, b, mask=inside)
            tl.store(block_states + 2 * blocks + nth, q, mask=inside)
            b_before, q_before = _last(b, STEP), _last(q, STEP)
            if KINDS > 1:
                z = tl.cumsum(tl.load(at + 3 * stride, mask=inside, other=0.0), 0) + z_before
                tl.store(block_states + 3 * blocks + nth, z, mask=inside)
                z_before = _last(z, STEP)
        tl.store(block_states + nth, a, mask=inside)
        a_before = _last(a, STEP)

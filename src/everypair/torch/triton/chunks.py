"""Moments of sorted rows, chunk by chunk, along both axes of `sorted_rows`.

A block is what one program reads: chunks of rows, for each of which it stores the moments of the
block's rows up to there. What all blocks before a block have is carried over to it by one program.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.double_double import (
    apart,
    cumulated,
    joined,
    loaded,
    loaded_number,
    no_moments,
    number,
    plus,
    scaled,
    store,
    store_number,
)

__all__ = ["carry", "columns_of", "sums"]


@triton.jit
def columns_of(room, task, blocks, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return where the columns of a task's chunks begin, and those of its blocks."""
    chunks = room + task * (2 * COLUMNS * blocks * (CHUNKS + 1))
    return chunks, chunks + 2 * COLUMNS * blocks * CHUNKS


@triton.jit
def _joined_plain(w0, m0, q0, x0, w1, m1, q1, x1):
    lower = (number(w0), number(m0), number(q0), x0)
    w, m, q, x = joined(lower, (number(w1), number(m1), number(q1), x1), False)
    return w[0], m[0], q[0], x


@triton.jit
def _joined_paired(
    w0, w0_low, m0, m0_low, q0, q0_low, x0, w1, w1_low, m1, m1_low, q1, q1_low, x1
):  # fmt: skip
    lower = ((w0, w0_low), (m0, m0_low), (q0, q0_low), x0)
    upper = ((w1, w1_low), (m1, m1_low), (q1, q1_low), x1)
    w, m, q, x = joined(lower, upper, True)
    return w[0], w[1], m[0], m[1], q[0], q[1], x


@triton.jit
def _cumulated_moments(moments, PAIRED: tl.constexpr):
    w, m, q, x = moments
    if PAIRED:
        w0, w1, m0, m1, q0, q1, x = tl.associative_scan(
            (w[0], w[1], m[0], m[1], q[0], q[1], x), 0, _joined_paired
        )
        found = (w0, w1), (m0, m1), (q0, q1), x
    else:
        w0, m0, q0, x = tl.associative_scan((w[0], m[0], q[0], x), 0, _joined_plain)
        found = number(w0), number(m0), number(q0), x
    return found


@triton.jit
def sums(
    ranked, order, labels, weights, vector, signed, along, room, n, HAS_WEIGHTS: tl.constexpr,
    HAS_VECTOR: tl.constexpr, PAIRED: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Bring weights and vector into order; store the moments of a block's rows up to each chunk."""
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    ranked += task * n
    signed += task * n
    along += task * n
    BLOCK: tl.constexpr = CHUNK * CHUNKS
    row = block * BLOCK + tl.arange(0, BLOCK)
    inside = row < n
    source = task * n + tl.load(order + task * n + row, mask=inside, other=0)
    label = tl.load(labels + source, mask=inside, other=0)
    # A label that is NaN is neither: its row weighs nothing.
    if HAS_WEIGHTS:
        own = tl.load(weights + source, mask=inside, other=0.0).to(tl.float64)
        own = tl.where(label > 0, own, tl.where(label <= 0, -own, 0.0))
    else:
        own = tl.where(label > 0, 1, tl.where(label <= 0, -1, 0))
    tl.store(signed + row, own.to(signed.dtype.element_ty), mask=inside)
    first = tl.zeros((), tl.float64)
    if HAS_VECTOR:
        tl.store(along + row, tl.load(vector + source, mask=inside, other=0.0), mask=inside)
        first = tl.load(vector + task * n).to(tl.float64)
    tl.debug_barrier()
    Z: tl.constexpr = 7 if PAIRED else 4
    stride = blocks * CHUNKS
    chunks, _ = columns_of(room, task, blocks, COLUMNS, CHUNKS)
    k = tl.arange(0, CHUNKS)
    zero = tl.zeros((CHUNKS,), tl.float64)
    for side in tl.static_range(2):
        moments = no_moments(zero)
        z = number(zero)
        for j in range(CHUNK):
            if side == 0:
                nth = block * BLOCK + k * CHUNK + j
            else:
                nth = block * BLOCK + (BLOCK - 1) - (k * CHUNK + j)
            there = nth < n
            y = tl.load(ranked + nth, mask=there, other=0.0).to(tl.float64)
            w = tl.load(signed + nth, mask=there, other=0).to(tl.float64)
            if side == 0:
                w = tl.maximum(w, 0.0)
            else:
                y, w = -y, tl.maximum(-w, 0.0)
            moments = joined(moments, (number(w), number(zero), number(zero), y), PAIRED)
            if HAS_VECTOR:
                v = tl.load(along + nth, mask=there, other=0.0).to(tl.float64)
                z = plus(z, scaled(apart(number(v), first, PAIRED), w, PAIRED), PAIRED)
        # Along the mirrored axis, the last block comes first.
        index = (block if side == 0 else blocks - 1 - block) * CHUNKS + k
        to = chunks + side * COLUMNS * stride + index
        store(to, stride, _cumulated_moments(moments, PAIRED), None, PAIRED)
        if HAS_VECTOR:
            store_number(to + Z * stride, stride, cumulated(z, PAIRED), None, PAIRED)


@triton.jit
def carry(
    room, n, HAS_VECTOR: tl.constexpr, PAIRED: tl.constexpr, COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Store the moments of all blocks up to each one, along one axis."""
    side = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    blocks = (n + CHUNK * CHUNKS - 1) // (CHUNK * CHUNKS)
    Z: tl.constexpr = 7 if PAIRED else 4
    stride = blocks * CHUNKS
    chunks, goals = columns_of(room, task, blocks, COLUMNS, CHUNKS)
    sources = chunks + side * COLUMNS * stride
    goals += side * COLUMNS * blocks
    for start in range(0, blocks, STEP):
        block = start + tl.arange(0, STEP)
        inside = block < blocks
        at = sources + block * CHUNKS + CHUNKS - 1
        moments = _cumulated_moments(loaded(at, stride, inside, PAIRED), PAIRED)
        before = loaded(goals + start - 1, blocks, start > 0, PAIRED)
        store(goals + block, blocks, joined(before, moments, PAIRED), inside, PAIRED)
        if HAS_VECTOR:
            z = cumulated(loaded_number(at + Z * stride, stride, inside, PAIRED), PAIRED)
            to = goals + Z * blocks
            earlier = loaded_number(to + start - 1, blocks, start > 0, PAIRED)
            store_number(to + block, blocks, plus(z, earlier, PAIRED), inside, PAIRED)
        tl.debug_barrier()

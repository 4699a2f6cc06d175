"""Prefix moments of sorted rows, along both axes of `sorted_rows`.

CHUNK rows make a chunk, CHUNKS chunks a block. `chunk_moments` stores the moments of the rows from
the start of a block up to the end of each chunk, `block_moments` those of all blocks up to each
block. See `workspace` for the layout.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.common.double_double import (
    add, cumulative_sum, distance, from_double, load_moments, load_number, merge, mul_double,
    no_moments, store_moments, store_number,
)  # fmt: skip
from everypair.torch.triton.common.workspace import MOMENTS, MOMENTS_DD


@triton.jit
def columns_of(workspace, task, blocks, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return pointers to the columns of the chunks of a task, and to those of its blocks."""
    chunks = workspace + task * (2 * COLUMNS * blocks * (CHUNKS + 1))
    return chunks, chunks + 2 * COLUMNS * blocks * CHUNKS


@triton.jit
def _merge_float64(w0, m0, q0, x0, w1, m1, q1, x1):
    """Return `merge` of two moments without low parts, for scans."""
    lower = (from_double(w0), from_double(m0), from_double(q0), x0)
    w, m, q, x = merge(lower, (from_double(w1), from_double(m1), from_double(q1), x1), False)
    return w[0], m[0], q[0], x


@triton.jit
def _merge_dd(
    w0, w0_low, m0, m0_low, q0, q0_low, x0, w1, w1_low, m1, m1_low, q1, q1_low, x1
):  # fmt: skip
    """Return `merge` of two moments with low parts, for scans."""
    lower = ((w0, w0_low), (m0, m0_low), (q0, q0_low), x0)
    upper = ((w1, w1_low), (m1, m1_low), (q1, q1_low), x1)
    w, m, q, x = merge(lower, upper, True)
    return w[0], w[1], m[0], m[1], q[0], q[1], x


@triton.jit
def _cumulative_moments(moments, DD: tl.constexpr):
    """Return the moments of the entries up to and including each one."""
    w, m, q, x = moments
    if DD:
        w0, w1, m0, m1, q0, q1, x = tl.associative_scan(
            (w[0], w[1], m[0], m[1], q[0], q[1], x), 0, _merge_dd
        )
        found = (w0, w1), (m0, m1), (q0, q1), x
    else:
        w0, m0, q0, x = tl.associative_scan((w[0], m[0], q[0], x), 0, _merge_float64)
        found = from_double(w0), from_double(m0), from_double(q0), x
    return found


@triton.jit
def chunk_moments(
    ranked, order, labels, weights, vector, signed, along, workspace, n, HAS_WEIGHTS: tl.constexpr,
    HAS_VECTOR: tl.constexpr, DD: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Sort weights and vector, and store the moments of each block up to the end of each chunk.

    Programs: (blocks, tasks). See the package for other arguments.

    ranked, order  (tasks, n) float and int64, read: the sorted scores, and the rows they came from
    labels         read, unsorted as weights and vector are; rows whose label is NaN are left out
    signed         (tasks, n) int8, or float if HAS_WEIGHTS, written: the sorted weights, 1 without
                   them; negative for negatives
    along          (tasks, n) float, written if HAS_VECTOR: the sorted vector
    workspace      written: the columns of the chunks
    COLUMNS        columns of a class: moments, then the sum of the vector
    CHUNK, CHUNKS  rows of a chunk; chunks of a block
    """
    # 1. Sort weights and vector; the sign of a weight tells the class.
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
    # A row whose label is NaN belongs to neither class and gets the weight 0.
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
    # 2. For both classes: one entry for each chunk adds up its rows; then a scan over the chunks.
    #    Side 0 are positives along y = s, side 1 negatives along y = -s, from the last row on.
    Z: tl.constexpr = MOMENTS_DD if DD else MOMENTS
    stride = blocks * CHUNKS
    chunks, _ = columns_of(workspace, task, blocks, COLUMNS, CHUNKS)
    k = tl.arange(0, CHUNKS)
    zero = tl.zeros((CHUNKS,), tl.float64)
    for side in tl.static_range(2):
        moments = no_moments(zero)
        z = from_double(zero)
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
            moments = merge(moments, (from_double(w), from_double(zero), from_double(zero), y), DD)
            if HAS_VECTOR:
                v = tl.load(along + nth, mask=there, other=0.0).to(tl.float64)
                z = add(z, mul_double(distance(from_double(v), first, DD), w, DD), DD)
        # 3. Store them. Along the axis y = -s, the last block comes first.
        index = (block if side == 0 else blocks - 1 - block) * CHUNKS + k
        to = chunks + side * COLUMNS * stride + index
        store_moments(to, stride, _cumulative_moments(moments, DD), None, DD)
        if HAS_VECTOR:
            store_number(to + Z * stride, stride, cumulative_sum(z, DD), None, DD)


@triton.jit
def block_moments(
    workspace, n, HAS_VECTOR: tl.constexpr, DD: tl.constexpr, COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Store the moments of all blocks up to and including each block.

    Programs: (2, tasks), one for each class. See the package for other arguments.

    workspace  the columns of the chunks are read, those of the blocks written and read
    STEP       blocks that are scanned at once; for the other constants see `chunk_moments`
    """
    side = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    blocks = (n + CHUNK * CHUNKS - 1) // (CHUNK * CHUNKS)
    Z: tl.constexpr = MOMENTS_DD if DD else MOMENTS
    stride = blocks * CHUNKS
    chunks, goals = columns_of(workspace, task, blocks, COLUMNS, CHUNKS)
    sources = chunks + side * COLUMNS * stride
    goals += side * COLUMNS * blocks
    for start in range(0, blocks, STEP):
        # 1. Load the moments of STEP blocks, which are those up to their last chunk, and scan.
        block = start + tl.arange(0, STEP)
        inside = block < blocks
        at = sources + block * CHUNKS + CHUNKS - 1
        moments = _cumulative_moments(load_moments(at, stride, inside, DD), DD)
        # 2. Add what the blocks before have, and store.
        before = load_moments(goals + start - 1, blocks, start > 0, DD)
        store_moments(goals + block, blocks, merge(before, moments, DD), inside, DD)
        if HAS_VECTOR:
            z = cumulative_sum(load_number(at + Z * stride, stride, inside, DD), DD)
            to = goals + Z * blocks
            earlier = load_number(to + start - 1, blocks, start > 0, DD)
            store_number(to + block, blocks, add(z, earlier, DD), inside, DD)
        tl.debug_barrier()


@triton.jit
def _last_below(place, dtype: tl.constexpr):
    """Return the largest number of a type that is less than `place`, a double-double number."""
    at = place[0].to(dtype)
    back = at.to(tl.float64)
    if dtype == tl.float64:
        bits = at.to(tl.int64, bitcast=True)
        least = -5e-324
    else:
        bits = at.to(tl.int32, bitcast=True)
        least = -1.401298464324817e-45
    # For numbers of one sign, the next smaller magnitude has the next smaller bit pattern.
    before = tl.where(at > 0.0, bits - 1, bits + 1).to(dtype, bitcast=True)
    before = tl.where(at == 0.0, least, before)
    return tl.where((back < place[0]) | ((back == place[0]) & (place[1] > 0.0)), at, before)


@triton.jit
def rows_below(ranked, n, sign, place):
    """Return how many rows lie below `place` along the axis sign * s, by bisection."""
    if ranked.dtype.element_ty == tl.float64:
        last = _last_below(place, tl.float64)
    else:
        last = _last_below(place, tl.float32)
    towards = sign.to(last.dtype)
    found = tl.full(sign.shape, 0, tl.int32)
    length = n + tl.zeros((), tl.int32)
    while length > 0:
        half = (length + 1) // 2
        nth = found + half - 1
        y = towards * tl.load(ranked + tl.where(sign > 0.0, nth, n - 1 - nth)).to(last.dtype)
        found = tl.where(y <= last, found + half, found)
        length -= half
    return found


@triton.jit
def rows_below_in(ranked, n, sign, place, start, length):
    """Return the same for rows of a part: their end along the axis, or `start` if there are none.

    The part of each row has `length` rows, of which `start` is the first along its axis.
    """
    if ranked.dtype.element_ty == tl.float64:
        last = _last_below(place, tl.float64)
    else:
        last = _last_below(place, tl.float32)
    towards = sign.to(last.dtype)
    found = start
    longest = tl.max(length, 0)
    while longest > 0:
        half = (length + 1) // 2
        nth = found + half - 1
        at = tl.where(sign > 0.0, nth, n - 1 - nth)
        y = towards * tl.load(ranked + at, mask=length > 0, other=0.0).to(last.dtype)
        found = tl.where((length > 0) & (y <= last), found + half, found)
        length -= half
        longest -= (longest + 1) // 2
    return found

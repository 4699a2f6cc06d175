"""Kernels for ordered pairs: one level of the targets' ranks, for `ordered`.

At the level of a bit, rows stand in segments: those of a group whose ranks agree in all higher
bits. Rows of a segment are sorted by score, and those with the bit are its positives. `begin` and
`end` are the first position of a row's segment and the first one after it.

Each class looks at the other along its own axis, as in `sorted_rows`: side 0 are positives along
y = s, from the first position on; side 1 are negatives along y = -s, from the last position on.
Positions along an axis are called places here. The prefix moments of a side hold its rows from the
start of a segment, or of a block if that is later, up to and including each place; the carry of a
block holds those from the start of the segment up to the end of the block.

Kernels share these arguments, beside those of the package:

====================  =============================================================================
ranked                (tasks, 2, n) float, the scores of the level; the other half is written for
                      the next level, and the halves are exchanged
rank, row, begin, end  (tasks, 2, n) int32, in the same order: rank, row of the batch, segment
winner, loser         (tasks, n) float, read if HAS_WEIGHTS: weights of rows with the bit, without
heights               (tasks,) int32, read: number of bits of the highest rank; higher bits have no
                      pairs, and programs end at once
prefix                (tasks, 2 sides, COLUMNS, n) float64: moments (`workspace`), then the weighted
                      sum of the vector if HAS_VECTOR
ones                  (tasks, n) int32: rows with the bit, inside each block
carry, ones_carry     (tasks, 2, COLUMNS, blocks), (tasks, blocks): the same for whole blocks
bit                   the level
====================  =============================================================================
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.chunks import rows_below_in
from everypair.torch.triton.common.double_double import (
    from_double, load_moments, moments_at, store_moments, two_sum,
)  # fmt: skip
from everypair.torch.triton.common.workspace import MOMENTS, load_term


@triton.jit
def _merge_segments(f0, w0, m0, q0, x0, f1, w1, m1, q1, x1):
    """Combine moments for scans; f is 1 where the rows on the right start a segment."""
    gap = tl.where(w1 > 0.0, x1, x0) - x0
    further = m0 + gap * w0
    same = f1 == 0
    return (
        f0 | f1,
        w1 + tl.where(same, w0, 0.0),
        m1 + tl.where(same, further, 0.0),
        q1 + tl.where(same, q0 + gap * (m0 + further), 0.0),
        tl.where(same & (w1 == 0.0), x0, x1),
    )


@triton.jit
def _add_segments(f0, z0, f1, z1):
    """Combine sums for scans."""
    return f0 | f1, z1 + tl.where(f1 == 0, z0, 0.0)


@triton.jit
def _half(heights, task, bit, n):
    """Return whether a level has pairs, and the offset of its half of the rows."""
    height = tl.load(heights + task)
    return bit < height, (2 * task + ((height - 1 - bit) & 1)) * n


@triton.jit
def _start(begin, end, at, n, side):
    """Return the first place of the segment of the row at a position."""
    return tl.where(side == 0, tl.load(begin + at), n - tl.load(end + at))


@triton.jit(do_not_specialize=["bit"])
def level_sums(
    ranked, rank, row, begin, end, winner, loser, vector, heights, prefix, ones, n, bit,
    HAS_WEIGHTS: tl.constexpr, HAS_VECTOR: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the prefix moments of both sides, and the rows with the bit, inside each block.

    Programs: (blocks, tasks). See the module for the arguments.
    """
    task = tl.program_id(1).to(tl.int64)
    active, half = _half(heights, task, bit, n)
    if active:
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < n
        zero = tl.zeros((BLOCK,), tl.float64)
        stride = tl.full((), 1, tl.int64) * n
        for side in tl.static_range(2):
            # 1. Load the rows; those of the other class have no weight.
            at = half + tl.where(inside, place if side == 0 else n - 1 - place, 0)
            source = task * n + tl.load(row + at)
            won = (tl.load(rank + at) >> bit) & 1
            y = tl.load(ranked + at).to(tl.float64)
            if side == 1:
                y = -y
            if HAS_WEIGHTS:
                w = tl.load((winner if side == 0 else loser) + source).to(tl.float64)
            else:
                w = zero + 1.0
            w = tl.where(inside & (won == 1 - side), w, 0.0)
            # 2. Scan them, from the start of each segment on.
            head = (place == _start(begin, end, at, n, side)).to(tl.int32)
            _, mass, m, q, x = tl.associative_scan((head, w, zero, zero, y), 0, _merge_segments)
            to = prefix + (2 * task + side) * COLUMNS * n + place
            moments = from_double(mass), from_double(m), from_double(q), x
            store_moments(to, stride, moments, inside, False)
            if HAS_VECTOR:
                first = tl.load(vector + task * n).to(tl.float64)
                z = w * (tl.load(vector + source).to(tl.float64) - first)
                _, z = tl.associative_scan((head, z), 0, _add_segments)
                tl.store(to + MOMENTS * stride, z, mask=inside)
            if side == 0:
                count = tl.cumsum(tl.where(inside, won, 0), 0)
                tl.store(ones + task * n + place, count, mask=inside)


@triton.jit(do_not_specialize=["bit"])
def level_carry(
    begin, end, heights, prefix, ones, carry, ones_carry, n, bit, HAS_VECTOR: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Store the carry of each block.

    Programs: (2 sides, tasks). STEP blocks are scanned at once. See the module for the arguments.
    """
    side = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    active, half = _half(heights, task, bit, n)
    if active:
        blocks = (n + BLOCK - 1) // BLOCK
        stride = tl.full((), 1, tl.int64) * n
        prefix += (2 * task + side) * COLUMNS * stride
        carry += (2 * task + side) * COLUMNS * blocks
        ones += task * n
        ones_carry += task * blocks
        for start in range(0, blocks, STEP):
            # 1. The moments of STEP blocks are those at their last place.
            block = start + tl.arange(0, STEP)
            inside = block < blocks
            last = tl.minimum((block + 1) * BLOCK, n) - 1
            last = tl.where(inside, last, 0)
            at = half + tl.where(side == 0, last, n - 1 - last)
            head = (_start(begin, end, at, n, side) >= block * BLOCK).to(tl.int32)
            w, m, q, x = load_moments(prefix + last, stride, inside, False)
            # 2. Scan them, and add the blocks before, which stand first in the scan.
            old = load_moments(carry + start - 1, blocks, start > 0, False)
            found, w, m, q, x = tl.associative_scan((head, w[0], m[0], q[0], x), 0, _merge_segments)
            _, w, m, q, x = _merge_segments(
                found, old[0][0], old[1][0], old[2][0], old[3], found, w, m, q, x
            )
            moments = from_double(w), from_double(m), from_double(q), x
            store_moments(carry + block, blocks, moments, inside, False)
            if HAS_VECTOR:
                z = tl.load(prefix + MOMENTS * stride + last, mask=inside, other=0.0)
                _, z = tl.associative_scan((head, z), 0, _add_segments)
                earlier = tl.load(carry + MOMENTS * blocks + start - 1, mask=start > 0, other=0.0)
                z += tl.where(found == 0, earlier, 0.0)
                tl.store(carry + MOMENTS * blocks + block, z, mask=inside)
            if side == 0:
                count = tl.cumsum(tl.load(ones + last, mask=inside, other=0), 0)
                count += tl.load(ones_carry + start - 1, mask=start > 0, other=0)
                tl.store(ones_carry + block, count, mask=inside)
            tl.debug_barrier()


@triton.jit
def _sums_up_to(
    prefix, carry, stride, blocks, place, start, COLUMN: tl.constexpr, BLOCK: tl.constexpr
):
    """Return a column's sum over the rows from the first place of a segment up to one of it."""
    block = place // BLOCK
    near = tl.load(prefix + COLUMN * stride + place, mask=place >= start, other=0.0)
    whole = (place >= start) & (block * BLOCK > start)
    return near + tl.load(carry + COLUMN * blocks + block - 1, mask=whole, other=0.0)


@triton.jit
def _ones_before(ones, ones_carry, position, BLOCK: tl.constexpr):
    """Return how many rows before a position have the bit."""
    last = position - 1
    block = last // BLOCK
    near = tl.load(ones + last, mask=position > 0, other=0)
    return near + tl.load(ones_carry + block - 1, mask=(position > 0) & (block > 0), other=0)


@triton.jit(do_not_specialize=["bit"])
def level_look_up(
    ranked, rank, row, begin, end, winner, loser, vector, heights, prefix, ones, carry, ones_carry,
    terms, slopes, masses, curves, shares, n, bit, HAS_WEIGHTS: tl.constexpr,
    WANT_GRAD: tl.constexpr, HAS_VECTOR: tl.constexpr, WANT_HESS: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add the pairs of the level to the sums of each row, and store the rows of the next level.

    Programs: (ceil(n / ROWS), tasks). See the module for other arguments.

    terms                   the `KnotTerm`
    slopes, masses, curves  (tasks, n) float64, read and written if WANT_GRAD, WANT_HESS and
                            HAS_VECTOR: gradient, diagonal of the Hessian, Hessian times vector
    shares                  (tasks, 2, programs) float64, read and written: loss, weight of pairs
    """
    pid, programs = tl.program_id(0), tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    active, half = _half(heights, task, bit, n)
    if active:
        # 1. Load the rows of this program.
        blocks = (n + BLOCK - 1) // BLOCK
        stride = tl.full((), 1, tl.int64) * n
        i = pid * ROWS + tl.arange(0, ROWS)
        mine = i < n
        at = half + tl.where(mine, i, 0)
        s = tl.load(ranked + at)
        r = tl.load(rank + at)
        source = tl.load(row + at)
        a, e = tl.load(begin + at), tl.load(end + at)
        won = (r >> bit) & 1
        to = task * n + source
        if HAS_WEIGHTS:
            own = tl.load(winner + to, mask=won == 1, other=0.0).to(tl.float64)
            own += tl.load(loser + to, mask=won == 0, other=0.0).to(tl.float64)
        else:
            own = tl.full((ROWS,), 1.0, tl.float64)
        own = tl.where(mine, own, 0.0)
        sign = tl.where(won == 1, -1.0, 1.0).to(tl.float64)
        # 2. Moments of the rows of the segment below the place, about the place.
        shift, b0, b1, b2, _ = load_term(terms, 0)
        spot = two_sum(sign * s.to(tl.float64), tl.zeros((ROWS,), tl.float64) + shift)
        start = tl.where(won == 1, n - e, a)
        last = rows_below_in(ranked + half, n, sign, spot, start, e - a) - 1
        near = prefix + (2 * task + won) * COLUMNS * stride
        far = carry + (2 * task + won) * COLUMNS * blocks
        block = last // BLOCK
        some = last >= start
        w, m, q = moments_at(load_moments(near + last, stride, some, False), spot, False)
        whole = some & (block * BLOCK > start)
        before = load_moments(far + block - 1, blocks, whole, False)
        w_far, m_far, q_far = moments_at(before, spot, False)
        w, m = w[0] + w_far[0], m[0] + m_far[0]
        q = tl.where(b2 == 0.0, 0.0, q[0] + q_far[0])  # it may have overflowed
        # 3. Add the derivatives of these rows.
        if WANT_GRAD:
            slope = sign * own * (b1 * w + 2.0 * b2 * m)
            tl.store(slopes + to, tl.load(slopes + to, mask=mine) + slope, mask=mine)
        if WANT_HESS:
            mass = 2.0 * b2 * own * w
            tl.store(masses + to, tl.load(masses + to, mask=mine) + mass, mask=mine)
        if HAS_VECTOR:
            z = tl.load(vector + to).to(tl.float64) - tl.load(vector + task * n).to(tl.float64)
            zs = _sums_up_to(near, far, stride, blocks, last, start, MOMENTS, BLOCK)
            curve = 2.0 * b2 * own * (z * w - zs)
            tl.store(curves + to, tl.load(curves + to, mask=mine) + curve, mask=mine)
        # 4. Add the loss, by the negative of each pair; and the pairs of each segment, by its first
        #    row.
        loss = tl.sum(tl.where(won == 0, own * (b0 * w + b1 * m + b2 * q), 0.0), 0)
        is_first = mine & (i == a)
        sides = 2 * task * COLUMNS
        pos = _sums_up_to(prefix + sides * stride, carry + sides * blocks, stride, blocks,
                          tl.where(is_first, e - 1, -1), a, 1, BLOCK)  # fmt: skip
        sides += COLUMNS
        neg = _sums_up_to(prefix + sides * stride, carry + sides * blocks, stride, blocks,
                          tl.where(is_first, n - 1 - a, -1), n - e, 1, BLOCK)  # fmt: skip
        pairs = tl.sum(pos * neg, 0)
        shares += 2 * task * programs + pid
        tl.store(shares, tl.load(shares) + loss)
        tl.store(shares + programs, tl.load(shares + programs) + pairs)
        # 5. Stable partition of each segment by the bit: rows without it come first.
        if bit > 0:
            ones += task * n
            ones_carry += task * blocks
            at_begin = _ones_before(ones, ones_carry, a, BLOCK)
            middle = e - (_ones_before(ones, ones_carry, e, BLOCK) - at_begin)
            before_i = _ones_before(ones, ones_carry, i, BLOCK) - at_begin
            goal = (4 * task + 1) * n - half + tl.where(won == 1, middle + before_i, i - before_i)
            tl.store(ranked + goal, s, mask=mine)
            tl.store(rank + goal, r, mask=mine)
            tl.store(row + goal, source, mask=mine)
            tl.store(begin + goal, tl.where(won == 1, middle, a), mask=mine)
            tl.store(end + goal, tl.where(won == 1, e, middle), mask=mine)

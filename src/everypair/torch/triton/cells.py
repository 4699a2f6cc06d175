"""Rows and the cells they fall into, for `buckets`: survey, count, look-up.

Level 0 divides the axis of scores into CELLS equal cells, from the lowest positive to the highest
negative plus the shift. Each further level holds the parts of the cells that the level above it
splits. See `workspace` for the layout.

Arguments that the device functions share: `scores`, `labels` and `grad` point to the n rows of a
task, `work` to its work space; P is the number of programs of a task; `low`, `scale` and `shift`
define the axis; BLOCK is the number of rows that a program reads at once; with MISSING, rows whose
label is NaN are left out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.common.workspace import (
    CELLS, CHILD, CHUNK_LOSS, LINES, N_LEVELS, PARTS, SURVEY_WORDS, WIDTH, as_int64, column, pack,
    unpack,
)  # fmt: skip

ONE = tl.constexpr(1 << 24)
"""A fraction of a cell is an integer number of these parts. Test: `test_integer_sums_fit`."""
ROW = tl.constexpr(1 << 44)
"""One row in a packed count: 20 bits of rows above 44 bits of the sum of fractions."""


@triton.jit
def _load_rows(scores, labels, i, n, MISSING: tl.constexpr):
    """Return scores, which rows are positive, and which rows take part."""
    here = i < n
    s = tl.load(scores + i, mask=here, other=0.0).to(tl.float32)
    label = tl.load(labels + i, mask=here, other=0)
    if MISSING:
        here = here & (label == label)
    return s, label > 0, here


@triton.jit
def survey(scores, labels, parts, n, P, BLOCK: tl.constexpr, MISSING: tl.constexpr):
    """Store SURVEY_WORDS results of the rows of this program at `parts`.

    They are the lowest positive, the highest negative, the number of positives and of negatives,
    and 0, or NaN if a score is not finite.
    """
    pid = tl.program_id(0)
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    n_pos, n_neg = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    nonfinite = tl.zeros((BLOCK,), tl.float32)
    for start in range(pid * BLOCK, n, P * BLOCK):
        s, positive, here = _load_rows(scores, labels, start + tl.arange(0, BLOCK), n, MISSING)
        negative = here & (positive == 0)
        positive = here & positive
        low = tl.minimum(low, tl.where(positive, s, float("inf")))
        high = tl.maximum(high, tl.where(negative, s, float("-inf")))
        n_pos += positive.to(tl.int32)
        n_neg += negative.to(tl.int32)
        nonfinite += s * 0.0
    parts += SURVEY_WORDS * pid
    tl.store(parts, tl.min(low, 0).to(tl.float64))
    tl.store(parts + 1, tl.max(high, 0).to(tl.float64))
    tl.store(parts + 2, tl.sum(n_pos, 0).to(tl.float64))
    tl.store(parts + 3, tl.sum(n_neg, 0).to(tl.float64))
    tl.store(parts + 4, tl.sum(nonfinite, 0).to(tl.float64))


@triton.jit
def axis(parts, shift, P, PROGRAMS: tl.constexpr):
    """Return `low`, the lowest positive; `scale`, cells per unit; the number of pairs; 0 or NaN."""
    i = tl.arange(0, PROGRAMS)
    here = i < P
    parts += SURVEY_WORDS * i
    low = tl.min(tl.load(parts, mask=here, other=float("inf")), 0)
    high = tl.max(tl.load(parts + 1, mask=here, other=float("-inf")), 0)
    n_pos = tl.sum(tl.load(parts + 2, mask=here, other=0.0), 0)
    n_neg = tl.sum(tl.load(parts + 3, mask=here, other=0.0), 0)
    nonfinite = tl.sum(tl.load(parts + 4, mask=here, other=0.0), 0)
    length = high - low + shift
    # The axis is a little longer than the range, so that the highest negative falls inside.
    scale = tl.where(length > 0.0, (1.0 - 2.0**-38) / length * CELLS, 0.0)
    return low, scale, n_pos * n_neg, nonfinite


@triton.jit
def _place(s, positive, here, low, scale, shift):
    """Return cell and fraction inside it on level 0, and which rows can be in an active pair."""
    u = s.to(tl.float64) - low
    p = tl.where(positive, u, u + shift) * scale
    active = here & (p >= 0.0) & (p < CELLS)
    cell = tl.where(active, p, 0.0).to(tl.int32)
    return cell, tl.where(active, p - cell, 0.0), active


@triton.jit
def _descend(work, level, cell, fraction, mask):
    """Return cell and fraction on the next level, and which rows are in a cell that is split."""
    parts = tl.load(column(work, level, PARTS) + cell, mask=mask, other=0.0)
    mask = mask & (parts > 0.0)
    child = tl.load(column(work, level, CHILD) + cell, mask=mask, other=0.0).to(tl.int32)
    at = fraction * parts
    part = at.to(tl.int32)
    return child + part, at - part, mask


@triton.jit
def count(scores, labels, table, work, n, P, low, scale, shift, level, BLOCK: tl.constexpr,
          MISSING: tl.constexpr, SHARED: tl.constexpr):  # fmt: skip
    """Count the rows of this program on a level: by class and cell, packed rows and fractions.

    `table` points to 2 x CELLS int64 of this program: negatives, then positives. With SHARED, on a
    GPU, rows are counted in shared memory first, in two words of 32 bits for each count, because
    the hardware adds 32 bits atomically but not 64. The low word is that of the sum of fractions;
    the high word has 20 bits of rows, and above them the carries of the low word.
    """
    pid = tl.program_id(0)
    lane = tl.arange(0, 1024)
    base = 0
    if SHARED:
        # Triton offers no atomic operations on shared memory. A vector of 32 entries has one for
        # each thread of a warp, so that the array is declared once.
        base = tl.max(
            tl.inline_asm_elementwise(
                "{ .shared .align 8 .b8 everypair_counts[32768]; mov.u32 $0, everypair_counts; }",
                "=r,r", [tl.arange(0, 32)], dtype=tl.int32, is_pure=False, pack=1,
            ), 0,
        )  # fmt: skip
        for k in range(0, 2 * CELLS, 1024):
            tl.inline_asm_elementwise(
                "{ .reg .b64 zero; mov.b64 zero, 0; st.shared.b64 [$1], zero; mov.u32 $0, 0; }",
                "=r,r", [base + (lane + k) * 8], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
    else:
        for k in range(0, 2 * CELLS, 1024):
            tl.store(table + k + lane, tl.zeros((1024,), tl.int64))
    tl.debug_barrier()
    for start in range(pid * BLOCK, n, P * BLOCK):
        s, positive, here = _load_rows(scores, labels, start + tl.arange(0, BLOCK), n, MISSING)
        cell, fraction, mask = _place(s, positive, here, low, scale, shift)
        for above in range(level):
            cell, fraction, mask = _descend(work, above, cell, fraction, mask)
        slot = tl.where(mask, cell, 0) + tl.where(positive, CELLS, 0)
        part = (fraction * ONE).to(tl.int32)
        if SHARED:
            tl.inline_asm_elementwise(
                """{
                .reg .pred here, over;
                .reg .u32 old, room, more;
                setp.ne.u32 here, $3, 0;
                @here atom.shared.add.u32 old, [$1], $2;
                not.b32 room, old;
                setp.gt.u32 over, $2, room;
                selp.u32 more, 0x100001, 1, over;
                @here red.shared.add.u32 [$1 + 16384], more;
                mov.u32 $0, 0;
                }""",
                "=r,r,r,r", [base + slot * 4, part, mask.to(tl.int32)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            tl.atomic_add(table + slot, part.to(tl.int64) + ROW, mask=mask, sem="relaxed")
    tl.debug_barrier()
    if SHARED:
        for k in range(0, 2 * CELLS, 1024):
            counted = tl.inline_asm_elementwise(
                """{
                .reg .u32 low, high, rows, carries;
                ld.shared.u32 low, [$1];
                ld.shared.u32 high, [$1 + 16384];
                shr.u32 carries, high, 20;
                shl.b32 rows, high, 12;
                or.b32 high, rows, carries;
                mov.b64 $0, {low, high};
                }""",
                "=l,r", [base + (lane + k) * 4], dtype=tl.int64, is_pure=False, pack=1,
            )  # fmt: skip
            tl.store(table + k + lane, counted)


@triton.jit
def merged(tables, i, P, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Return the sums over all programs in the cells i: rows and fractions, by class.

    A tile of HIGH programs and WIDE cells is read at once.
    """
    rows0, sums0 = tl.zeros((HIGH, WIDE), tl.int64), tl.zeros((HIGH, WIDE), tl.int64)
    rows1, sums1 = rows0, sums0
    for top in range(0, P, HIGH):
        program = top + tl.arange(0, HIGH)
        at = tables + program[:, None].to(tl.int64) * (2 * CELLS) + i[None, :]
        there = (program < P)[:, None]
        packed = tl.load(at, mask=there, other=0)
        rows0 += (packed >> 44) & 0xFFFFF
        sums0 += packed & (ROW - 1)
        packed = tl.load(at + CELLS, mask=there, other=0)
        rows1 += (packed >> 44) & 0xFFFFF
        sums1 += packed & (ROW - 1)
    return tl.sum(rows0, 0), tl.sum(sums0, 0), tl.sum(rows1, 0), tl.sum(sums1, 0)


@triton.jit
def store_lines(work, level, i, split, gain, n0, f0, n1, f1, width, a, m, d, e):
    """Store the lines of cells, see `look_up`: packed (c, d) and (k, m) for each class.

    c is NaN where a cell is split.
    """
    nothing = float("nan")
    slope = gain * width
    line = as_int64(column(work, level, LINES)) + 4 * i
    chord = tl.where(n1 > 1, 0.5, 0.0)
    tl.store(line, pack(tl.where(split, nothing, gain * m), slope * (a + chord * (n1 - f1))))
    tl.store(line + 1, pack(slope * (1 - chord) * n1, f1 / tl.where(n1 > 0, n1, 1.0)))
    # For positives the kink is mirrored: max(m - f, 0) = max(f - m, 0) - f + m.
    chord = tl.where(n0 > 1, 0.5, 0.0)
    tl.store(
        line + 2,
        pack(
            tl.where(split, nothing, -gain * e - slope * (d + f0)),
            slope * (d + (1 - chord) * n0 + chord * f0),
        ),
    )
    tl.store(line + 3, pack(-slope * (1 - chord) * n0, f0 / tl.where(n0 > 0, n0, 1.0)))


@triton.jit
def look_up(scores, labels, grad, work, sums, n, P, low, scale, shift, n_live, gain, nonfinite,
             WANT_GRAD: tl.constexpr, BLOCK: tl.constexpr, MISSING: tl.constexpr):  # fmt: skip
    """Store the gradient of the rows of this program, and the sum of squares at ``sums[pid]``.

    The gradient is that of the line of the row's cell, on the deepest level that has the row: c +
    d f + k max(f - m, 0) at the fraction f. A line whose c is NaN belongs to a cell that is split.
    Rows from `n_live` on are in no active pair. `gain` is the gradient of a unit of the sum of d.
    """
    pid = tl.program_id(0)
    levels = tl.load(work + N_LEVELS).to(tl.int32)
    squares = tl.zeros((BLOCK,), tl.float64)
    for start in range(pid * BLOCK, n, P * BLOCK):
        i = start + tl.arange(0, BLOCK)
        s, positive, here = _load_rows(scores, labels, i, n, MISSING)
        cell, fraction, active = _place(s, positive, here & (i < n_live), low, scale, shift)
        side = 2 * positive.to(tl.int32)
        line = as_int64(column(work, 0, LINES)) + 4 * cell + side
        c, d = unpack(tl.load(line, mask=active, other=0))
        k, m = unpack(tl.load(line + 1, mask=active, other=0))
        f = fraction.to(tl.float32)
        slope = c + d * f + k * tl.maximum(f - m, 0.0)
        square = (d * f * f).to(tl.float64)
        heavy = active & (c != c)
        for level in range(1, levels):
            cell, fraction, heavy = _descend(work, level - 1, cell, fraction, heavy)
            line = as_int64(column(work, level, LINES)) + 4 * cell + side
            c, d = unpack(tl.load(line, mask=heavy, other=0))
            k, m = unpack(tl.load(line + 1, mask=heavy, other=0))
            f = fraction.to(tl.float32)
            slope = tl.where(heavy, c + d * f + k * tl.maximum(f - m, 0.0), slope)
            width = tl.load(column(work, level, WIDTH) + cell, mask=heavy, other=0.0)
            square = tl.where(heavy, (d * f * f).to(tl.float64) * width, square)
            heavy = heavy & (c != c)
        squares += tl.where(active, square, 0.0)
        if WANT_GRAD:
            tl.store(grad + i, slope + nonfinite.to(tl.float32), mask=i < n)
    tl.store(sums + pid, tl.sum(squares, 0) / gain)


@triton.jit
def finish(value, pair_weight, one_class, work, sums, P, b2, share, scale, pairs, live, nonfinite,
            PROGRAMS: tl.constexpr, CHUNKS: tl.constexpr, COUNTED: tl.constexpr):  # fmt: skip
    """Store the loss and the number of pairs, and count a task without pairs.

    `sums` has the squares of each program, `share` is the divisor of the reduction, and `live` says
    whether there is any active pair.
    """
    i = tl.arange(0, PROGRAMS)
    squares = tl.sum(tl.load(sums + i, mask=i < P, other=0.0), 0)
    squares += tl.sum(tl.load(work + CHUNK_LOSS + tl.arange(0, CHUNKS)), 0)
    found = tl.where(live, b2 * squares / (share * scale * scale), 0.0) + nonfinite
    tl.store(value, found.to(tl.float32))
    tl.store(pair_weight, pairs + nonfinite)
    if COUNTED:
        tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))

"""The cells of the certified plan on a GPU: where they are kept, and how rows are counted in them.

A level is a table of columns, CELLS long each, of eight-byte words in the workspace of a batch.
Level 0 is the axis itself; each further level holds the parts of the cells that the one before
splits.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "ABOVE",
    "ABOVE_M",
    "BELOW",
    "BELOW_M",
    "BELOW_S",
    "CELLS",
    "CHILD",
    "COUNTS",
    "C_N0",
    "C_N1",
    "C_U0",
    "C_U1",
    "C_V1",
    "DONE",
    "HEAVIES",
    "LEVELS",
    "LIMITS",
    "LINES",
    "LOSSES",
    "MOST_CHUNKS",
    "N_SPLIT",
    "ONE",
    "OWN_SLACK",
    "PARTS",
    "SHARES",
    "SLACK",
    "SPLIT",
    "TOTALS",
    "WIDTH",
    "WORK",
    "axis",
    "column",
    "count",
    "descend",
    "integers",
    "merged",
    "pack",
    "place",
    "rows",
    "survey",
    "unpack",
]

CELLS = tl.constexpr(2048)
"""Cells of a level: their counts, 8 bytes a class, fit in the memory of a multiprocessor."""
LEVELS = tl.constexpr(8)
"""Levels at most; each divides what is still heavy by up to 2048."""
MOST_CHUNKS = tl.constexpr(64)
"""Programs that share the scan of a level, at most."""
SLACK = tl.constexpr(1.5 * 2.0**-21)  # relative error of a gradient
OWN_SLACK = tl.constexpr(2.0**-22)  # of the loss, for its pairs of one cell
ONE = tl.constexpr(1 << 24)  # fractions are integers of 24 bits
ROW = tl.constexpr(1 << 44)  # and stand below the number of rows in a packed count

# Columns of a level in the workspace, CELLS long each.
C_N0, C_U0, C_N1, C_U1, C_V1 = (tl.constexpr(k) for k in range(5))  # running sums of a chunk
BELOW, BELOW_M, BELOW_S = (tl.constexpr(k) for k in range(5, 8))  # A, M and the second moment
ABOVE, ABOVE_M = (tl.constexpr(k) for k in range(8, 10))  # D and E
WIDTH, PARTS, CHILD, HEAVIES = (tl.constexpr(k) for k in range(10, 14))
LINES = tl.constexpr(14)  # four columns: two packed words for each class
COLUMNS = tl.constexpr(18)
# Numbers of a batch, before the levels. By level: into how many parts it splits each heavy cell of
# the one before (0: it is not needed), and how many of these there are. Levels that are done. Five
# limits. By chunk: five sums over its cells, four shares of what the limits need, heavy cells,
# losses.
SPLIT, N_SPLIT, DONE, LIMITS = (tl.constexpr(k) for k in (0, 16, 32, 33))
TOTALS, SHARES, COUNTS, LOSSES = (tl.constexpr(38 + 64 * k) for k in (0, 5, 9, 10))
NUMBERS = tl.constexpr(38 + 64 * 11)
WORK = NUMBERS + LEVELS * COLUMNS * CELLS
"""Eight-byte words of workspace for a batch, besides six and a table for each program."""


@triton.jit
def column(work, level, column):
    return work + NUMBERS + (level * COLUMNS + column) * CELLS


@triton.jit
def integers(column):
    return column.to(tl.pointer_type(tl.int64))


@triton.jit
def pack(first, second):
    low = first.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (second.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def unpack(word):
    low = (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return low, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def rows(scores, labels, i, n, MISSING: tl.constexpr):
    """Return scores, whether rows are positive, and which take part: not those without a label."""
    here = i < n
    s = tl.load(scores + i, mask=here, other=0.0).to(tl.float32)
    label = tl.load(labels + i, mask=here, other=0)
    if MISSING:
        here = here & (label == label)
    return s, label > 0, here


@triton.jit
def survey(scores, labels, parts, n, P, BLOCK: tl.constexpr, MISSING: tl.constexpr):
    pid = tl.program_id(0)
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    n_pos, n_neg = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    taint = tl.zeros((BLOCK,), tl.float32)
    for start in range(pid * BLOCK, n, P * BLOCK):
        s, positive, here = rows(scores, labels, start + tl.arange(0, BLOCK), n, MISSING)
        negative = here & (positive == 0)
        positive = here & positive
        low = tl.minimum(low, tl.where(positive, s, float("inf")))
        high = tl.maximum(high, tl.where(negative, s, float("-inf")))
        n_pos += positive.to(tl.int32)
        n_neg += negative.to(tl.int32)
        taint += s * 0.0
    parts += 5 * pid
    tl.store(parts, tl.min(low, 0).to(tl.float64))
    tl.store(parts + 1, tl.max(high, 0).to(tl.float64))
    tl.store(parts + 2, tl.sum(n_pos, 0).to(tl.float64))
    tl.store(parts + 3, tl.sum(n_neg, 0).to(tl.float64))
    tl.store(parts + 4, tl.sum(taint, 0).to(tl.float64))


@triton.jit
def axis(parts, shift, P, PROGRAMS: tl.constexpr):
    """Return lowest positive, cells per unit of score, number of pairs, and NaN or zero."""
    i = tl.arange(0, PROGRAMS)
    here = i < P
    parts += 5 * i
    low = tl.min(tl.load(parts, mask=here, other=float("inf")), 0)
    high = tl.max(tl.load(parts + 1, mask=here, other=float("-inf")), 0)
    n_pos = tl.sum(tl.load(parts + 2, mask=here, other=0.0), 0)
    n_neg = tl.sum(tl.load(parts + 3, mask=here, other=0.0), 0)
    taint = tl.sum(tl.load(parts + 4, mask=here, other=0.0), 0)
    length = high - low + shift
    # A hair longer than the range, so that the highest negative falls inside.
    scale = tl.where(length > 0.0, (1.0 - 2.0**-38) / length * CELLS, 0.0)
    return low, scale, n_pos * n_neg, taint


@triton.jit
def place(s, positive, here, low, scale, shift):
    """Return place, cell and fraction at level 0, and which rows can be in a pair."""
    u = s.to(tl.float64) - low
    p = tl.where(positive, u, u + shift) * scale
    active = here & (p >= 0.0) & (p < CELLS)
    cell = tl.where(active, p, 0.0).to(tl.int32)
    return cell, tl.where(active, p - cell, 0.0), active


@triton.jit
def descend(work, level, cell, fraction, mask):
    """Return where rows of a heavy cell stand on the next level; others are masked out."""
    parts = tl.load(column(work, level, PARTS) + cell, mask=mask, other=0.0)
    mask = mask & (parts > 0.0)
    child = tl.load(column(work, level, CHILD) + cell, mask=mask, other=0.0).to(tl.int32)
    at = fraction * parts
    part = at.to(tl.int32)
    return child + part, at - part, mask


@triton.jit
def count(scores, labels, table, work, n, P, low, scale, shift, level, BLOCK: tl.constexpr,
          MISSING: tl.constexpr, SHARED: tl.constexpr):  # fmt: skip
    """Count the rows of a program: by class and cell, their number and the sum of fractions.

    On a GPU in the memory of the multiprocessor, in two words of 32 bits because it adds those at
    once, and 64 bits by trial and error: the low word of the sum, and above 20 bits for the rows
    those of the sum that did not fit.
    """
    pid = tl.program_id(0)
    lane = tl.arange(0, 1024)
    base = 0
    if SHARED:
        # Triton has no counters in the memory of a multiprocessor: these are ours. A vector this
        # short has one entry a thread, so that they are declared once.
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
        s, positive, here = rows(scores, labels, start + tl.arange(0, BLOCK), n, MISSING)
        cell, fraction, mask = place(s, positive, here, low, scale, shift)
        for above in range(level):
            cell, fraction, mask = descend(work, above, cell, fraction, mask)
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
    """Return rows and sums of fractions, by class, that all programs counted in some cells."""
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

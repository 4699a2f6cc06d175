"""One truncated term b2 d^2 on a GPU, in three streaming passes and one launch.

The plan is that of the compiled kernel's certified buckets. Rows are placed on an axis of equal
cells, positives at p = s and negatives at p = s + shift, in units of a cell, from the lowest
positive on. A pair counts where p_neg > p_pos.

    survey   the range that matters, the number of positives
    count    per cell and class: rows, and the sum of their fractions, as integers
    scan     A and M: number and first moment of the positives below each cell; mirrored D and E
    look up  the line that gives a row's gradient, where the row stands

What the rows of one cell do to each other is bounded by convexity and replaced by a line with one
kink. Cells where that is not good enough ("heavy" ones) are split into parts that are counted and
scanned as another level of cells, until none is left. All sums that decide are sums of integers, so
the result does not depend on the order of rows or programs.

All programs run at once (a cooperative launch) and wait for each other between the steps, so the
host neither waits nor decides. Where they cannot, as in Triton's interpreter, the host launches the
steps one by one.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["CELLS", "LEVELS", "WORK", "certified"]

CELLS = tl.constexpr(2048)
"""Cells of a level: their counts, 8 bytes a class, fit in the memory of a multiprocessor."""
LEVELS = tl.constexpr(8)
"""Levels at most; each divides what is still heavy by up to 2048."""
CHUNK = tl.constexpr(256)  # cells that one program scans
CHUNKS = tl.constexpr(8)
SLACK = tl.constexpr(1.5 * 2.0**-21)  # relative error of a gradient
OWN_SLACK = tl.constexpr(2.0**-22)  # of the loss, for its pairs of one cell
ONE = tl.constexpr(1 << 24)  # fractions are integers of 24 bits
ROW = tl.constexpr(1 << 44)  # and stand below the number of rows in a packed count

# Columns of a level in the workspace, CELLS long each.
N_NEG, F_NEG, N_POS, F_POS = (tl.constexpr(k) for k in range(4))  # rows, sums of fractions
C_N0, C_U0, C_N1, C_U1, C_V1 = (tl.constexpr(k) for k in range(4, 9))  # running sums
BELOW, BELOW_M, BELOW_S = (tl.constexpr(k) for k in range(9, 12))  # A, M and the second moment
ABOVE, ABOVE_M = (tl.constexpr(k) for k in range(12, 14))  # D and E
WIDTH, FIRST, PARENT, PARTS, CHILD, HEAVIES = (tl.constexpr(k) for k in range(14, 20))
LINES = tl.constexpr(20)  # four columns: two packed words for each class
COLUMNS = tl.constexpr(24)
# Numbers of a batch, before the levels. By level: into how many parts it splits each heavy cell of
# the one before (0: it is not needed), and how many of these there are. Levels that are done. By
# chunk: five running sums, four shares of what the limits need, heavy cells, losses.
SPLIT, N_SPLIT, DONE = (tl.constexpr(k) for k in (0, 16, 31))
TOTALS, SHARES, COUNTS, LOSSES = (tl.constexpr(k) for k in (32, 72, 104, 112))
NUMBERS = tl.constexpr(120)
WORK = NUMBERS + LEVELS * COLUMNS * CELLS
"""Eight-byte words of workspace for a batch, besides five and a table for each program."""


@triton.jit
def _wait(counter, target):
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
def _rows(scores, labels, i, n):
    inside = i < n
    s = tl.load(scores + i, mask=inside, other=0.0).to(tl.float32)
    positive = tl.load(labels + i, mask=inside, other=0) > 0
    return s, positive, inside


@triton.jit
def _survey(scores, labels, parts, n, P, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    n_pos = tl.zeros((BLOCK,), tl.int32)
    taint = tl.zeros((BLOCK,), tl.float32)
    for start in range(pid * BLOCK, n, P * BLOCK):
        s, positive, inside = _rows(scores, labels, start + tl.arange(0, BLOCK), n)
        low = tl.minimum(low, tl.where(inside & positive, s, float("inf")))
        high = tl.maximum(high, tl.where(inside & (positive == 0), s, float("-inf")))
        n_pos += (inside & positive).to(tl.int32)
        taint += s * 0.0
    tl.store(parts + 4 * pid, tl.min(low, 0).to(tl.float64))
    tl.store(parts + 4 * pid + 1, tl.max(high, 0).to(tl.float64))
    tl.store(parts + 4 * pid + 2, tl.sum(n_pos, 0).to(tl.float64))
    tl.store(parts + 4 * pid + 3, tl.sum(taint, 0).to(tl.float64))


@triton.jit
def _axis(parts, shift, P, PROGRAMS: tl.constexpr):
    """Return lowest positive, cells per unit of score, number of positives, and NaN or zero."""
    i = tl.arange(0, PROGRAMS)
    here = i < P
    low = tl.min(tl.load(parts + 4 * i, mask=here, other=float("inf")), 0)
    high = tl.max(tl.load(parts + 4 * i + 1, mask=here, other=float("-inf")), 0)
    n_pos = tl.sum(tl.load(parts + 4 * i + 2, mask=here, other=0.0), 0)
    taint = tl.sum(tl.load(parts + 4 * i + 3, mask=here, other=0.0), 0)
    length = high - low + shift
    # A hair longer than the range, so that the highest negative falls inside.
    scale = tl.where(length > 0.0, (1.0 - 2.0**-38) / length * CELLS, 0.0)
    return low, scale, n_pos, taint


@triton.jit
def _place(s, positive, inside, low, scale, shift):
    """Return place, cell and fraction at level 0, and which rows can be in a pair."""
    u = s.to(tl.float64) - low
    p = tl.where(positive, u, u + shift) * scale
    active = inside & (p >= 0.0) & (p < CELLS)
    cell = tl.where(active, p, 0.0).to(tl.int32)
    return cell, tl.where(active, p - cell, 0.0), active


@triton.jit
def _column(work, level, column):
    return work + NUMBERS + (level * COLUMNS + column) * CELLS


@triton.jit
def _descend(work, level, cell, fraction, mask):
    """Return where rows of a heavy cell stand on the next level; others are masked out."""
    parts = tl.load(_column(work, level, PARTS) + cell, mask=mask, other=0.0)
    mask = mask & (parts > 0.0)
    child = tl.load(_column(work, level, CHILD) + cell, mask=mask, other=0.0).to(tl.int32)
    at = fraction * parts
    part = at.to(tl.int32)
    return child + part, at - part, mask


@triton.jit
def _count(scores, labels, table, work, n, P, low, scale, shift, level, BLOCK: tl.constexpr,
           SHARED: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    lane = tl.arange(0, 256)
    base = 0
    if SHARED:
        # Triton has no counters in the memory of a multiprocessor: these are ours.
        base = tl.max(
            tl.inline_asm_elementwise(
                "{ .shared .align 8 .b8 everypair_counts[32768]; mov.u32 $0, everypair_counts; }",
                "=r,r", [lane], dtype=tl.int32, is_pure=False, pack=1,
            ), 0,
        )  # fmt: skip
        for k in range(0, 2 * CELLS, 256):
            tl.inline_asm_elementwise(
                "{ .reg .b64 zero; mov.b64 zero, 0; st.shared.b64 [$1], zero; mov.u32 $0, 0; }",
                "=r,r", [base + (lane + k) * 8], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
    else:
        for k in range(0, 2 * CELLS, 256):
            tl.store(table + k + lane, tl.zeros((256,), tl.int64))
    tl.debug_barrier()
    for start in range(pid * BLOCK, n, P * BLOCK):
        s, positive, inside = _rows(scores, labels, start + tl.arange(0, BLOCK), n)
        cell, fraction, mask = _place(s, positive, inside, low, scale, shift)
        for above in range(level):
            cell, fraction, mask = _descend(work, above, cell, fraction, mask)
        slot = 2 * tl.where(mask, cell, 0) + positive.to(tl.int32)
        count = tl.where(mask, (fraction * ONE).to(tl.int64) + ROW, 0)
        if SHARED:
            tl.inline_asm_elementwise(
                "{ red.shared.add.u64 [$1], $2; mov.u32 $0, 0; }",
                "=r,r,l", [base + slot * 8, count], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            tl.atomic_add(table + slot, count, mask=mask, sem="relaxed")
    tl.debug_barrier()
    if SHARED:
        for k in range(0, 2 * CELLS, 256):
            counted = tl.inline_asm_elementwise(
                "ld.shared.b64 $0, [$1];",
                "=l,r", [base + (lane + k) * 8], dtype=tl.int64, is_pure=False, pack=1,
            )  # fmt: skip
            tl.store(table + k + lane, counted)


@triton.jit
def _merge(tables, work, level, P):
    """Add up the tables of all programs; each program takes its share of the cells."""
    pid = tl.program_id(0)
    WIDE: tl.constexpr = 16
    HIGH: tl.constexpr = 64
    for first in range(pid * WIDE, 2 * CELLS, P * WIDE):
        slot = first + tl.arange(0, WIDE)
        rows = tl.zeros((WIDE,), tl.int64)
        fractions = tl.zeros((WIDE,), tl.int64)
        for top in range(0, P, HIGH):
            program = top + tl.arange(0, HIGH)
            packed = tl.load(
                tables + program[:, None] * (2 * CELLS) + slot[None, :],
                mask=(program < P)[:, None],
                other=0,
            )
            rows += tl.sum(packed >> 44, 0)
            fractions += tl.sum(packed & (ROW - 1), 0)
        at = _column(work, level, N_NEG) + (slot % 2) * (2 * CELLS) + slot // 2
        tl.store(at, rows.to(tl.float64))
        tl.store(at + CELLS, fractions.to(tl.float64))


@triton.jit
def _pack(first, second):
    low = first.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (second.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def _unpack(word):
    low = (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return low, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _words(column):
    return column.to(tl.pointer_type(tl.int64))


@triton.jit
def _sums_of_chunk(work, level, chunk):
    """Lay out the cells of a chunk; store sums over those before each of them, and over all."""
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    if level == 0:
        tl.store(_column(work, level, FIRST) + i, tl.zeros((CHUNK,), tl.float64))
        tl.store(_column(work, level, WIDTH) + i, tl.full((CHUNK,), 1.0, tl.float64))
        j = i.to(tl.int64)
    else:
        parts = tl.load(work + SPLIT + level).to(tl.int32)
        nth = i // parts
        # Of cells that are not in use, all is empty.
        used = nth < tl.load(work + N_SPLIT + level).to(tl.int32)
        owner = tl.load(_column(work, level - 1, HEAVIES) + nth, mask=used, other=0.0)
        wide = tl.load(_column(work, level - 1, WIDTH) + owner.to(tl.int32))
        tl.store(_column(work, level, WIDTH) + i, tl.where(used, wide / parts, 0.0))
        tl.store(_column(work, level, PARENT) + i, owner)
        tl.store(_column(work, level, FIRST) + i, (nth * parts).to(tl.float64))
        j = (i - nth * parts).to(tl.int64)
    rows0 = tl.load(_column(work, level, N_NEG) + i).to(tl.int64)
    rows1 = tl.load(_column(work, level, N_POS) + i).to(tl.int64)
    sums0 = tl.load(_column(work, level, F_NEG) + i).to(tl.int64)
    sums1 = tl.load(_column(work, level, F_POS) + i).to(tl.int64)
    places0 = j * rows0 * ONE + sums0
    places1 = j * rows1 * ONE + sums1
    x = j.to(tl.float64)
    squares1 = x * x * rows1.to(tl.float64) + 2.0 * x * (sums1.to(tl.float64) / ONE)
    tl.store(_words(_column(work, level, C_N0)) + i, tl.cumsum(rows0, 0) - rows0)
    tl.store(_words(_column(work, level, C_U0)) + i, tl.cumsum(places0, 0) - places0)
    tl.store(_words(_column(work, level, C_N1)) + i, tl.cumsum(rows1, 0) - rows1)
    tl.store(_words(_column(work, level, C_U1)) + i, tl.cumsum(places1, 0) - places1)
    tl.store(_column(work, level, C_V1) + i, tl.cumsum(squares1, 0) - squares1)
    whole = _words(work + TOTALS) + chunk
    tl.store(whole, tl.sum(rows0, 0))
    tl.store(whole + CHUNKS, tl.sum(places0, 0))
    tl.store(whole + 2 * CHUNKS, tl.sum(rows1, 0))
    tl.store(whole + 3 * CHUNKS, tl.sum(places1, 0))
    tl.store(work + TOTALS + 4 * CHUNKS + chunk, tl.sum(squares1, 0))


@triton.jit
def _before(work, level, column, kind, i):
    """Return the sum over all cells before some; their place is CELLS for all cells."""
    k = tl.arange(0, CHUNKS)
    totals = tl.load(_words(work + TOTALS) + kind * CHUNKS + k)
    earlier = tl.sum(tl.where(k[None, :] < (i // CHUNK)[:, None], totals[None, :], 0), 1)
    within = tl.load(_words(_column(work, level, column)) + i, mask=i < CELLS, other=0)
    return earlier + within


@triton.jit
def _squares_before(work, level, i):
    k = tl.arange(0, CHUNKS)
    totals = tl.load(work + TOTALS + 4 * CHUNKS + k)
    earlier = tl.sum(tl.where(k[None, :] < (i // CHUNK)[:, None], totals[None, :], 0.0), 1)
    return earlier + tl.load(_column(work, level, C_V1) + i, mask=i < CELLS, other=0.0)


@triton.jit
def _cell(work, level, i):
    """Return what a cell holds: rows and sums of fractions by class, and its width."""
    n0 = tl.load(_column(work, level, N_NEG) + i)
    f0 = tl.load(_column(work, level, F_NEG) + i) / ONE
    n1 = tl.load(_column(work, level, N_POS) + i)
    f1 = tl.load(_column(work, level, F_POS) + i) / ONE
    return n0, f0, n1, f1, tl.load(_column(work, level, WIDTH) + i)


@triton.jit
def _inside(n0, f0, n1, f1, width):
    """Return an estimate of the sum of d^2 inside a cell, less what the look-up adds, and a bound.

    Half of all squares, or all or nothing where one class lies above the other; squares of the
    fractions are those of rows spread evenly around their mean.
    """
    q0 = f0 * f0 / tl.where(n0 > 0, n0, 1.0) + tl.where(n0 > 1, n0 / 12, 0.0)
    q1 = f1 * f1 / tl.where(n1 > 0, n1, 1.0) + tl.where(n1 > 1, n1 / 12, 0.0)
    pairs = n0 * n1
    half = tl.where(pairs > 0, 0.5 * width * width, 0.0)
    whole = n1 * q0 + n0 * q1 - 2 * f0 * f1
    apart = n1 * f0 - n0 * f1
    known = apart * apart / tl.where(pairs > 0, pairs, 1.0)
    doubt = tl.where((pairs > 1) & (whole - known > 2.0**-20 * whole), half * whole, 0.0)
    of_pos, of_neg = tl.where(n1 > 1, 0.5, 0.0), tl.where(n0 > 1, 0.5, 0.0)
    slopes = of_pos * (n1 - f1) * q0 + ((1 - of_neg) * n0 + of_neg * f0) * q1
    estimate = half * (whole + tl.where(apart > 0, known, -known)) - width * width * slopes
    return estimate, doubt


@triton.jit
def _moments_of_chunk(work, level, chunk):
    """Store A, M, the second moment, D and E of the cells of a chunk, and what the limits need.

    That is: the sum of d over pairs of different cells, of d^2 over all pairs and its doubt, and
    the number of cells in doubt.
    """
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    n0, f0, n1, f1, width = _cell(work, level, i)
    first = tl.load(_column(work, level, FIRST) + i).to(tl.int32)
    above, above_m = tl.zeros((CHUNK,), tl.float64), tl.zeros((CHUNK,), tl.float64)
    below, below_m, below_s = above, above, above
    end = tl.full((CHUNK,), CELLS, tl.int32)
    if level > 0:
        parent = tl.load(_column(work, level, PARENT) + i).to(tl.int32)
        above = tl.load(_column(work, level - 1, ABOVE) + parent)
        above_m = tl.load(_column(work, level - 1, ABOVE_M) + parent)
        below = tl.load(_column(work, level - 1, BELOW) + parent)
        below_m = tl.load(_column(work, level - 1, BELOW_M) + parent)
        below_s = tl.load(_column(work, level - 1, BELOW_S) + parent)
        end = first + tl.load(work + SPLIT + level).to(tl.int32)
    j = (i - first).to(tl.int64)
    x = j.to(tl.float64)
    # Positives of the same parent before this cell.
    rows = _before(work, level, C_N1, 2, i) - _before(work, level, C_N1, 2, first)
    places = _before(work, level, C_U1, 3, i) - _before(work, level, C_U1, 3, first)
    second = _squares_before(work, level, i) - _squares_before(work, level, first)
    count = rows.to(tl.float64)
    moment = (j * rows * ONE - places).to(tl.float64) / ONE
    spread = x * (x * count - 2.0 * (places.to(tl.float64) / ONE)) + second
    step = x * width
    s2 = below_s + step * (2.0 * below_m + step * below) + width * width * spread
    m = below_m + step * below + width * moment
    a = below + count
    # Negatives of the same parent after it.
    rows = _before(work, level, C_N0, 0, end) - _before(work, level, C_N0, 0, i)
    rows -= n0.to(tl.int64)
    places = _before(work, level, C_U0, 1, end) - _before(work, level, C_U0, 1, i)
    places -= j * n0.to(tl.int64) * ONE + (f0 * ONE).to(tl.int64)
    moment = (places - (j + 1) * rows * ONE).to(tl.float64) / ONE
    d = above + rows.to(tl.float64)
    e = above_m + (end - 1 - i).to(tl.float64) * width * above + width * moment
    tl.store(_column(work, level, BELOW) + i, a)
    tl.store(_column(work, level, BELOW_M) + i, m)
    tl.store(_column(work, level, BELOW_S) + i, s2)
    tl.store(_column(work, level, ABOVE) + i, d)
    tl.store(_column(work, level, ABOVE_M) + i, e)
    if level == 0:
        estimate, doubt = _inside(n0, f0, n1, f1, width)
        whole = work + SHARES + chunk
        tl.store(whole, tl.sum(n0 * m + a * f0 * width, 0))
        tl.store(whole + CHUNKS, tl.sum(n0 * s2 + 2.0 * f0 * width * m + estimate, 0))
        tl.store(whole + 2 * CHUNKS, tl.sum(doubt, 0))
        tl.store(whole + 3 * CHUNKS, tl.sum(tl.where(doubt > 0, 1.0, 0.0), 0))


@triton.jit
def _limits(work):
    """Return what a negative's gradient, a positive's, and a cell's squares may be wrong by."""
    last = CELLS - 1
    # The greatest sums of d that a negative and a positive meet, at the ends of the axis.
    n1 = tl.load(_column(work, 0, N_POS) + last)
    top = tl.load(_column(work, 0, BELOW_M) + last) + tl.load(_column(work, 0, BELOW) + last)
    top += n1 - tl.load(_column(work, 0, F_POS) + last) / ONE
    bottom = tl.load(_column(work, 0, ABOVE_M)) + tl.load(_column(work, 0, ABOVE))
    bottom += tl.load(_column(work, 0, F_NEG)) / ONE
    n1_all = tl.load(_column(work, 0, BELOW) + last) + n1
    n0_all = tl.load(_column(work, 0, ABOVE)) + tl.load(_column(work, 0, N_NEG))
    k = tl.arange(0, CHUNKS)
    total = tl.sum(tl.load(work + SHARES + k), 0)
    squares = tl.sum(tl.load(work + SHARES + CHUNKS + k), 0)
    doubts = tl.sum(tl.load(work + SHARES + 2 * CHUNKS + k), 0)
    n_doubts = tl.sum(tl.load(work + SHARES + 3 * CHUNKS + k), 0)
    tolerance = tl.maximum(squares - doubts, 0.0) * OWN_SLACK
    limit_neg = tl.minimum(top, 16.0 * total / tl.maximum(n0_all, 1.0)) * SLACK
    limit_pos = tl.minimum(bottom, 16.0 * total / tl.maximum(n1_all, 1.0)) * SLACK
    doubtful = tl.where(doubts > tolerance, tolerance / tl.maximum(n_doubts, 1.0), float("inf"))
    return limit_neg, limit_pos, doubtful


@triton.jit
def _too_rough(n_mine, n_other, f_other, width, limit):
    """Return whether the rows of a class may be wrong by more than the limit."""
    bound = f_other * (n_other - f_other) * width
    return (n_mine > 0) & (n_other > 1) & (bound > 2.0 * limit * n_other)


@triton.jit
def _heavies_of_chunk(work, level, chunk):
    """Store which cells of a chunk are heavy, as their ranks in the chunk or -1, and how many."""
    limit_neg, limit_pos, doubtful = _limits(work)
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    n0, f0, n1, f1, width = _cell(work, level, i)
    _, doubt = _inside(n0, f0, n1, f1, width)
    heavy = _too_rough(n0, n1, f1, width, limit_neg) | (doubt > doubtful)
    heavy = (heavy | _too_rough(n1, n0, f0, width, limit_pos)).to(tl.int32)
    rank = tl.cumsum(heavy, 0) - heavy
    tl.store(_column(work, level, CHILD) + i, tl.where(heavy > 0, rank, -1).to(tl.float64))
    tl.store(work + COUNTS + chunk, tl.sum(heavy, 0).to(tl.float64))


@triton.jit
def _lines_of_chunk(work, level, chunk, gain):
    """Store the lines of a chunk, list the cells that the next level splits, add up the loss."""
    k = tl.arange(0, CHUNKS)
    counts = tl.load(work + COUNTS + k)
    n_heavy = tl.sum(counts, 0).to(tl.int32)
    earlier = tl.sum(tl.where(k < chunk, counts, 0.0), 0)
    parts = tl.zeros((), tl.int32)
    if (level + 1 < LEVELS) & (n_heavy > 0) & (2 * n_heavy <= CELLS):
        parts += 2
        while 2 * parts * n_heavy <= CELLS:
            parts *= 2
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    n0, f0, n1, f1, width = _cell(work, level, i)
    rank = tl.load(_column(work, level, CHILD) + i)
    heavy = (rank >= 0.0) & (tl.zeros((CHUNK,), tl.int32) + parts > 0)
    rank += earlier
    tl.store(_column(work, level, HEAVIES) + rank.to(tl.int32), i.to(tl.float64), mask=heavy)
    tl.store(_column(work, level, PARTS) + i, tl.where(heavy, parts, 0).to(tl.float64))
    tl.store(_column(work, level, CHILD) + i, rank * parts)
    a = tl.load(_column(work, level, BELOW) + i)
    m = tl.load(_column(work, level, BELOW_M) + i)
    s2 = tl.load(_column(work, level, BELOW_S) + i)
    d = tl.load(_column(work, level, ABOVE) + i)
    e = tl.load(_column(work, level, ABOVE_M) + i)
    estimate, _ = _inside(n0, f0, n1, f1, width)
    found = tl.where(heavy, 0.0, n0 * s2 + 2.0 * f0 * width * m + estimate)
    loss = tl.zeros((), tl.float64)
    if level > 0:
        # What the parent's level left out: squares of places, of positives below others.
        first = tl.load(_column(work, level, FIRST) + i)
        parent = tl.load(_column(work, level, PARENT) + i).to(tl.int32)
        x = i - first
        beyond = tl.load(_column(work, level - 1, ABOVE) + parent)
        found += width * width * beyond * (x * x * n1 + 2.0 * x * f1)
        loss += tl.load(work + LOSSES + chunk)
    tl.store(work + LOSSES + chunk, loss + tl.sum(found, 0))
    nothing = float("nan")
    slope = gain * width
    line = _words(_column(work, level, LINES)) + 4 * i
    chord = tl.where(n1 > 1, 0.5, 0.0)
    tl.store(line, _pack(tl.where(heavy, nothing, gain * m), slope * (a + chord * (n1 - f1))))
    tl.store(line + 1, _pack(slope * (1 - chord) * n1, f1 / tl.where(n1 > 0, n1, 1.0)))
    # The mirror image, with (m - f)+ = (f - m)+ - f + m.
    chord = tl.where(n0 > 1, 0.5, 0.0)
    tl.store(
        line + 2,
        _pack(
            tl.where(heavy, nothing, -gain * e - slope * (d + f0)),
            slope * (d + (1 - chord) * n0 + chord * f0),
        ),
    )
    tl.store(line + 3, _pack(-slope * (1 - chord) * n0, f0 / tl.where(n0 > 0, n0, 1.0)))
    return parts, n_heavy


@triton.jit
def _look_up(scores, labels, grad, work, sums, n, P, low, scale, shift, n_live, gain, taint,
             WANT_GRAD: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    levels = tl.load(work + DONE).to(tl.int32)
    squares = tl.zeros((BLOCK,), tl.float64)
    for start in range(pid * BLOCK, n, P * BLOCK):
        i = start + tl.arange(0, BLOCK)
        s, positive, inside = _rows(scores, labels, i, n)
        cell, fraction, active = _place(s, positive, i < n_live, low, scale, shift)
        side = 2 * positive.to(tl.int32)
        line = _words(_column(work, 0, LINES)) + 4 * cell + side
        c, d = _unpack(tl.load(line, mask=active, other=0))
        k, m = _unpack(tl.load(line + 1, mask=active, other=0))
        f = fraction.to(tl.float32)
        slope = c + d * f + k * tl.maximum(f - m, 0.0)
        square = (d * f * f).to(tl.float64)
        heavy = active & (c != c)
        for level in range(1, levels):
            cell, fraction, heavy = _descend(work, level - 1, cell, fraction, heavy)
            line = _words(_column(work, level, LINES)) + 4 * cell + side
            c, d = _unpack(tl.load(line, mask=heavy, other=0))
            k, m = _unpack(tl.load(line + 1, mask=heavy, other=0))
            f = fraction.to(tl.float32)
            slope = tl.where(heavy, c + d * f + k * tl.maximum(f - m, 0.0), slope)
            width = tl.load(_column(work, level, WIDTH) + cell, mask=heavy, other=0.0)
            square = tl.where(heavy, (d * f * f).to(tl.float64) * width, square)
            heavy = heavy & (c != c)
        squares += tl.where(active, square, 0.0)
        if WANT_GRAD:
            tl.store(grad + i, slope + taint.to(tl.float32), mask=inside)
    tl.store(sums + pid, tl.sum(squares, 0) / gain)


@triton.jit
def certified(
    scores, labels, grad, value, pair_weight, words, counter, n, shift: tl.float64,
    b2: tl.float64, level, MEAN: tl.constexpr, WANT_GRAD: tl.constexpr, BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr, SHARED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute loss and gradient of the batches of `scores`, (tasks, n).

    STEP is -1 for all steps in one launch, with every program running at once; else the one step
    to do: 0 survey; 1 count, 2 merge and 3 to 6 scan `level`; 7 look up, 8 finish.
    """
    P = tl.num_programs(0)
    pid = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    scores += task * n
    labels += task * n
    grad += task * n
    work = words + task * (WORK + 5 * PROGRAMS + 2 * CELLS * P)
    parts = work + WORK
    sums = parts + 4 * PROGRAMS
    tables = _words(sums + PROGRAMS)
    table = tables + pid * (2 * CELLS)
    counter += task
    waits = 0
    if STEP <= 0:
        _survey(scores, labels, parts, n, P, BLOCK)
        if pid == 0:
            tl.store(work + DONE, 0.0)
            k = tl.arange(0, 16)
            tl.store(work + SPLIT + k, tl.where(k == 0, 1.0, 0.0).to(tl.float64))
    if STEP == -1:
        waits += 1
        _wait(counter, waits * P)
    if STEP != 0:
        low, scale, n_pos, taint = _axis(parts, shift, P, PROGRAMS)
        pairs = n_pos * (n - n_pos)
        share = tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
        live = (scale > 0.0) & (pairs > 0.0) & (taint == 0.0)
        gain = tl.where(live, 2.0 * b2 / (share * tl.where(live, scale, 1.0)), 1.0)
        if STEP < 7:
            wanted = live & (tl.load(work + SPLIT + level) > 0.0)
            while wanted:
                if STEP == -1 or STEP == 1:
                    _count(scores, labels, table, work, n, P, low, scale, shift, level, BLOCK,
                           SHARED)  # fmt: skip
                if STEP == -1:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP == -1 or STEP == 2:
                    _merge(tables, work, level, P)
                if STEP == -1:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP == -1 or STEP == 3:
                    if pid < CHUNKS:
                        _sums_of_chunk(work, level, pid)
                if STEP == -1:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP == -1 or STEP == 4:
                    if pid < CHUNKS:
                        _moments_of_chunk(work, level, pid)
                if STEP == -1:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP == -1 or STEP == 5:
                    if pid < CHUNKS:
                        _heavies_of_chunk(work, level, pid)
                if STEP == -1:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP == -1 or STEP == 6:
                    if pid < CHUNKS:
                        parts_now, n_heavy = _lines_of_chunk(work, level, pid, gain)
                        if pid == 0:
                            tl.store(work + SPLIT + level + 1, parts_now.to(tl.float64))
                            tl.store(work + N_SPLIT + level + 1, n_heavy.to(tl.float64))
                            tl.store(work + DONE, level + 1.0)
                if STEP == -1:
                    waits += 1
                    _wait(counter, waits * P)
                    level += 1
                    wanted = tl.load(work + SPLIT + level) > 0.0
                else:
                    wanted = False
        if STEP == -1 or STEP == 7:
            _look_up(scores, labels, grad, work, sums, n, P, low, scale, shift,
                     tl.where(live, n, 0), gain, taint, WANT_GRAD, BLOCK)  # fmt: skip
        if STEP == -1:
            waits += 1
            _wait(counter, waits * P)
        if STEP == -1 or STEP == 8:
            if pid == 0:
                i = tl.arange(0, PROGRAMS)
                squares = tl.sum(tl.load(sums + i, mask=i < P, other=0.0), 0)
                squares += tl.sum(tl.load(work + LOSSES + tl.arange(0, CHUNKS)), 0)
                found = tl.where(live, b2 * squares / (share * scale * scale), 0.0) + taint
                tl.store(value + task, found.to(tl.float32))
                tl.store(pair_weight + task, pairs + taint)

"""Scan the counts of a level of cells, for `buckets`.

The result is the line that gives the gradient in each cell, which cells are split, and the loss.
Each program scans a chunk of the cells; where it needs a sum over all chunks there is a barrier:
two of them, three on level 0. Sums of rows and of places are integers, so that their differences
are exact. Class 0 are negatives, class 1 positives.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.cells import ONE, merged, store_lines
from everypair.torch.triton.common.workspace import (
    ABOVE, ABOVE_M, BELOW, BELOW_M, BELOW_S, CELLS, CHILD, CHUNK_ERRORS, CHUNK_HEAVY, CHUNK_LOSS,
    CHUNK_TOTALS, HEAVIES, LEVELS, LIMIT_DOUBT, LIMIT_NEG, LIMIT_NEG_1, LIMIT_POS, LIMIT_POS_1, N0,
    N1, N_HEAVY, N_LEVELS, N_PARTS, PARTS, U0, U1, V1, WIDTH, as_int64, barrier, before_cell,
    column, publish, sum_before, sum_of,
)  # fmt: skip

# Relative errors that the pairs inside cells may cause: of a gradient, relative to the largest one,
# and of the loss. Tests: `test_buckets_keep_their_error_bounds`; with more heavy cells than can be
# split, where the bounds are wider, `test_more_heavy_cells_than_can_be_split`.
GRAD_TOLERANCE = tl.constexpr(1.5 * 2.0**-21)
LOSS_TOLERANCE = tl.constexpr(2.0**-22)
# Sums that a chunk publishes at CHUNK_ERRORS: d, d^2, the bounds of `_inside`, the number of these.
SLOPES, SQUARES, DOUBTS, N_DOUBTS = (tl.constexpr(k) for k in range(4))


@triton.jit
def _inside(n0, f0, n1, f1, width):
    """Return an estimate of the sum of d^2 over the pairs inside a cell, and a bound on its error.

    The estimate is half of the sum over all pairs, plus or minus what the distance of the class
    means contributes. Squares of fractions are estimated from rows spread evenly around their mean.
    What `cells.look_up` adds for each row is subtracted. The bound is 0 for pairs known exactly.
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
def _too_rough(n_mine, n_other, f_other, width, limit):
    """Return whether the gradients of a class in a cell may be wrong by more than the limit."""
    bound = f_other * (n_other - f_other) * width
    return (n_mine > 0) & (n_other > 1) & (bound > 2.0 * limit * n_other)


@triton.jit
def _heavy(n0, f0, n1, f1, width, doubt, limit_neg, limit_pos, limit_doubt):
    """Return 1 for cells that must be split, 0 for others."""
    heavy = _too_rough(n0, n1, f1, width, limit_neg) | (doubt > limit_doubt)
    return (heavy | _too_rough(n1, n0, f0, width, limit_pos)).to(tl.int64)


@triton.jit
def _fits(counted):
    """Return whether as many cells can be split as the lowest twelve bits say."""
    return 2 * (counted & 0xFFF) <= CELLS


@triton.jit
def _limits(work, all_n0, all_u0, all_n1, all_u1, CHUNKS: tl.constexpr):
    """Return the limits on the errors of a cell, in units of the sum of d or of d^2.

    The first two are for the gradients of negatives and of positives, relative to 16 times the mean
    gradient; the third is for the loss. The last two are relative to the largest gradient, as
    GRAD_TOLERANCE promises, and are used if the first two would split too many cells.
    """
    errors = work + CHUNK_ERRORS
    total = sum_of(errors, SLOPES, CHUNKS)
    doubts = sum_of(errors, DOUBTS, CHUNKS)
    n_doubts = tl.maximum(sum_of(errors, N_DOUBTS, CHUNKS), 1.0)
    tolerance = tl.maximum(sum_of(errors, SQUARES, CHUNKS) - doubts, 0.0) * LOSS_TOLERANCE
    # The largest sums of d of a negative and of a positive, at the ends of the axis.
    top = (all_n1 * CELLS * ONE - all_u1).to(tl.float64) / ONE
    bottom = all_u0.to(tl.float64) / ONE
    n0, n1 = tl.maximum(all_n0, 1).to(tl.float64), tl.maximum(all_n1, 1).to(tl.float64)
    limit_neg = tl.minimum(top, 16.0 * total / n0) * GRAD_TOLERANCE
    limit_pos = tl.minimum(bottom, 16.0 * total / n1) * GRAD_TOLERANCE
    limit_doubt = tl.where(doubts > tolerance, tolerance / n_doubts, float("inf"))
    return limit_neg, limit_pos, limit_doubt, top * GRAD_TOLERANCE, bottom * GRAD_TOLERANCE


@triton.jit
def scan(tables, work, level, chunk, P, gain, counter, arrivals, CHUNKS: tl.constexpr):
    """Scan a chunk of a level; return the arrivals at the barriers of the scan, for the next one.

    tables             (P, 2, CELLS) int64, read: packed counts of each of P programs
    work               the work space of the task, written and read
    chunk, CHUNKS      the chunk of this program; chunks of a level, a power of 2
    gain               gradient of a unit of the sum of d
    counter, arrivals  int32, written and read: arrivals at the barriers; their number so far
    """
    # 1. Add up the counts of all programs.
    CHUNK: tl.constexpr = CELLS // CHUNKS
    # Tables at once. Triton before 3.6 has no `min` and `max` of constants.
    HIGH: tl.constexpr = 32 if CHUNK <= 64 else 2048 // CHUNK if CHUNK < 2048 else 1
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    rows0, sums0, rows1, sums1 = merged(tables, i, P, HIGH, CHUNK)
    # 2. The cell that each cell is a part of, the first part of that (`first`), and the width.
    first = tl.zeros((CHUNK,), tl.int32)
    parent = first
    width = tl.full((CHUNK,), 1.0, tl.float64)
    if level > 0:
        parts = tl.load(work + N_PARTS + level).to(tl.int32)
        nth = i // parts
        used = nth < tl.load(work + N_HEAVY + level).to(tl.int32)
        owner = tl.load(column(work, level - 1, HEAVIES) + nth, mask=used, other=0.0)
        parent = owner.to(tl.int32)
        wide = tl.load(column(work, level - 1, WIDTH) + parent)
        width = tl.where(used, wide / parts, 0.0)
        first = nth * parts
    tl.store(column(work, level, WIDTH) + i, width)
    # 3. Running sums of rows, places and squares in this chunk; publish the totals.
    j = (i - first).to(tl.int64)
    x = j.to(tl.float64)
    n0, f0 = rows0.to(tl.float64), sums0.to(tl.float64) / ONE
    n1, f1 = rows1.to(tl.float64), sums1.to(tl.float64) / ONE
    places0 = j * rows0 * ONE + sums0
    places1 = j * rows1 * ONE + sums1
    squares1 = x * x * n1 + 2.0 * x * f1
    before_n0 = tl.cumsum(rows0, 0) - rows0
    before_u0 = tl.cumsum(places0, 0) - places0
    before_n1 = tl.cumsum(rows1, 0) - rows1
    before_u1 = tl.cumsum(places1, 0) - places1
    before_v1 = tl.cumsum(squares1, 0) - squares1
    totals = as_int64(work + CHUNK_TOTALS)
    publish(totals, N0, chunk, tl.sum(rows0, 0))
    publish(totals, U0, chunk, tl.sum(places0, 0))
    publish(totals, N1, chunk, tl.sum(rows1, 0))
    publish(totals, U1, chunk, tl.sum(places1, 0))
    publish(work + CHUNK_TOTALS, V1, chunk, tl.sum(squares1, 0))
    if level > 0:
        tl.store(as_int64(column(work, level, N0)) + i, before_n0)
        tl.store(as_int64(column(work, level, U0)) + i, before_u0)
        tl.store(as_int64(column(work, level, N1)) + i, before_n1)
        tl.store(as_int64(column(work, level, U1)) + i, before_u1)
        tl.store(column(work, level, V1) + i, before_v1)
    arrivals = barrier(counter, arrivals, CHUNKS)
    # 4. Positives before each cell and negatives after it, among the parts of the same cell.
    before_n0 += sum_before(totals, N0, chunk, CHUNKS)
    before_u0 += sum_before(totals, U0, chunk, CHUNKS)
    before_n1 += sum_before(totals, N1, chunk, CHUNKS)
    before_u1 += sum_before(totals, U1, chunk, CHUNKS)
    before_v1 += sum_before(work + CHUNK_TOTALS, V1, chunk, CHUNKS)
    all_n0, all_u0 = sum_of(totals, N0, CHUNKS), sum_of(totals, U0, CHUNKS)
    all_n1, all_u1 = sum_of(totals, N1, CHUNKS), sum_of(totals, U1, CHUNKS)
    to_end_n0, to_end_u0 = all_n0 + tl.zeros_like(rows0), all_u0 + tl.zeros_like(rows0)
    end = tl.full((CHUNK,), CELLS, tl.int32)
    above, above_m = tl.zeros((CHUNK,), tl.float64), tl.zeros((CHUNK,), tl.float64)
    below, below_m, below_s = above, above, above
    if level > 0:
        end = first + tl.load(work + N_PARTS + level).to(tl.int32)
        running = as_int64(column(work, level, N0))
        before_n1 -= before_cell(totals, N1, running + N1 * CELLS, first, CHUNKS, CHUNK)
        before_u1 -= before_cell(totals, U1, running + U1 * CELLS, first, CHUNKS, CHUNK)
        before_v1 -= before_cell(
            work + CHUNK_TOTALS, V1, column(work, level, V1), first, CHUNKS, CHUNK
        )
        to_end_n0 = before_cell(totals, N0, running + N0 * CELLS, end, CHUNKS, CHUNK)
        to_end_u0 = before_cell(totals, U0, running + U0 * CELLS, end, CHUNKS, CHUNK)
        above = tl.load(column(work, level - 1, ABOVE) + parent)
        above_m = tl.load(column(work, level - 1, ABOVE_M) + parent)
        below = tl.load(column(work, level - 1, BELOW) + parent)
        below_m = tl.load(column(work, level - 1, BELOW_M) + parent)
        below_s = tl.load(column(work, level - 1, BELOW_S) + parent)
    # 5. A, M and the second moment below each cell; D and E above it.
    number = before_n1.to(tl.float64)
    moment = (j * before_n1 * ONE - before_u1).to(tl.float64) / ONE
    spread = x * (x * number - 2.0 * (before_u1.to(tl.float64) / ONE)) + before_v1
    step = x * width
    s2 = below_s + step * (2.0 * below_m + step * below) + width * width * spread
    m = below_m + step * below + width * moment
    a = below + number
    after = to_end_n0 - before_n0 - rows0
    moment = (to_end_u0 - before_u0 - places0 - (j + 1) * after * ONE).to(tl.float64) / ONE
    d = above + after.to(tl.float64)
    e = above_m + (end - 1 - i).to(tl.float64) * width * above + width * moment
    tl.store(column(work, level, BELOW) + i, a)
    tl.store(column(work, level, BELOW_M) + i, m)
    tl.store(column(work, level, BELOW_S) + i, s2)
    tl.store(column(work, level, ABOVE) + i, d)
    tl.store(column(work, level, ABOVE_M) + i, e)
    # 6. The loss of the pairs of each cell, and the limits on errors.
    estimate, doubt = _inside(n0, f0, n1, f1, width)
    squares = n0 * s2 + 2.0 * f0 * width * m + estimate
    if level == 0:
        errors = work + CHUNK_ERRORS
        publish(errors, SLOPES, chunk, tl.sum(n0 * m + a * f0 * width, 0))
        publish(errors, SQUARES, chunk, tl.sum(squares, 0))
        publish(errors, DOUBTS, chunk, tl.sum(doubt, 0))
        publish(errors, N_DOUBTS, chunk, tl.sum(tl.where(doubt > 0, 1.0, 0.0), 0))
        arrivals = barrier(counter, arrivals, CHUNKS)
        limit_neg, limit_pos, limit_doubt, limit_neg_1, limit_pos_1 = _limits(
            work, all_n0, all_u0, all_n1, all_u1, CHUNKS
        )
        if chunk == 0:
            tl.store(work + LIMIT_NEG, limit_neg)
            tl.store(work + LIMIT_POS, limit_pos)
            tl.store(work + LIMIT_DOUBT, limit_doubt)
            tl.store(work + LIMIT_NEG_1, limit_neg_1)
            tl.store(work + LIMIT_POS_1, limit_pos_1)
    else:
        limit_neg = tl.load(work + LIMIT_NEG)
        limit_pos = tl.load(work + LIMIT_POS)
        limit_doubt = tl.load(work + LIMIT_DOUBT)
        limit_neg_1 = tl.load(work + LIMIT_NEG_1)
        limit_pos_1 = tl.load(work + LIMIT_POS_1)
    # 7. Use the first of four tolerances whose failing cells can all be split. A mark of 12 bits
    #    for each of them, so that one sum counts all four.
    marks = _heavy(n0, f0, n1, f1, width, doubt, limit_neg, limit_pos, limit_doubt)
    for k in tl.static_range(1, 4):
        limit_doubt *= 4.0
        heavy = _heavy(n0, f0, n1, f1, width, doubt, limit_neg_1, limit_pos_1, limit_doubt)
        marks += heavy << (12 * k)
        limit_neg_1 *= 4.0
        limit_pos_1 *= 4.0
    counts = as_int64(work + CHUNK_HEAVY)
    publish(counts, 0, chunk, tl.sum(marks, 0))
    arrivals = barrier(counter, arrivals, CHUNKS)
    # 8. Number the heavy cells, and split each into as many parts as there is room for.
    counted = sum_of(counts, 0, CHUNKS)
    bits = tl.where(_fits(counted >> 24), 24, 36)
    bits = tl.where(_fits(counted >> 12), 12, bits)
    bits = tl.where(_fits(counted), 0, bits)
    n_heavy = ((counted >> bits) & 0xFFF).to(tl.int32)
    heavy = ((marks >> bits) & 1).to(tl.int32)
    parts = tl.zeros((), tl.int32)
    if (level + 1 < LEVELS) & (n_heavy > 0) & (2 * n_heavy <= CELLS):
        parts += 2
        while 2 * parts * n_heavy <= CELLS:
            parts *= 2
        rank = tl.cumsum(heavy, 0) - heavy
        rank += ((sum_before(counts, 0, chunk, CHUNKS) >> bits) & 0xFFF).to(tl.int32)
        tl.store(column(work, level, HEAVIES) + rank, i.to(tl.float64), mask=heavy > 0)
        tl.store(column(work, level, CHILD) + i, (rank * parts).to(tl.float64))
    # 9. Store the parts, the loss and the lines.
    split = (heavy > 0) & (tl.zeros_like(heavy) + parts > 0)
    tl.store(column(work, level, PARTS) + i, tl.where(split, parts, 0).to(tl.float64))
    found = tl.where(split, 0.0, squares)
    loss = tl.zeros((), tl.float64)
    if level > 0:
        # The level above left out: squares of places of positives below each negative above.
        found += width * width * above * squares1
        loss += tl.load(work + CHUNK_LOSS + chunk)
    tl.store(work + CHUNK_LOSS + chunk, loss + tl.sum(found, 0))
    store_lines(work, level, i, split, gain, n0, f0, n1, f1, width, a, m, d, e)
    if chunk == 0:
        tl.store(work + N_PARTS + level + 1, parts.to(tl.float64))
        tl.store(work + N_HEAVY + level + 1, n_heavy.to(tl.float64))
        tl.store(work + N_LEVELS, level + 1.0)
    return arrivals

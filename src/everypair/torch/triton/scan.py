"""From the counts of a level of cells to the line that gives the gradient in each of them.

Programs take a chunk of cells each, keep what they know of it, and wait for one another where one
needs a sum over all: twice, three times at level 0. Sums of rows and of places are integers, so
that what is a difference of two of them is exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch.triton.barrier import before, meet, publish, sum_before, sum_of
from everypair.torch.triton.cells import (
    ABOVE,
    ABOVE_M,
    BELOW,
    BELOW_M,
    BELOW_S,
    C_N0,
    C_N1,
    C_U0,
    C_U1,
    C_V1,
    CELLS,
    CHILD,
    COUNTS,
    DONE,
    HEAVIES,
    LEVELS,
    LIMITS,
    LINES,
    LOSSES,
    MOST_CHUNKS,
    N_SPLIT,
    ONE,
    OWN_SLACK,
    PARTS,
    SHARES,
    SLACK,
    SPLIT,
    TOTALS,
    WIDTH,
    column,
    integers,
    merged,
    pack,
)

__all__ = ["scan"]


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
def _too_rough(n_mine, n_other, f_other, width, limit):
    """Return whether the rows of a class may be wrong by more than the limit."""
    bound = f_other * (n_other - f_other) * width
    return (n_mine > 0) & (n_other > 1) & (bound > 2.0 * limit * n_other)


@triton.jit
def _heavy(n0, f0, n1, f1, width, doubt, limit_neg, limit_pos, doubtful):
    """Return 1 for cells that must be split, 0 for others."""
    heavy = _too_rough(n0, n1, f1, width, limit_neg) | (doubt > doubtful)
    return (heavy | _too_rough(n1, n0, f0, width, limit_pos)).to(tl.int64)


@triton.jit
def _fits(counted):
    """Return whether so many cells can be split, by the lowest twelve bits."""
    return 2 * (counted & 0xFFF) <= CELLS


@triton.jit
def _limits(work, all_n0, all_u0, all_n1, all_u1, CHUNKS: tl.constexpr):
    """Return what a negative's gradient, a positive's, and a cell's squares may be wrong by.

    Gradients may in any case be wrong by what is promised of the largest ones, the last two numbers
    here; but ordinary ones should not be, as long as that takes no more cells than there are.
    """
    total = sum_of(work + SHARES, 0, CHUNKS)
    doubts = sum_of(work + SHARES, 2, CHUNKS)
    n_doubts = tl.maximum(sum_of(work + SHARES, 3, CHUNKS), 1.0)
    tolerance = tl.maximum(sum_of(work + SHARES, 1, CHUNKS) - doubts, 0.0) * OWN_SLACK
    # The greatest sums of d that a negative and a positive meet, at the ends of the axis.
    top = (all_n1 * CELLS * ONE - all_u1).to(tl.float64) / ONE
    bottom = all_u0.to(tl.float64) / ONE
    n0, n1 = tl.maximum(all_n0, 1).to(tl.float64), tl.maximum(all_n1, 1).to(tl.float64)
    limit_neg = tl.minimum(top, 16.0 * total / n0) * SLACK
    limit_pos = tl.minimum(bottom, 16.0 * total / n1) * SLACK
    doubtful = tl.where(doubts > tolerance, tolerance / n_doubts, float("inf"))
    return limit_neg, limit_pos, doubtful, top * SLACK, bottom * SLACK


@triton.jit
def _store_lines(work, level, i, split, gain, n0, f0, n1, f1, width, a, m, d, e):
    """Store what a row's gradient is in the cells, by its fraction; NaN where a cell is split."""
    nothing = float("nan")
    slope = gain * width
    line = integers(column(work, level, LINES)) + 4 * i
    chord = tl.where(n1 > 1, 0.5, 0.0)
    tl.store(line, pack(tl.where(split, nothing, gain * m), slope * (a + chord * (n1 - f1))))
    tl.store(line + 1, pack(slope * (1 - chord) * n1, f1 / tl.where(n1 > 0, n1, 1.0)))
    # The mirror image, with (m - f)+ = (f - m)+ - f + m.
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
def scan(tables, work, level, chunk, P, gain, counter, met, CHUNKS: tl.constexpr):
    """Merge and scan a chunk of a level; `met` arrivals have been counted before.

    What is stored: the lines of the look-up; A, M, the second moment, D and E, for the level below;
    which cells that one splits; the loss.
    """
    CHUNK: tl.constexpr = CELLS // CHUNKS
    HIGH: tl.constexpr = max(1, min(32, 2048 // CHUNK))  # tables at once
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    rows0, sums0, rows1, sums1 = merged(tables, i, P, HIGH, CHUNK)
    first = tl.zeros((CHUNK,), tl.int32)
    parent = first
    width = tl.full((CHUNK,), 1.0, tl.float64)
    if level > 0:
        parts = tl.load(work + SPLIT + level).to(tl.int32)
        nth = i // parts
        # Of cells that are not in use, all is empty.
        used = nth < tl.load(work + N_SPLIT + level).to(tl.int32)
        owner = tl.load(column(work, level - 1, HEAVIES) + nth, mask=used, other=0.0)
        parent = owner.to(tl.int32)
        wide = tl.load(column(work, level - 1, WIDTH) + parent)
        width = tl.where(used, wide / parts, 0.0)
        first = nth * parts
    tl.store(column(work, level, WIDTH) + i, width)
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
    totals = integers(work + TOTALS)
    publish(totals, 0, chunk, tl.sum(rows0, 0))
    publish(totals, 1, chunk, tl.sum(places0, 0))
    publish(totals, 2, chunk, tl.sum(rows1, 0))
    publish(totals, 3, chunk, tl.sum(places1, 0))
    publish(work + TOTALS, 4, chunk, tl.sum(squares1, 0))
    if level > 0:
        tl.store(integers(column(work, level, C_N0)) + i, before_n0)
        tl.store(integers(column(work, level, C_U0)) + i, before_u0)
        tl.store(integers(column(work, level, C_N1)) + i, before_n1)
        tl.store(integers(column(work, level, C_U1)) + i, before_u1)
        tl.store(column(work, level, C_V1) + i, before_v1)
    met = meet(counter, met, CHUNKS)

    # Positives before each cell and negatives up to its end; of the same parent, that is.
    before_n0 += sum_before(totals, 0, chunk, CHUNKS)
    before_u0 += sum_before(totals, 1, chunk, CHUNKS)
    before_n1 += sum_before(totals, 2, chunk, CHUNKS)
    before_u1 += sum_before(totals, 3, chunk, CHUNKS)
    before_v1 += sum_before(work + TOTALS, 4, chunk, CHUNKS)
    all_n0, all_u0 = sum_of(totals, 0, CHUNKS), sum_of(totals, 1, CHUNKS)
    all_n1, all_u1 = sum_of(totals, 2, CHUNKS), sum_of(totals, 3, CHUNKS)
    to_end_n0, to_end_u0 = all_n0 + tl.zeros_like(rows0), all_u0 + tl.zeros_like(rows0)
    end = tl.full((CHUNK,), CELLS, tl.int32)
    above, above_m = tl.zeros((CHUNK,), tl.float64), tl.zeros((CHUNK,), tl.float64)
    below, below_m, below_s = above, above, above
    if level > 0:
        end = first + tl.load(work + SPLIT + level).to(tl.int32)
        one, two = totals + 2 * MOST_CHUNKS, totals + 3 * MOST_CHUNKS
        before_n1 -= before(one, integers(column(work, level, C_N1)), first, CHUNKS, CHUNK)
        before_u1 -= before(two, integers(column(work, level, C_U1)), first, CHUNKS, CHUNK)
        before_v1 -= before(
            work + TOTALS + 4 * MOST_CHUNKS, column(work, level, C_V1), first, CHUNKS, CHUNK
        )
        to_end_n0 = before(totals, integers(column(work, level, C_N0)), end, CHUNKS, CHUNK)
        to_end_u0 = before(
            totals + MOST_CHUNKS, integers(column(work, level, C_U0)), end, CHUNKS, CHUNK
        )
        above = tl.load(column(work, level - 1, ABOVE) + parent)
        above_m = tl.load(column(work, level - 1, ABOVE_M) + parent)
        below = tl.load(column(work, level - 1, BELOW) + parent)
        below_m = tl.load(column(work, level - 1, BELOW_M) + parent)
        below_s = tl.load(column(work, level - 1, BELOW_S) + parent)
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
    estimate, doubt = _inside(n0, f0, n1, f1, width)
    squares = n0 * s2 + 2.0 * f0 * width * m + estimate

    if level == 0:
        publish(work + SHARES, 0, chunk, tl.sum(n0 * m + a * f0 * width, 0))
        publish(work + SHARES, 1, chunk, tl.sum(squares, 0))
        publish(work + SHARES, 2, chunk, tl.sum(doubt, 0))
        publish(work + SHARES, 3, chunk, tl.sum(tl.where(doubt > 0, 1.0, 0.0), 0))
        met = meet(counter, met, CHUNKS)
        limit_neg, limit_pos, doubtful, most_neg, most_pos = _limits(
            work, all_n0, all_u0, all_n1, all_u1, CHUNKS
        )
        if chunk == 0:
            tl.store(work + LIMITS, limit_neg)
            tl.store(work + LIMITS + 1, limit_pos)
            tl.store(work + LIMITS + 2, doubtful)
            tl.store(work + LIMITS + 3, most_neg)
            tl.store(work + LIMITS + 4, most_pos)
    else:
        limit_neg = tl.load(work + LIMITS)
        limit_pos = tl.load(work + LIMITS + 1)
        doubtful = tl.load(work + LIMITS + 2)
        most_neg = tl.load(work + LIMITS + 3)
        most_pos = tl.load(work + LIMITS + 4)
    # Four bars, each easier than the one before: the first that few enough cells fail decides.
    marks = _heavy(n0, f0, n1, f1, width, doubt, limit_neg, limit_pos, doubtful)
    marks += _heavy(n0, f0, n1, f1, width, doubt, most_neg, most_pos, 4.0 * doubtful) << 12
    most_neg *= 4.0
    most_pos *= 4.0
    marks += _heavy(n0, f0, n1, f1, width, doubt, most_neg, most_pos, 16.0 * doubtful) << 24
    most_neg *= 4.0
    most_pos *= 4.0
    marks += _heavy(n0, f0, n1, f1, width, doubt, most_neg, most_pos, 64.0 * doubtful) << 36
    counts = integers(work + COUNTS)
    publish(counts, 0, chunk, tl.sum(marks, 0))
    met = meet(counter, met, CHUNKS)

    counted = sum_of(counts, 0, CHUNKS)
    bar = tl.where(_fits(counted >> 24), 24, 36)
    bar = tl.where(_fits(counted >> 12), 12, bar)
    bar = tl.where(_fits(counted), 0, bar)
    n_heavy = ((counted >> bar) & 0xFFF).to(tl.int32)
    heavy = ((marks >> bar) & 1).to(tl.int32)
    parts = tl.zeros((), tl.int32)
    if (level + 1 < LEVELS) & (n_heavy > 0) & (2 * n_heavy <= CELLS):
        parts += 2
        while 2 * parts * n_heavy <= CELLS:
            parts *= 2
        rank = tl.cumsum(heavy, 0) - heavy
        rank += ((sum_before(counts, 0, chunk, CHUNKS) >> bar) & 0xFFF).to(tl.int32)
        tl.store(column(work, level, HEAVIES) + rank, i.to(tl.float64), mask=heavy > 0)
        tl.store(column(work, level, CHILD) + i, (rank * parts).to(tl.float64))
    split = (heavy > 0) & (tl.zeros_like(heavy) + parts > 0)
    tl.store(column(work, level, PARTS) + i, tl.where(split, parts, 0).to(tl.float64))
    found = tl.where(split, 0.0, squares)
    loss = tl.zeros((), tl.float64)
    if level > 0:
        # What the parent's level left out: squares of places, of positives below others.
        found += width * width * above * squares1
        loss += tl.load(work + LOSSES + chunk)
    tl.store(work + LOSSES + chunk, loss + tl.sum(found, 0))
    _store_lines(work, level, i, split, gain, n0, f0, n1, f1, width, a, m, d, e)
    if chunk == 0:
        tl.store(work + SPLIT + level + 1, parts.to(tl.float64))
        tl.store(work + N_SPLIT + level + 1, n_heavy.to(tl.float64))
        tl.store(work + DONE, level + 1.0)
    return met

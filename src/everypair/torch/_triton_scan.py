"""From the counts of a level of cells to the line that gives the gradient in each of them.

Programs take a chunk of cells each and wait for one another between the functions here. Sums of
rows and of places are integers, so that what is a difference of two of them is exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everypair.torch._triton_cells import (
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
    CHUNK,
    CHUNKS,
    COUNTS,
    F_NEG,
    F_POS,
    FIRST,
    HEAVIES,
    LEVELS,
    LINES,
    LOSSES,
    N_NEG,
    N_POS,
    N_SPLIT,
    ONE,
    OWN_SLACK,
    PARENT,
    PARTS,
    SHARES,
    SLACK,
    SPLIT,
    TOTALS,
    WIDTH,
    column,
    integers,
    pack,
)

__all__ = ["heavies_of_chunk", "lines_of_chunk", "moments_of_chunk", "sums_of_chunk"]


@triton.jit
def sums_of_chunk(work, level, chunk):
    """Lay out the cells of a chunk; store sums over those before each of them, and over all."""
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    if level == 0:
        tl.store(column(work, level, FIRST) + i, tl.zeros((CHUNK,), tl.float64))
        tl.store(column(work, level, WIDTH) + i, tl.full((CHUNK,), 1.0, tl.float64))
        j = i.to(tl.int64)
    else:
        parts = tl.load(work + SPLIT + level).to(tl.int32)
        nth = i // parts
        # Of cells that are not in use, all is empty.
        used = nth < tl.load(work + N_SPLIT + level).to(tl.int32)
        owner = tl.load(column(work, level - 1, HEAVIES) + nth, mask=used, other=0.0)
        wide = tl.load(column(work, level - 1, WIDTH) + owner.to(tl.int32))
        tl.store(column(work, level, WIDTH) + i, tl.where(used, wide / parts, 0.0))
        tl.store(column(work, level, PARENT) + i, owner)
        tl.store(column(work, level, FIRST) + i, (nth * parts).to(tl.float64))
        j = (i - nth * parts).to(tl.int64)
    rows0 = tl.load(column(work, level, N_NEG) + i).to(tl.int64)
    rows1 = tl.load(column(work, level, N_POS) + i).to(tl.int64)
    sums0 = tl.load(column(work, level, F_NEG) + i).to(tl.int64)
    sums1 = tl.load(column(work, level, F_POS) + i).to(tl.int64)
    places0 = j * rows0 * ONE + sums0
    places1 = j * rows1 * ONE + sums1
    x = j.to(tl.float64)
    squares1 = x * x * rows1.to(tl.float64) + 2.0 * x * (sums1.to(tl.float64) / ONE)
    tl.store(integers(column(work, level, C_N0)) + i, tl.cumsum(rows0, 0) - rows0)
    tl.store(integers(column(work, level, C_U0)) + i, tl.cumsum(places0, 0) - places0)
    tl.store(integers(column(work, level, C_N1)) + i, tl.cumsum(rows1, 0) - rows1)
    tl.store(integers(column(work, level, C_U1)) + i, tl.cumsum(places1, 0) - places1)
    tl.store(column(work, level, C_V1) + i, tl.cumsum(squares1, 0) - squares1)
    whole = integers(work + TOTALS) + chunk
    tl.store(whole, tl.sum(rows0, 0))
    tl.store(whole + CHUNKS, tl.sum(places0, 0))
    tl.store(whole + 2 * CHUNKS, tl.sum(rows1, 0))
    tl.store(whole + 3 * CHUNKS, tl.sum(places1, 0))
    tl.store(work + TOTALS + 4 * CHUNKS + chunk, tl.sum(squares1, 0))


@triton.jit
def before(work, level, running, kind, i):
    """Return the sum over all cells before some; their place is CELLS for all cells."""
    k = tl.arange(0, CHUNKS)
    totals = tl.load(integers(work + TOTALS) + kind * CHUNKS + k)
    earlier = tl.sum(tl.where(k[None, :] < (i // CHUNK)[:, None], totals[None, :], 0), 1)
    within = tl.load(integers(column(work, level, running)) + i, mask=i < CELLS, other=0)
    return earlier + within


@triton.jit
def squares_before(work, level, i):
    k = tl.arange(0, CHUNKS)
    totals = tl.load(work + TOTALS + 4 * CHUNKS + k)
    earlier = tl.sum(tl.where(k[None, :] < (i // CHUNK)[:, None], totals[None, :], 0.0), 1)
    return earlier + tl.load(column(work, level, C_V1) + i, mask=i < CELLS, other=0.0)


@triton.jit
def cell(work, level, i):
    """Return what a cell holds: rows and sums of fractions by class, and its width."""
    n0 = tl.load(column(work, level, N_NEG) + i)
    f0 = tl.load(column(work, level, F_NEG) + i) / ONE
    n1 = tl.load(column(work, level, N_POS) + i)
    f1 = tl.load(column(work, level, F_POS) + i) / ONE
    return n0, f0, n1, f1, tl.load(column(work, level, WIDTH) + i)


@triton.jit
def inside(n0, f0, n1, f1, width):
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
def moments_of_chunk(work, level, chunk):
    """Store A, M, the second moment, D and E of the cells of a chunk, and what the limits need.

    That is: the sum of d over pairs of different cells, of d^2 over all pairs and its doubt, and
    the number of cells in doubt.
    """
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    n0, f0, n1, f1, width = cell(work, level, i)
    first = tl.load(column(work, level, FIRST) + i).to(tl.int32)
    above, above_m = tl.zeros((CHUNK,), tl.float64), tl.zeros((CHUNK,), tl.float64)
    below, below_m, below_s = above, above, above
    end = tl.full((CHUNK,), CELLS, tl.int32)
    if level > 0:
        parent = tl.load(column(work, level, PARENT) + i).to(tl.int32)
        above = tl.load(column(work, level - 1, ABOVE) + parent)
        above_m = tl.load(column(work, level - 1, ABOVE_M) + parent)
        below = tl.load(column(work, level - 1, BELOW) + parent)
        below_m = tl.load(column(work, level - 1, BELOW_M) + parent)
        below_s = tl.load(column(work, level - 1, BELOW_S) + parent)
        end = first + tl.load(work + SPLIT + level).to(tl.int32)
    j = (i - first).to(tl.int64)
    x = j.to(tl.float64)
    # Positives of the same parent before this cell.
    rows = before(work, level, C_N1, 2, i) - before(work, level, C_N1, 2, first)
    places = before(work, level, C_U1, 3, i) - before(work, level, C_U1, 3, first)
    second = squares_before(work, level, i) - squares_before(work, level, first)
    count = rows.to(tl.float64)
    moment = (j * rows * ONE - places).to(tl.float64) / ONE
    spread = x * (x * count - 2.0 * (places.to(tl.float64) / ONE)) + second
    step = x * width
    s2 = below_s + step * (2.0 * below_m + step * below) + width * width * spread
    m = below_m + step * below + width * moment
    a = below + count
    # Negatives of the same parent after it.
    rows = before(work, level, C_N0, 0, end) - before(work, level, C_N0, 0, i)
    rows -= n0.to(tl.int64)
    places = before(work, level, C_U0, 1, end) - before(work, level, C_U0, 1, i)
    places -= j * n0.to(tl.int64) * ONE + (f0 * ONE).to(tl.int64)
    moment = (places - (j + 1) * rows * ONE).to(tl.float64) / ONE
    d = above + rows.to(tl.float64)
    e = above_m + (end - 1 - i).to(tl.float64) * width * above + width * moment
    tl.store(column(work, level, BELOW) + i, a)
    tl.store(column(work, level, BELOW_M) + i, m)
    tl.store(column(work, level, BELOW_S) + i, s2)
    tl.store(column(work, level, ABOVE) + i, d)
    tl.store(column(work, level, ABOVE_M) + i, e)
    if level == 0:
        estimate, doubt = inside(n0, f0, n1, f1, width)
        whole = work + SHARES + chunk
        tl.store(whole, tl.sum(n0 * m + a * f0 * width, 0))
        tl.store(whole + CHUNKS, tl.sum(n0 * s2 + 2.0 * f0 * width * m + estimate, 0))
        tl.store(whole + 2 * CHUNKS, tl.sum(doubt, 0))
        tl.store(whole + 3 * CHUNKS, tl.sum(tl.where(doubt > 0, 1.0, 0.0), 0))


@triton.jit
def limits(work):
    """Return what a negative's gradient, a positive's, and a cell's squares may be wrong by."""
    last = CELLS - 1
    # The greatest sums of d that a negative and a positive meet, at the ends of the axis.
    n1 = tl.load(column(work, 0, N_POS) + last)
    top = tl.load(column(work, 0, BELOW_M) + last) + tl.load(column(work, 0, BELOW) + last)
    top += n1 - tl.load(column(work, 0, F_POS) + last) / ONE
    bottom = tl.load(column(work, 0, ABOVE_M)) + tl.load(column(work, 0, ABOVE))
    bottom += tl.load(column(work, 0, F_NEG)) / ONE
    n1_all = tl.load(column(work, 0, BELOW) + last) + n1
    n0_all = tl.load(column(work, 0, ABOVE)) + tl.load(column(work, 0, N_NEG))
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
def too_rough(n_mine, n_other, f_other, width, limit):
    """Return whether the rows of a class may be wrong by more than the limit."""
    bound = f_other * (n_other - f_other) * width
    return (n_mine > 0) & (n_other > 1) & (bound > 2.0 * limit * n_other)


@triton.jit
def heavies_of_chunk(work, level, chunk):
    """Store which cells of a chunk are heavy, as their ranks in the chunk or -1, and how many."""
    limit_neg, limit_pos, doubtful = limits(work)
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    n0, f0, n1, f1, width = cell(work, level, i)
    _, doubt = inside(n0, f0, n1, f1, width)
    heavy = too_rough(n0, n1, f1, width, limit_neg) | (doubt > doubtful)
    heavy = (heavy | too_rough(n1, n0, f0, width, limit_pos)).to(tl.int32)
    rank = tl.cumsum(heavy, 0) - heavy
    tl.store(column(work, level, CHILD) + i, tl.where(heavy > 0, rank, -1).to(tl.float64))
    tl.store(work + COUNTS + chunk, tl.sum(heavy, 0).to(tl.float64))


@triton.jit
def lines_of_chunk(work, level, chunk, gain):
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
    n0, f0, n1, f1, width = cell(work, level, i)
    rank = tl.load(column(work, level, CHILD) + i)
    heavy = (rank >= 0.0) & (tl.zeros((CHUNK,), tl.int32) + parts > 0)
    rank += earlier
    tl.store(column(work, level, HEAVIES) + rank.to(tl.int32), i.to(tl.float64), mask=heavy)
    tl.store(column(work, level, PARTS) + i, tl.where(heavy, parts, 0).to(tl.float64))
    tl.store(column(work, level, CHILD) + i, rank * parts)
    a = tl.load(column(work, level, BELOW) + i)
    m = tl.load(column(work, level, BELOW_M) + i)
    s2 = tl.load(column(work, level, BELOW_S) + i)
    d = tl.load(column(work, level, ABOVE) + i)
    e = tl.load(column(work, level, ABOVE_M) + i)
    estimate, _ = inside(n0, f0, n1, f1, width)
    found = tl.where(heavy, 0.0, n0 * s2 + 2.0 * f0 * width * m + estimate)
    loss = tl.zeros((), tl.float64)
    if level > 0:
        # What the parent's level left out: squares of places, of positives below others.
        first = tl.load(column(work, level, FIRST) + i)
        parent = tl.load(column(work, level, PARENT) + i).to(tl.int32)
        x = i - first
        beyond = tl.load(column(work, level - 1, ABOVE) + parent)
        found += width * width * beyond * (x * x * n1 + 2.0 * x * f1)
        loss += tl.load(work + LOSSES + chunk)
    tl.store(work + LOSSES + chunk, loss + tl.sum(found, 0))
    nothing = float("nan")
    slope = gain * width
    line = integers(column(work, level, LINES)) + 4 * i
    chord = tl.where(n1 > 1, 0.5, 0.0)
    tl.store(line, pack(tl.where(heavy, nothing, gain * m), slope * (a + chord * (n1 - f1))))
    tl.store(line + 1, pack(slope * (1 - chord) * n1, f1 / tl.where(n1 > 0, n1, 1.0)))
    # The mirror image, with (m - f)+ = (f - m)+ - f + m.
    chord = tl.where(n0 > 1, 0.5, 0.0)
    tl.store(
        line + 2,
        pack(
            tl.where(heavy, nothing, -gain * e - slope * (d + f0)),
            slope * (d + (1 - chord) * n0 + chord * f0),
        ),
    )
    tl.store(line + 3, pack(-slope * (1 - chord) * n0, f0 / tl.where(n0 > 0, n0, 1.0)))
    return parts, n_heavy

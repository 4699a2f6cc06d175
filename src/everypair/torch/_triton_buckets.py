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

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from everypair.torch._triton_cells import (
    CELLS,
    CHUNKS,
    DONE,
    LEVELS,
    LINES,
    LOSSES,
    N_SPLIT,
    SPLIT,
    WIDTH,
    WORK,
    axis,
    column,
    count,
    descend,
    integers,
    merge,
    place,
    rows,
    survey,
    unpack,
)
from everypair.torch._triton_launch import INTERPRETED, launch, power_of_2, seats, words, zeros
from everypair.torch._triton_scan import (
    heavies_of_chunk,
    lines_of_chunk,
    moments_of_chunk,
    sums_of_chunk,
)

if TYPE_CHECKING:
    from torch import Tensor

    from everypair.torch._triton_launch import Job, KnotTerm

__all__ = ["buckets_fit", "by_buckets"]

MOST_ROWS = 1 << 27
"""Sums of places of more would not fit in 64 bits."""
MANY_ROWS = 4_000_000
"""From here on, several launches are faster than one."""
FEW_PROGRAMS = 256
ROWS_A_PROGRAM = 1 << 20  # more in one cell would overflow its count
BLOCK = 1024
WARPS = 8
NARROW = frozenset((torch.float32, torch.bfloat16, torch.float16))


def buckets_fit(scores: Tensor, tasks: int, terms: tuple[KnotTerm, ...]) -> bool:
    """Return whether this is a question for buckets, if there are neither weights nor a vector."""
    _, b0, b1, _, truncated = terms[0]
    most = seats(scores.device) // tasks
    return (
        len(terms) == 1
        and truncated
        and not b0
        and not b1
        and scores.dtype in NARROW
        and most >= CHUNKS.value
        and scores.shape[-1] <= min(MOST_ROWS, most * ROWS_A_PROGRAM)
    )


def by_buckets(job: Job) -> None:
    """Answer for loss and gradient of one truncated term, unweighted, of narrow scores."""
    scores, labels, _, _, terms, mean, one_class = job[:7]
    value, pair_weight, slopes = job[7:10]
    n = scores.shape[-1]
    tasks = scores.numel() // n
    device = scores.device
    programs, padded, size = _sizes(n, tasks, seats(device))
    room, spare = words(size, tasks, device)
    counter = zeros(2 * tasks, device)
    shift, _, _, b2, _ = terms[0]
    pointers = (scores, labels, value if slopes is None else slopes, value,
                spare if pair_weight is None else pair_weight,
                value if one_class is None else one_class, room, counter)  # fmt: skip
    flags = (mean, one_class is not None, slopes is not None, BLOCK, padded, not INTERPRETED)

    def run(step: int, level: int = 0) -> None:
        launch(
            certified, (programs, tasks), pointers, (n, shift, b2, level), (*flags, step),
            num_warps=WARPS, maxnreg=64, launch_cooperative_grid=step < 0,
        )  # fmt: skip

    if INTERPRETED:
        run(0)
        for level in range(LEVELS.value):
            for step in range(1, 7):
                run(step, level)
            after = range(SPLIT.value + level + 1, size, size // tasks)
            if not any(room[k] for k in after):
                break
        run(7)
    elif n * tasks < MANY_ROWS:
        run(-1)
    else:
        # What streams over the rows is faster in kernels of its own, and by now the host is ahead.
        for step in (0, 1, -2, 7):
            run(step)


@lru_cache(maxsize=256)
def _sizes(n: int, tasks: int, seats: int) -> tuple[int, int, int]:
    """Return how many programs a task gets, rounded up to a power of two, and words for all."""
    # More programs than these leave more tables to merge than they save.
    most = seats if n * tasks >= MANY_ROWS else min(seats, FEW_PROGRAMS)
    programs = max(min(most // tasks, -(-n // BLOCK)), CHUNKS.value)
    padded = power_of_2(programs)
    return programs, padded, tasks * (WORK.value + 5 * padded + 2 * CELLS.value * programs)


@triton.jit
def _wait(counter, target):
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
def _look_up(scores, labels, grad, work, sums, n, P, low, scale, shift, n_live, gain, taint,
             WANT_GRAD: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    levels = tl.load(work + DONE).to(tl.int32)
    squares = tl.zeros((BLOCK,), tl.float64)
    for start in range(pid * BLOCK, n, P * BLOCK):
        i = start + tl.arange(0, BLOCK)
        s, positive, inside = rows(scores, labels, i, n)
        cell, fraction, active = place(s, positive, i < n_live, low, scale, shift)
        side = 2 * positive.to(tl.int32)
        line = integers(column(work, 0, LINES)) + 4 * cell + side
        c, d = unpack(tl.load(line, mask=active, other=0))
        k, m = unpack(tl.load(line + 1, mask=active, other=0))
        f = fraction.to(tl.float32)
        slope = c + d * f + k * tl.maximum(f - m, 0.0)
        square = (d * f * f).to(tl.float64)
        heavy = active & (c != c)
        for level in range(1, levels):
            cell, fraction, heavy = descend(work, level - 1, cell, fraction, heavy)
            line = integers(column(work, level, LINES)) + 4 * cell + side
            c, d = unpack(tl.load(line, mask=heavy, other=0))
            k, m = unpack(tl.load(line + 1, mask=heavy, other=0))
            f = fraction.to(tl.float32)
            slope = tl.where(heavy, c + d * f + k * tl.maximum(f - m, 0.0), slope)
            width = tl.load(column(work, level, WIDTH) + cell, mask=heavy, other=0.0)
            square = tl.where(heavy, (d * f * f).to(tl.float64) * width, square)
            heavy = heavy & (c != c)
        squares += tl.where(active, square, 0.0)
        if WANT_GRAD:
            tl.store(grad + i, slope + taint.to(tl.float32), mask=inside)
    tl.store(sums + pid, tl.sum(squares, 0) / gain)


@triton.jit
def _finish(value, pair_weight, one_class, work, sums, P, b2, share, scale, pairs, live, taint,
            PROGRAMS: tl.constexpr, COUNTED: tl.constexpr):  # fmt: skip
    i = tl.arange(0, PROGRAMS)
    squares = tl.sum(tl.load(sums + i, mask=i < P, other=0.0), 0)
    squares += tl.sum(tl.load(work + LOSSES + tl.arange(0, CHUNKS)), 0)
    found = tl.where(live, b2 * squares / (share * scale * scale), 0.0) + taint
    tl.store(value, found.to(tl.float32))
    tl.store(pair_weight, pairs + taint)
    if COUNTED:
        tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))


@triton.jit
def certified(
    scores, labels, grad, value, pair_weight, one_class, words, counter, n, shift: tl.float64,
    b2: tl.float64, level, MEAN: tl.constexpr, COUNTED: tl.constexpr, WANT_GRAD: tl.constexpr,
    BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, SHARED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute loss and gradient of the batches of `scores`, (tasks, n).

    STEP is one step, 0 survey; 1 count, 2 merge and 3 to 6 scan `level`; 7 look up; or several in
    one launch, with every program running at once: -1 for all, -2 for those between the count of
    level 0 and the look-up.
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
    tables = integers(sums + PROGRAMS)
    table = tables + pid * (2 * CELLS)
    counter += 2 * task
    waits = 0
    if STEP == -1 or STEP == 0:
        survey(scores, labels, parts, n, P, BLOCK)
        if pid == 0:
            tl.store(work + DONE, 0.0)
            k = tl.arange(0, 16)
            tl.store(work + SPLIT + k, tl.where(k == 0, 1.0, 0.0).to(tl.float64))
    if STEP == -1:
        waits += 1
        _wait(counter, waits * P)
    if STEP != 0:
        low, scale, n_pos, taint = axis(parts, shift, P, PROGRAMS)
        pairs = n_pos * (n - n_pos)
        share = tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
        live = (scale > 0.0) & (pairs > 0.0) & (taint == 0.0)
        gain = tl.where(live, 2.0 * b2 / (share * tl.where(live, scale, 1.0)), 1.0)
        if STEP < 7:
            wanted = live & (tl.load(work + SPLIT + level) > 0.0)
            while wanted:
                if STEP == -2:
                    if level > 0:
                        count(scores, labels, table, work, n, P, low, scale, shift, level, BLOCK,
                              SHARED)  # fmt: skip
                if STEP == -1 or STEP == 1:
                    count(scores, labels, table, work, n, P, low, scale, shift, level, BLOCK,
                          SHARED)  # fmt: skip
                if STEP < 0:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP < 0 or STEP == 2:
                    merge(tables, work, level, P)
                if STEP < 0:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP < 0 or STEP == 3:
                    if pid < CHUNKS:
                        sums_of_chunk(work, level, pid)
                if STEP < 0:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP < 0 or STEP == 4:
                    if pid < CHUNKS:
                        moments_of_chunk(work, level, pid)
                if STEP < 0:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP < 0 or STEP == 5:
                    if pid < CHUNKS:
                        heavies_of_chunk(work, level, pid)
                if STEP < 0:
                    waits += 1
                    _wait(counter, waits * P)
                if STEP < 0 or STEP == 6:
                    if pid < CHUNKS:
                        parts_now, n_heavy = lines_of_chunk(work, level, pid, gain)
                        if pid == 0:
                            tl.store(work + SPLIT + level + 1, parts_now.to(tl.float64))
                            tl.store(work + N_SPLIT + level + 1, n_heavy.to(tl.float64))
                            tl.store(work + DONE, level + 1.0)
                if STEP < 0:
                    waits += 1
                    _wait(counter, waits * P)
                    level += 1
                    wanted = tl.load(work + SPLIT + level) > 0.0
                else:
                    wanted = False
        if STEP == -1 or STEP == 7:
            _look_up(scores, labels, grad, work, sums, n, P, low, scale, shift,
                     tl.where(live, n, 0), gain, taint, WANT_GRAD, BLOCK)  # fmt: skip
            tl.debug_barrier()
            # The last to come adds up, and sets the counters back for the next launch.
            if tl.atomic_add(counter + 1, 1, sem="acq_rel", scope="gpu") == P - 1:
                _finish(value + task, pair_weight + task, one_class, work, sums, P, b2, share,
                        scale, pairs, live, taint, PROGRAMS, COUNTED)  # fmt: skip
                tl.store(counter, 0)
                tl.store(counter + 1, 0)

"""One truncated term b2 d^2 on a GPU, in three streaming passes.

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

Where programs run at once (a cooperative launch) they wait for each other between the steps, so the
host neither waits nor decides. Where they cannot, as in Triton's interpreter, the host launches the
steps one by one. Large batches get a launch for each step that streams over them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from everypair.torch.triton.barrier import arrive, wait
from everypair.torch.triton.cells import (
    CELLS,
    DONE,
    LEVELS,
    LINES,
    LOSSES,
    MOST_CHUNKS,
    SPLIT,
    WIDTH,
    WORK,
    axis,
    column,
    count,
    descend,
    integers,
    place,
    rows,
    survey,
    unpack,
)
from everypair.torch.triton.launch import (
    INTERPRETED,
    Trace,
    launch,
    power_of_2,
    seats,
    words,
    zeros,
)
from everypair.torch.triton.scan import scan

if TYPE_CHECKING:
    from torch import Tensor

    from everypair.torch.triton.launch import Job, KnotTerm, Launched

__all__ = ["buckets_fit", "by_buckets"]

MOST_ROWS = 1 << 27
"""Sums of places of more would not fit in 64 bits."""
ROWS_A_PROGRAM = (1 << 20) - 4096
"""More in one cell might overflow its count."""
MANY_ROWS = 4_000_000
"""From here on, several launches are faster than one."""
# From how many rows on: rows a step, warps of a program, and how many of these a multiprocessor
# gets. Scans are faster with few warps, streams with many.
SHAPES = {MANY_ROWS: (4096, 32, 1), 200_000: (2048, 8, 1), 0: (1024, 4, 1)}
SCAN_WARPS = 4
SURVEY, COUNT, SCAN, LOOK_UP = (tl.constexpr(k) for k in range(4))
ALL, DEEPER = tl.constexpr(-1), tl.constexpr(-2)
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
        and most > 0
        and scores.shape[-1] <= min(MOST_ROWS, most * ROWS_A_PROGRAM)
    )


def by_buckets(job: Job) -> Trace:
    """Answer for loss and gradient of one truncated term, unweighted, of narrow scores."""
    scores, labels, _, _, terms, mean, one_class = job[:7]
    value, pair_weight, grad = job[7:10]
    n = scores.shape[-1]
    tasks = scores.numel() // n
    device = scores.device
    shape = _shape(n, tasks, seats(device))
    room, spare = words(shape.words, tasks, device)
    counters = zeros(4 * tasks, device)
    shift, _, _, b2, _ = terms[0]
    pointers = (scores, labels, value if grad is None else grad, value,
                spare if pair_weight is None else pair_weight,
                value if one_class is None else one_class, room, counters)  # fmt: skip
    flags = (mean, one_class is not None, grad is not None, shape.block, job.missing,
             shape.padded, shape.chunks, not INTERPRETED)  # fmt: skip

    def run(step: int, level: int = 0) -> Launched | None:
        alone = step == SCAN.value and not INTERPRETED
        warps = SCAN_WARPS if alone else shape.warps
        return launch(
            certified, (shape.chunks if alone else shape.programs, tasks), pointers,
            (n, shift, b2, shape.programs, level), (*flags, step),
            num_warps=warps, maxnreg=255 if alone else shape.registers, enable_fp_fusion=True,
            launch_cooperative_grid=alone or step < 0,
        )  # fmt: skip

    if INTERPRETED:
        run(SURVEY.value)
        for level in range(LEVELS.value):
            run(COUNT.value, level)
            run(SCAN.value, level)
            after = range(SPLIT.value + level + 1, shape.words, shape.words // tasks)
            if not any(room[k] for k in after):
                break
        return Trace(room, counters, [run(LOOK_UP.value)])
    if n * tasks < MANY_ROWS:
        return Trace(room, counters, [run(ALL.value)])
    # What streams over many rows is faster in kernels of its own, and by then the host is ahead.
    steps = (SURVEY, COUNT, SCAN, DEEPER, LOOK_UP)
    return Trace(room, counters, [run(step.value, int(step is DEEPER)) for step in steps])


class _Shape(NamedTuple):
    """How a batch is laid out: programs, room for them, chunks of cells, rows a step, and so on."""

    programs: int
    padded: int
    chunks: int
    block: int
    warps: int
    registers: int
    words: int


@lru_cache(maxsize=256)
def _shape(n: int, tasks: int, seats: int) -> _Shape:
    block, warps, on_a_seat = next(shape for rows, shape in SHAPES.items() if n * tasks >= rows)
    most = max(on_a_seat * seats // tasks, 1)
    programs = min(most, -(-n // block))
    padded = power_of_2(most)  # not that of the programs: sizes that differ share a kernel
    chunks = 1 if INTERPRETED else min(power_of_2(programs // 2 + 1), MOST_CHUNKS.value)
    return _Shape(
        programs,
        padded,
        chunks,
        block,
        warps,
        min(255, 2048 // (warps * on_a_seat)),
        tasks * (WORK.value + 6 * padded + 2 * CELLS.value * programs),
    )


@triton.jit
def _look_up(scores, labels, grad, work, sums, n, P, low, scale, shift, n_live, gain, taint,
             WANT_GRAD: tl.constexpr, BLOCK: tl.constexpr, MISSING: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    levels = tl.load(work + DONE).to(tl.int32)
    squares = tl.zeros((BLOCK,), tl.float64)
    for start in range(pid * BLOCK, n, P * BLOCK):
        i = start + tl.arange(0, BLOCK)
        s, positive, here = rows(scores, labels, i, n, MISSING)
        cell, fraction, active = place(s, positive, here & (i < n_live), low, scale, shift)
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
            tl.store(grad + i, slope + taint.to(tl.float32), mask=i < n)
    tl.store(sums + pid, tl.sum(squares, 0) / gain)


@triton.jit
def _finish(value, pair_weight, one_class, work, sums, P, b2, share, scale, pairs, live, taint,
            PROGRAMS: tl.constexpr, CHUNKS: tl.constexpr, COUNTED: tl.constexpr):  # fmt: skip
    i = tl.arange(0, PROGRAMS)
    squares = tl.sum(tl.load(sums + i, mask=i < P, other=0.0), 0)
    squares += tl.sum(tl.load(work + LOSSES + tl.arange(0, CHUNKS)), 0)
    found = tl.where(live, b2 * squares / (share * scale * scale), 0.0) + taint
    tl.store(value, found.to(tl.float32))
    tl.store(pair_weight, pairs + taint)
    if COUNTED:
        tl.atomic_add(one_class, (pairs == 0.0).to(tl.int64))


@triton.jit(do_not_specialize=["P", "level"])
def certified(
    scores, labels, grad, value, pair_weight, one_class, words, counters, n, shift: tl.float64,
    b2: tl.float64, P, level, MEAN: tl.constexpr, COUNTED: tl.constexpr, WANT_GRAD: tl.constexpr,
    BLOCK: tl.constexpr, MISSING: tl.constexpr, PROGRAMS: tl.constexpr, CHUNKS: tl.constexpr,
    SHARED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute loss and gradient of the batches of `scores`, (tasks, n), in P programs each.

    STEP is one step (of `level`, where that matters), or several in one launch with every program
    running at once: ALL of them, or those of DEEPER levels than 0 if any are needed.
    """
    pid = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    scores += task * n
    labels += task * n
    grad += task * n
    work = words + task * (WORK + 6 * PROGRAMS + 2 * CELLS * P)
    parts = work + WORK
    sums = parts + 5 * PROGRAMS
    tables = integers(sums + PROGRAMS)
    table = tables + pid * (2 * CELLS)
    # Arrivals: of all programs at a step, of chunks in a scan, of chunks that are done, at the end.
    counters += 4 * task
    arrived = 0
    met = 3 * CHUNKS if STEP == DEEPER and CHUNKS > 1 else 0  # in the scan of level 0
    done = 0
    if STEP == ALL or STEP == SURVEY:
        survey(scores, labels, parts, n, P, BLOCK, MISSING)
        if pid == 0:
            if STEP == SURVEY:  # whatever an interrupted call has left
                tl.store(counters + tl.arange(0, 4), tl.zeros((4,), tl.int32))
            tl.store(work + DONE, 0.0)
            k = tl.arange(0, 16)
            tl.store(work + SPLIT + k, tl.where(k == 0, 1.0, 0.0).to(tl.float64))
    if STEP == ALL:
        arrived += P
        arrive(counters)
        wait(counters, arrived)
    if STEP != SURVEY:
        low, scale, pairs, taint = axis(parts, shift, P, PROGRAMS)
        share = tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
        live = (scale > 0.0) & (pairs > 0.0) & (taint == 0.0)
        gain = tl.where(live, 2.0 * b2 / (share * tl.where(live, scale, 1.0)), 1.0)
        if STEP != LOOK_UP:
            wanted = live & (tl.load(work + SPLIT + level) > 0.0)
            while wanted:
                if STEP != SCAN:
                    count(scores, labels, table, work, n, P, low, scale, shift, level, BLOCK,
                          MISSING, SHARED)  # fmt: skip
                if STEP < 0:
                    arrived += P
                    arrive(counters)
                if STEP != COUNT:
                    if pid < CHUNKS:
                        if STEP < 0:
                            wait(counters, arrived)
                        met = scan(tables, work, level, pid, P, gain, counters + 1, met, CHUNKS)
                        if STEP < 0:
                            arrive(counters + 2)
                wanted = False
                if STEP < 0:
                    done += CHUNKS
                    wait(counters + 2, done)
                    level += 1
                    wanted = tl.load(work + SPLIT + level) > 0.0
        if STEP == ALL or STEP == LOOK_UP:
            _look_up(scores, labels, grad, work, sums, n, P, low, scale, shift,
                     tl.where(live, n, 0), gain, taint, WANT_GRAD, BLOCK, MISSING)  # fmt: skip
            tl.debug_barrier()
            # The last to come adds up, and sets the counters back for the next launch.
            if tl.atomic_add(counters + 3, 1, sem="acq_rel", scope="gpu") == P - 1:
                _finish(value + task, pair_weight + task, one_class, work, sums, P, b2, share,
                        scale, pairs, live, taint, PROGRAMS, CHUNKS, COUNTED)  # fmt: skip
                tl.store(counters + tl.arange(0, 4), tl.zeros((4,), tl.int32))

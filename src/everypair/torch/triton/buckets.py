"""Compute one truncated term b2 d^2 on a GPU in three passes over the rows.

The plan is that of the compiled kernel's certified buckets. Rows are placed on an axis of equal
cells: positives at p = s and negatives at p = s + shift, in units of a cell from the lowest
positive on. A pair is active where p_neg > p_pos.

    survey   the range of the axis, the number of positives and negatives
    count    by cell and class: rows, and the sum of their fractions of a cell, as integers
    scan     A and M: number and first moment of the positives below each cell; of the negatives
             above it: D and E
    look up  the gradient of each row, from a line that belongs to its cell

The pairs inside one cell are approximated by a line with one kink, whose error convexity bounds.
Cells where the bound is too large ("heavy" cells) are split into parts, which are counted and
scanned as another level, until none is left. All sums that decide this are sums of integers, so
the result does not depend on the order of rows or programs.

Three ways to launch the steps: below MANY_ROWS one cooperative launch does them ALL, with barriers
between them; above it, each step that reads all rows is a launch of its own, and a cooperative
launch does the DEEPER levels; in the interpreter, which runs one program after the other, the host
launches step by step. The host never waits for the device.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from everypair.surrogates import KnotTerm
from everypair.torch.triton.cells import axis, count, finish, look_up, survey
from everypair.torch.triton.common.launch import (
    INTERPRETED, Job, Launched, Trace, buffers, launch, n_multiprocessors, power_of_2,
)  # fmt: skip
from everypair.torch.triton.scan import scan
from everypair.torch.triton.common.workspace import (
    BUCKET_WORDS, CELLS, END_COUNTER, LEVEL_COUNTER, LEVELS, MOST_CHUNKS, N_COUNTERS, N_LEVELS,
    N_PARTS, SCAN_COUNTER, STEP_COUNTER, SURVEY_WORDS, arrive, as_int64, bucket_words, wait,
)  # fmt: skip

MOST_ROWS = 1 << 27
"""Sums of places of more rows do not fit in 64 bits. Test: `test_integer_sums_fit`."""
ROWS_PER_PROGRAM = (1 << 20) - 4096
"""More rows in one cell may overflow its count of 20 bits. Test: `test_integer_sums_fit`."""
MANY_ROWS = 4_000_000
"""From here on, several launches are faster than one."""
SHAPES = {MANY_ROWS: (4096, 32), 200_000: (2048, 8), 0: (1024, 4)}
"""From how many rows on: rows that a program reads at once, and its warps."""
SCAN_WARPS = 4
"""Warps of a scan alone, which is faster with few; passes over rows are faster with many."""

# What a launch of `certified` does: its constant STEP. Negative numbers are several steps.
SURVEY = tl.constexpr(0)  # survey
COUNT = tl.constexpr(1)  # count one level
SCAN = tl.constexpr(2)  # scan one level; cooperative on a GPU, one program for each chunk
LOOK_UP = tl.constexpr(3)  # look up all rows, and compute the loss
ALL = tl.constexpr(-1)  # cooperative: survey, count and scan every level, look up
DEEPER = tl.constexpr(-2)  # cooperative: count and scan the levels from `level` on

NARROW = frozenset((torch.float32, torch.bfloat16, torch.float16))


def buckets_fit(scores: Tensor, tasks: int, terms: tuple[KnotTerm, ...]) -> bool:
    """Return whether `by_buckets` can compute this, given no weights, vector or Hessian."""
    _, b0, b1, _, truncated = terms[0]
    max_programs = n_multiprocessors(scores.device) // tasks
    fits = scores.shape[-1] <= min(MOST_ROWS, max_programs * ROWS_PER_PROGRAM)
    return len(terms) == 1 and truncated and not (b0 or b1) and scores.dtype in NARROW and fits


def by_buckets(job: Job) -> Trace:
    """Compute loss and gradient of one truncated term, without weights, of narrow scores."""
    n, tasks = job.n, job.tasks
    shape = _shape(n, tasks, n_multiprocessors(job.scores.device))
    tensors = buffers(job, shape.words, N_COUNTERS.value * tasks)
    shift, _, _, b2, _ = job.polynomials[0]
    constants = {
        **job.constants, "BLOCK": shape.block, "PROGRAMS": shape.padded, "CHUNKS": shape.chunks,
        "SHARED": not INTERPRETED,
    }  # fmt: skip

    def run(step: tl.constexpr, level: int = 0) -> Launched | None:
        is_alone = step is SCAN and not INTERPRETED
        return launch(
            certified, (shape.chunks if is_alone else shape.programs, tasks), tensors,
            {"n": n, "shift": shift, "b2": b2, "P": shape.programs, "level": level},
            {**constants, "STEP": step.value},
            num_warps=SCAN_WARPS if is_alone else shape.warps,
            maxnreg=255 if is_alone else shape.registers,
            enable_fp_fusion=True,
            launch_cooperative_grid=is_alone or step is ALL or step is DEEPER,
        )  # fmt: skip

    if INTERPRETED:
        workspace = tensors["workspace"]
        run(SURVEY)
        for level in range(LEVELS.value):
            run(COUNT, level)
            run(SCAN, level)
            after = range(N_PARTS.value + level + 1, shape.words, shape.words // tasks)
            if not any(workspace[k] for k in after):
                break
        return Trace(tensors, [run(LOOK_UP)])
    if n * tasks < MANY_ROWS:
        return Trace(tensors, [run(ALL)])
    steps = ((SURVEY, 0), (COUNT, 0), (SCAN, 0), (DEEPER, 1), (LOOK_UP, 0))
    return Trace(tensors, [run(step, level) for step, level in steps])


class _Shape(NamedTuple):
    """Sizes of a launch."""

    programs: int  # of a task, in all steps but a scan alone
    padded: int  # a power of 2, at least `programs`
    chunks: int  # programs that share a scan
    block: int  # rows that a program reads at once
    warps: int  # of a program
    registers: int  # of a thread, at most
    words: int  # of the work space


@lru_cache(maxsize=256)
def _shape(n: int, tasks: int, multiprocessors: int) -> _Shape:
    block, warps = next(shape for rows, shape in SHAPES.items() if n * tasks >= rows)
    max_programs = max(multiprocessors // tasks, 1)
    programs = min(max_programs, -(-n // block))
    padded = power_of_2(max_programs)  # so that batches of different sizes share a kernel
    chunks = 1 if INTERPRETED else min(power_of_2(programs // 2 + 1), MOST_CHUNKS.value)
    registers, words = min(255, 2048 // warps), bucket_words(tasks, programs, padded)
    return _Shape(programs, padded, chunks, block, warps, registers, words)


@triton.jit(do_not_specialize=["P", "level"])
def certified(
    scores, labels, grad, value, pair_weight, one_class, workspace, counters, n, shift: tl.float64,
    b2: tl.float64, P, level, MEAN: tl.constexpr, COUNTED: tl.constexpr, WANT_GRAD: tl.constexpr,
    BLOCK: tl.constexpr, MISSING: tl.constexpr, PROGRAMS: tl.constexpr, CHUNKS: tl.constexpr,
    SHARED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute loss and gradient of each task, or a step of it.

    Programs: (P, tasks), or (CHUNKS, tasks) for SCAN on a GPU. See the package for other arguments.

    scores       float32 or narrower; LOOK_UP writes `grad`, `value`, `pair_weight`, `one_class`
    counters     (tasks, N_COUNTERS) int32, 0 before and after: see `workspace`
    shift, b2    the term
    P, PROGRAMS  programs of a task; a power of 2 that is not less
    level        the level to COUNT or SCAN; the first of DEEPER
    BLOCK        rows that a program reads at once
    CHUNKS       programs that share a scan, a power of 2
    SHARED       count in shared memory: on a GPU, not in the interpreter
    STEP         what to do: SURVEY, COUNT, SCAN, LOOK_UP, ALL or DEEPER
    """
    SEVERAL: tl.constexpr = STEP < 0
    pid = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    scores += task * n
    labels += task * n
    grad += task * n
    work = workspace + task * (BUCKET_WORDS + (SURVEY_WORDS + 1) * PROGRAMS + 2 * CELLS * P)
    parts = work + BUCKET_WORDS
    sums = parts + SURVEY_WORDS * PROGRAMS
    tables = as_int64(sums + PROGRAMS)
    table = tables + pid * (2 * CELLS)
    counters += N_COUNTERS * task
    # Arrivals that the counters have reached: at a step, inside a scan (3 barriers were passed by
    # the SCAN of level 0, in a launch before this one), and at the end of a scan.
    at_step = 0
    in_scan = 3 * CHUNKS if STEP == DEEPER and CHUNKS > 1 else 0
    scanned = 0
    # 1. Survey, and initialise what the levels read.
    if STEP == ALL or STEP == SURVEY:
        survey(scores, labels, parts, n, P, BLOCK, MISSING)
        if pid == 0:
            if STEP == SURVEY:  # an interrupted call may have left other numbers
                tl.store(counters + tl.arange(0, N_COUNTERS), tl.zeros((N_COUNTERS,), tl.int32))
            tl.store(work + N_LEVELS, 0.0)
            k = tl.arange(0, 16)
            tl.store(work + N_PARTS + k, tl.where(k == 0, 1.0, 0.0).to(tl.float64))
    if STEP == ALL:
        at_step += P
        arrive(counters + STEP_COUNTER)
        wait(counters + STEP_COUNTER, at_step)
    if STEP != SURVEY:
        # 2. The axis, and whether there is any active pair (`live`).
        low, scale, pairs, nonfinite = axis(parts, shift, P, PROGRAMS)
        share = tl.where(pairs > 0.0, pairs, 1.0) if MEAN else tl.full((), 1.0, tl.float64)
        live = (scale > 0.0) & (pairs > 0.0) & (nonfinite == 0.0)
        gain = tl.where(live, 2.0 * b2 / (share * tl.where(live, scale, 1.0)), 1.0)
        if STEP != LOOK_UP:
            wanted = live & (tl.load(work + N_PARTS + level) > 0.0)
            while wanted:
                # 3. Count the rows of a level.
                if STEP != SCAN:
                    count(scores, labels, table, work, n, P, low, scale, shift, level, BLOCK,
                          MISSING, SHARED)  # fmt: skip
                if SEVERAL:
                    at_step += P
                    arrive(counters + STEP_COUNTER)
                # 4. Scan the level; the first CHUNKS programs do.
                if STEP != COUNT:
                    if pid < CHUNKS:
                        if SEVERAL:
                            wait(counters + STEP_COUNTER, at_step)
                        in_scan = scan(tables, work, level, pid, P, gain,
                                       counters + SCAN_COUNTER, in_scan, CHUNKS)  # fmt: skip
                        if SEVERAL:
                            arrive(counters + LEVEL_COUNTER)
                # 5. Go on with the next level, if it is needed.
                wanted = False
                if SEVERAL:
                    scanned += CHUNKS
                    wait(counters + LEVEL_COUNTER, scanned)
                    level += 1
                    wanted = tl.load(work + N_PARTS + level) > 0.0
        # 6. Look up the rows of this program.
        if STEP == ALL or STEP == LOOK_UP:
            look_up(scores, labels, grad, work, sums, n, P, low, scale, shift,
                     tl.where(live, n, 0), gain, nonfinite, WANT_GRAD, BLOCK, MISSING)  # fmt: skip
            tl.debug_barrier()
            # 7. The last program computes the loss, and sets the counters to 0 again.
            if tl.atomic_add(counters + END_COUNTER, 1, sem="acq_rel", scope="gpu") == P - 1:
                finish(value + task, pair_weight + task, one_class, work, sums, P, b2, share,
                        scale, pairs, live, nonfinite, PROGRAMS, CHUNKS, COUNTED)  # fmt: skip
                tl.store(counters + tl.arange(0, N_COUNTERS), tl.zeros((N_COUNTERS,), tl.int32))

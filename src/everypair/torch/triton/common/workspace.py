"""Layout of the work space of all plans, and how the programs of a launch share it.

A work space is a float64 tensor: a row of 8-byte words. Some words hold int64, see `as_int64`.
Kernels import every name by itself: Triton puts the value of an imported constant into the key of
its compile cache, but not that of an attribute such as ``workspace.CELLS``.

**Term** of a surrogate, TERM_WORDS each, in the tensor `terms`: TERM_SHIFT, TERM_B0, TERM_B1,
TERM_B2 (coefficients of d), TERM_KNOT (whether, or where, the term is truncated: see the plan).

**Moments** of rows (`double_double`), one column for each number: x, w, m, q; with double-double
also the low parts of w, m, q; then, if there is a vector, its weighted sum z (one column, or two).

**Pair by pair** (`pairs`), per task: the loss of each program.

**Class moments** (`moments`), per task: for each class CLASS_COLUMNS columns with an entry for each
block; a column with 0 or NaN for each block; then the same for the whole class (one entry each).

**Sorted rows** (`sorted_rows`, `chunks`), per task: columns of both classes with an entry for each
chunk; the same with an entry for each block. After all tasks: the loss of each program (2 words).

**Certified buckets** (`buckets`, `cells`, `scan`), per task, C = MOST_CHUNKS:

====================  =============  =========================================================
offset                words          contents
====================  =============  =========================================================
N_PARTS               16             by level: parts of each heavy cell above; 0: level not needed
N_HEAVY               16             by level: heavy cells above
N_LEVELS              1              levels that are done
LIMIT_NEG ... _POS_1  5              error limits of a cell, see `scan._limits`
CHUNK_TOTALS          5 x C          by chunk: sums N0, U0, N1, U1 (int64) and V1
CHUNK_ERRORS          4 x C          by chunk: sums that `scan._limits` needs
CHUNK_HEAVY           C              by chunk: heavy cells at four tolerances, 12 bits each (int64)
CHUNK_LOSS            C              by chunk: sum of d^2 over pairs
LEVEL_TABLES          LEVELS tables  by level: COLUMNS columns of CELLS words, see below
BUCKET_WORDS          5 x PROGRAMS   by program: SURVEY_WORDS results of the survey
... + 5 x PROGRAMS    PROGRAMS       by program: sum of squares of its rows
... + 6 x PROGRAMS    2 x CELLS x P  by program: packed counts, negatives then positives (int64)
====================  =============  =========================================================

Columns of a level: N0 ... V1, running sums inside a chunk of negatives (0) and positives (1): rows
N, places U, squares of places V. BELOW, BELOW_M, BELOW_S: number, first and second moment of the
positives below a cell. ABOVE, ABOVE_M: number and first moment of the negatives above it. WIDTH of
the cell in cells of level 0. PARTS: into how many it is split (0: it is not). CHILD: its first part
on the next level. HEAVIES: the cells that are split, in order. LINES: four words for each cell,
the line with one kink that gives the gradient of a negative (2 words) and of a positive (2).

Counters of certified buckets count programs that have arrived: at the end of a step (STEP_COUNTER),
at a barrier inside a scan (SCAN_COUNTER), at the end of a scan (LEVEL_COUNTER), at the end of the
launch (END_COUNTER). Those of other plans count programs that are done, one for each task.
"""

from __future__ import annotations

from itertools import accumulate

import triton
import triton.language as tl


def _offsets(*sizes: int) -> list[tl.constexpr]:
    """Return the offset of each of several fields that follow each other, and of their end."""
    return [tl.constexpr(offset) for offset in accumulate(sizes, initial=0)]


TERM_SHIFT, TERM_B0, TERM_B1, TERM_B2, TERM_KNOT, TERM_WORDS = _offsets(1, 1, 1, 1, 1)
MOMENTS, MOMENTS_DD = tl.constexpr(4), tl.constexpr(7)  # columns; z comes next
CLASS_COLUMNS = tl.constexpr(MOMENTS_DD.value + 2)

CELLS = tl.constexpr(2048)
"""Cells of a level: their counts, 8 bytes a class, fit in the shared memory of a multiprocessor."""
LEVELS = tl.constexpr(8)
"""Most levels; each splits a heavy cell of the level above into up to 2048."""
MOST_CHUNKS = tl.constexpr(64)
"""Most programs that share the scan of a level, and room for their sums."""

N_PARTS, N_HEAVY, N_LEVELS, LIMIT_NEG, _SUMS = _offsets(16, 16, 1, 5)
LIMIT_POS, LIMIT_DOUBT, LIMIT_NEG_1, LIMIT_POS_1 = (
    tl.constexpr(LIMIT_NEG.value + k) for k in range(1, 5)
)
CHUNK_TOTALS, CHUNK_ERRORS, CHUNK_HEAVY, CHUNK_LOSS, LEVEL_TABLES = (
    tl.constexpr(_SUMS.value + kind.value * MOST_CHUNKS.value) for kind in _offsets(5, 4, 1, 1)
)
N0, U0, N1, U1, V1, BELOW, BELOW_M, BELOW_S, ABOVE, ABOVE_M = _offsets(*[1] * 9)
WIDTH, PARTS, CHILD, HEAVIES, LINES = (tl.constexpr(k) for k in range(10, 15))
COLUMNS = tl.constexpr(LINES.value + 4)
BUCKET_WORDS = tl.constexpr(LEVEL_TABLES.value + LEVELS.value * COLUMNS.value * CELLS.value)
SURVEY_WORDS = tl.constexpr(5)
# Counters of certified buckets, int32 for each task, all 0 before and after.
STEP_COUNTER, SCAN_COUNTER, LEVEL_COUNTER, END_COUNTER, N_COUNTERS = _offsets(1, 1, 1, 1)


def moment_words(tasks: int, blocks: int) -> int:
    """Return the words of class moments."""
    of_block: int = 2 * CLASS_COLUMNS.value + 1
    return tasks * of_block * (blocks + 1)


def sorted_words(tasks: int, columns: int, blocks: int, chunks: int) -> int:
    """Return the words of sorted rows, without the losses that stand after them."""
    return tasks * 2 * columns * blocks * (chunks + 1)


def bucket_words(tasks: int, programs: int, padded: int) -> int:
    """Return the words of certified buckets; `padded` is the constant PROGRAMS of the kernel."""
    of_programs = (SURVEY_WORDS.value + 1) * padded + 2 * CELLS.value * programs
    of_task: int = BUCKET_WORDS.value + of_programs
    return tasks * of_task


@triton.jit
def load_term(terms, k):
    """Return the five numbers of term k: shift, b0, b1, b2, knot."""
    term = terms + TERM_WORDS * k
    b0, b1, b2 = tl.load(term + TERM_B0), tl.load(term + TERM_B1), tl.load(term + TERM_B2)
    return tl.load(term + TERM_SHIFT), b0, b1, b2, tl.load(term + TERM_KNOT)


@triton.jit
def column(work, level, column):
    """Return a pointer to a column of a level."""
    return work + LEVEL_TABLES + (level * COLUMNS + column) * CELLS


@triton.jit
def as_int64(pointer):
    """Return a pointer to words that hold int64."""
    return pointer.to(tl.pointer_type(tl.int64))


@triton.jit
def pack(first, second):
    """Return two numbers, rounded to float32, in one int64."""
    low = first.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (second.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def unpack(word):
    """Return the two float32 numbers that `pack` put into an int64."""
    low = (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return low, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


# Synchronisation between programs: only for cooperative launches, or for one program alone.


@triton.jit
def arrive(counter):
    """Add 1 to a counter, after all that this program has written."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter, target):
    """Wait until a counter is at least `target`; then what the others wrote can be read."""
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
def barrier(counter, arrivals, CHUNKS: tl.constexpr):
    """Wait for the programs of all chunks; return `arrivals`, the count before, plus theirs."""
    if CHUNKS > 1:
        arrivals += CHUNKS
        arrive(counter)
        wait(counter, arrivals)
    else:
        tl.debug_barrier()  # one thread has written, the others read
    return arrivals


@triton.jit
def publish(sums, kind, chunk, number):
    """Store a number of a chunk where the programs of other chunks find it."""
    tl.store(sums + kind * MOST_CHUNKS + chunk, number)


@triton.jit
def sum_of(sums, kind, CHUNKS: tl.constexpr):
    """Return the sum of what all chunks published."""
    k = tl.arange(0, CHUNKS)
    return tl.sum(tl.load(sums + kind * MOST_CHUNKS + k), 0)


@triton.jit
def sum_before(sums, kind, chunk, CHUNKS: tl.constexpr):
    """Return the sum of what the chunks before one published."""
    k = tl.arange(0, CHUNKS)
    numbers = tl.load(sums + kind * MOST_CHUNKS + k)
    return tl.sum(tl.where(k < chunk, numbers, tl.zeros_like(numbers)), 0)


@triton.jit
def before_cell(sums, kind, running, i, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """Return the sum over all cells before cell i, or over all cells where i is CELLS.

    It is what the chunks before that of i published, and the running sum inside its own chunk.
    """
    k = tl.arange(0, CHUNKS)
    numbers = tl.load(sums + kind * MOST_CHUNKS + k)[None, :]
    earlier = tl.where(k[None, :] < (i // CHUNK)[:, None], numbers, tl.zeros_like(numbers))
    within = tl.load(running + i, mask=i < CELLS, other=0)
    return tl.sum(earlier, 1) + within

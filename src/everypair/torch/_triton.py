"""Triton's kernels behind one entry: which plan computes what, and how it is launched.

Small batches meet pair by pair. Large ones go through certified buckets where there is one term
b2 d^2 that vanishes at its knot with its slope, and no weights. All else is left to the operations
of `_tensor_moments`.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from everypair.torch._triton_buckets import certified
from everypair.torch._triton_cells import CELLS, CHUNKS, LEVELS, SPLIT, WORK
from everypair.torch._triton_pairs import all_pairs

if TYPE_CHECKING:
    from torch import Tensor

    KnotTerm = tuple[float, float, float, float, bool]
    Answer = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]

__all__ = ["evaluate"]

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
FEW_ROWS = 6_000
"""Below, pair by pair is faster than buckets."""
SOME_ROWS = 30_000
"""Below, it is faster than sorting, for what buckets cannot do."""
MOST_ROWS = 1 << 27
"""Sums of places of more would not fit in 64 bits."""
MOST_TASKS = 65_535
"""A launch has no more rows of programs."""
MANY_ROWS = 4_000_000
"""From here on, several launches are faster than one."""
FEW_PROGRAMS = 256
ROWS_A_PROGRAM = 1 << 20  # more in one cell would overflow its count
BLOCK = 1024
WARPS = 8
SEATS = 4  # programs that a multiprocessor holds at once
NARROW = frozenset((torch.float32, torch.bfloat16, torch.float16))


class _Job(NamedTuple):
    """What a plan gets: the batches, what is asked, and where the answers go."""

    scores: Tensor
    labels: Tensor
    weights: Tensor | None
    vector: Tensor | None
    terms: tuple[KnotTerm, ...]
    mean: bool
    one_class: Tensor | None
    value: Tensor
    pair_weight: Tensor | None
    slopes: Tensor | None
    product: Tensor | None


def evaluate(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    vector: Tensor | None,
    terms: tuple[KnotTerm, ...],
    *,
    mean: bool,
    grad: bool,
    one_class: Tensor | None = None,
) -> Answer | None:
    """Return values, pair weights, gradient and Hessian times vector; None where no plan fits.

    Scores are (n,) or (tasks, n); what comes with them has the same shape. Batches of one class are
    added to the counter `one_class`; with it, no pair weights are returned.
    """
    n = scores.shape[-1]
    tasks = scores.numel() // n
    _, b0, b1, _, truncated = terms[0]
    seats = _seats(scores.device)
    bucketed = (
        len(terms) == 1
        and truncated
        and not b0
        and not b1
        and weights is None
        and vector is None
        and scores.dtype in NARROW
        and n <= MOST_ROWS
        and tasks * CHUNKS.value <= seats
        and n <= (seats // tasks) * ROWS_A_PROGRAM
    )
    if tasks > MOST_TASKS:
        return None
    if n > (FEW_ROWS if bucketed else SOME_ROWS):
        if not bucketed:
            return None
        plan = _buckets
    else:
        plan = _pairs
    if labels.dtype is torch.bool:
        labels = labels.view(torch.uint8)
    scores, labels = scores.contiguous(), labels.contiguous()
    shape = scores.shape[:-1]
    dtype = torch.float64 if scores.dtype is torch.float64 else torch.float32
    value = torch.empty(shape, dtype=dtype, device=scores.device)
    pair_weight = None
    if one_class is None:
        pair_weight = torch.empty(shape, dtype=torch.float64, device=scores.device)
    slopes = torch.empty_like(scores, dtype=dtype) if grad else None
    product = None if vector is None else torch.empty_like(scores, dtype=dtype)
    plan(
        _Job(
            scores, labels, weights, vector, terms, mean, one_class,
            value, pair_weight, slopes, product,
        )
    )  # fmt: skip
    return value, pair_weight, slopes, product


def _pairs(job: _Job) -> None:
    scores, labels, weights, vector, terms, mean, one_class = job[:7]
    value, pair_weight, slopes, product = job[7:]
    n = scores.shape[-1]
    tasks = scores.numel() // n
    rows = 16
    blocks = -(-n // rows)
    padded = _power_of_2(blocks)
    shares, spare = _words(tasks * padded, tasks, scores.device)
    arrivals = _zeros(tasks, scores.device)
    _launch(
        all_pairs, (blocks, tasks),
        (scores, labels, scores if weights is None else weights.contiguous(),
         scores if vector is None else vector.contiguous(), _on_device(terms, scores.device),
         value if slopes is None else slopes, value if product is None else product, value,
         spare if pair_weight is None else pair_weight,
         value if one_class is None else one_class, shares, arrivals),
        (n,),
        (len(terms), mean, one_class is not None, weights is not None, slopes is not None,
         vector is not None, rows, 64, padded),
        num_warps=4,
    )  # fmt: skip


def _buckets(job: _Job) -> None:
    scores, labels, _, _, terms, mean, one_class = job[:7]
    value, pair_weight, slopes, _ = job[7:]
    n = scores.shape[-1]
    tasks = scores.numel() // n
    device = scores.device
    programs, padded, size = _sizes(n, tasks, _seats(device))
    words, spare = _words(size, tasks, device)
    counter = _zeros(2 * tasks, device)
    shift, _, _, b2, _ = terms[0]
    pointers = (scores, labels, value if slopes is None else slopes, value,
                spare if pair_weight is None else pair_weight,
                value if one_class is None else one_class, words, counter)  # fmt: skip
    flags = (mean, one_class is not None, slopes is not None, BLOCK, padded, not INTERPRETED)

    def launch(step: int, level: int = 0) -> None:
        _launch(
            certified, (programs, tasks), pointers, (n, shift, b2, level), (*flags, step),
            num_warps=WARPS, maxnreg=64, launch_cooperative_grid=step < 0,
        )  # fmt: skip

    if INTERPRETED:
        launch(0)
        for level in range(LEVELS.value):
            for step in range(1, 7):
                launch(step, level)
            after = range(SPLIT.value + level + 1, size, size // tasks)
            if not any(words[k] for k in after):
                break
        launch(7)
    elif n * tasks < MANY_ROWS:
        launch(-1)
    else:
        # What streams over the rows is faster in kernels of its own, and by now the host is ahead.
        for step in (0, 1, -2, 7):
            launch(step)


def _words(size: int, tasks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return room for a plan, and the end of it for pair weights that nobody asks for."""
    size += size % 2  # addresses stay multiples of 16
    words = torch.empty(size + tasks, dtype=torch.float64, device=device)
    return words, words[size:]


@lru_cache(maxsize=256)
def _sizes(n: int, tasks: int, seats: int) -> tuple[int, int, int]:
    """Return how many programs a task gets, rounded up to a power of two, and words for all."""
    # More programs than these leave more tables to merge than they save.
    most = seats if n * tasks >= MANY_ROWS else min(seats, FEW_PROGRAMS)
    programs = max(min(most // tasks, -(-n // BLOCK)), CHUNKS.value)
    padded = _power_of_2(programs)
    return programs, padded, tasks * (WORK.value + 5 * padded + 2 * CELLS.value * programs)


def _power_of_2(n: int) -> int:
    """Return the next one; Triton's own takes microseconds."""
    return 1 << (n - 1).bit_length()


_compiled: dict[tuple[object, ...], Any] = {}


def _launch(
    kernel: Any,
    grid: tuple[int, int],
    pointers: tuple[Tensor, ...],
    scalars: tuple[float, ...],
    constants: tuple[int, ...],
    **options: Any,
) -> None:
    """Launch a kernel, the second time without asking Triton once more which variant it is.

    Triton looks at the type and alignment of every argument, which takes as long as all else that
    a small batch needs. Here only what a user brings can differ, and an address is read sooner than
    a tensor.
    """
    addresses = [tensor.data_ptr() for tensor in pointers]
    if INTERPRETED or any(address % 16 for address in addresses):
        names = kernel.arg_names[-len(constants) :]
        kernel[grid](*pointers, *scalars, **dict(zip(names, constants, strict=True)), **options)
        return
    n = scalars[0]
    device = pointers[0].device
    dtypes = [tensor.dtype for tensor in pointers]
    key = id(kernel), device, *dtypes, n % 16 == 0, n == 1, scalars[3:], constants, grid
    run = _compiled.get(key)
    if run is None:
        names = kernel.arg_names[-len(constants) :]
        named = dict(zip(names, constants, strict=True))
        whole = (*grid, 1)
        compiled = kernel.warmup(*pointers, *scalars, **named, **options, grid=whole)
        run = _compiled[key] = compiled[whole]
    run(*addresses, *scalars, *constants, stream=_stream(device))


def _stream(device: torch.device) -> int:
    return torch._C._cuda_getCurrentRawStream(device.index)


@lru_cache(maxsize=64)
def _on_device(terms: tuple[KnotTerm, ...], device: torch.device) -> Tensor:
    """Return the terms as coefficients of the first one's d.

    Filled in on the device, because a copy from the host could not be captured in a graph.
    """
    first = terms[0][0]
    numbers = []
    for shift, b0, b1, b2, truncated in terms:
        step = shift - first
        numbers += [shift, b0 + step * (b1 + step * b2), b1 + 2 * step * b2, b2]
        numbers.append(shift if truncated else float("inf"))
    return torch.stack([torch.full((), x, dtype=torch.float64, device=device) for x in numbers])


@lru_cache(maxsize=16)
def _seats(device: torch.device) -> int:
    if INTERPRETED:
        return 16
    return SEATS * torch.cuda.get_device_properties(device).multi_processor_count


def _zeros(n: int, device: torch.device) -> Tensor:
    """Return counters at zero, which the kernel sets back when it is done.

    Launches on one stream follow each other, so they share theirs. A captured graph may be replayed
    anywhere: it gets its own.
    """
    if INTERPRETED or torch.cuda.is_current_stream_capturing():
        return torch.zeros(n, dtype=torch.int32, device=device)
    return _counters(_power_of_2(n), device, _stream(device))


@lru_cache(maxsize=256)
def _counters(n: int, device: torch.device, stream: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int32, device=device)

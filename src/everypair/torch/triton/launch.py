"""How Triton's kernels are launched, with as little on the host around it as can be."""

from __future__ import annotations

import os
from functools import lru_cache
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from everypair.torch._compat import current_raw_stream

if TYPE_CHECKING:
    from torch import Tensor

    KnotTerm = tuple[float, float, float, float, bool]
    Launched = tuple[Any, tuple[Tensor, ...], tuple[float, ...]]

__all__ = [
    "INTERPRETED",
    "MOST_TASKS",
    "Job",
    "Trace",
    "coefficients",
    "current_stream",
    "is_capturing",
    "launch",
    "on_device",
    "power_of_2",
    "seats",
    "words",
    "zeros",
]

MOST_TASKS = 65_535
"""A launch has no more rows of programs."""
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


class Job(NamedTuple):
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
    grad: Tensor | None
    hvp: Tensor | None
    hess: Tensor | None = None
    missing: bool = False  # labels that are NaN leave their rows out


class Trace(NamedTuple):
    """What a plan launched, for whoever wants to do the same again with other batches."""

    room: Tensor
    counters: Tensor
    launched: list[Launched | None]


def words(size: int, tasks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return room for a plan, and the end of it for pair weights that nobody asks for."""
    size += size % 2  # addresses stay multiples of 16
    room = torch.empty(size + tasks, dtype=torch.float64, device=device)
    return room, room[size:]


def power_of_2(n: int) -> int:
    """Return the next one; Triton's own takes microseconds."""
    return 1 << (n - 1).bit_length()


_compiled: dict[tuple[object, ...], Any] = {}
_MOST_COMPILED = 4096


def launch(
    kernel: Any,
    grid: tuple[int, int],
    pointers: tuple[Tensor, ...],
    scalars: tuple[float, ...],
    constants: tuple[int, ...],
    **options: Any,
) -> Launched | None:
    """Launch a kernel, the second time without asking Triton once more which variant it is.

    Triton looks at the type and alignment of every argument, which takes as long as all else that
    a small batch needs. Here only what a user brings can differ, and an address is read sooner than
    a tensor. Returns how to do the same again, where addresses are all that it takes.
    """
    addresses = [tensor.data_ptr() for tensor in pointers]
    if INTERPRETED or any(address % 16 for address in addresses):
        names = kernel.arg_names[-len(constants) :]
        kernel[grid](*pointers, *scalars, **dict(zip(names, constants, strict=True)), **options)
        return None
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
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.clear()
        run = _compiled[key] = compiled[whole]
    rest = (*scalars, *constants)
    run(*addresses, *rest, stream=current_stream(device))
    return run, pointers, rest


def current_stream(device: torch.device) -> int:
    """Return the address of the stream on which torch launches."""
    return current_raw_stream(device)


def on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers as a tensor, which is kept for the stream it was filled on.

    Filled in on the device, because a copy from the host could not be captured in a graph; and what
    is captured belongs to its graph alone.
    """
    if is_capturing():
        return _on_device.__wrapped__(numbers, device, 0)
    return _on_device(numbers, device, 0 if INTERPRETED else current_stream(device))


@lru_cache(maxsize=64)
def _on_device(numbers: tuple[float, ...], device: torch.device, stream: int) -> Tensor:
    return torch.stack([torch.full((), x, dtype=torch.float64, device=device) for x in numbers])


@lru_cache(maxsize=64)
def coefficients(terms: tuple[KnotTerm, ...]) -> tuple[float, ...]:
    """Return the terms as coefficients of the first one's d: five numbers each.

    These are the shift, the coefficients, and the shift again, or infinity where there is no knot.
    """
    first = terms[0][0]
    numbers: list[float] = []
    for shift, b0, b1, b2, truncated in terms:
        step = shift - first
        numbers += [shift, b0 + step * (b1 + step * b2), b1 + 2 * step * b2, b2]
        numbers.append(shift if truncated else float("inf"))
    return tuple(numbers)


def is_capturing() -> bool:
    """Return whether launches go into a CUDA graph."""
    return not INTERPRETED and torch.cuda.is_current_stream_capturing()


@lru_cache(maxsize=16)
def seats(device: torch.device) -> int:
    """Return how many programs of any size run at once."""
    if INTERPRETED:
        return 16
    return torch.cuda.get_device_properties(device).multi_processor_count


def zeros(n: int, device: torch.device) -> Tensor:
    """Return counters at zero, which the kernel sets back when it is done.

    Those that one thread launches on one stream follow each other, so they share theirs. A captured
    graph may be replayed anywhere: it gets its own.
    """
    if INTERPRETED or is_capturing():
        return torch.zeros(n, dtype=torch.int32, device=device)
    return _counters(power_of_2(n), device, current_stream(device), get_ident())


@lru_cache(maxsize=256)
def _counters(n: int, device: torch.device, stream: int, thread: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int32, device=device)

"""Launch Triton kernels with as little work on the host as possible.

A plan describes a batch as a `Job`, puts all tensors that its kernels need into a dictionary
(`buffers`), and calls `launch`. The keys are the names of the kernels' pointer arguments. Together
with the record that `launch` returns, this is all that `cached_launch` needs for a replay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache, reduce
from operator import or_
from threading import get_ident
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from everypair.surrogates import KnotTerm, PairTerm
from everypair.torch._compat import current_raw_stream as current_stream

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
PLACEHOLDERS = {
    "weights": "scores", "vector": "scores",
    "grad": "value", "hess": "value", "hvp": "value", "one_class": "value",
}  # fmt: skip
"""The tensor that is passed for one that is absent; a kernel's flags keep it from being used."""


class Job(NamedTuple):
    """A batch, what is asked about it, and the tensors for the results.

    Data have the shape (n,) or (tasks, n) and are contiguous, `value` and `pair_weight` the shape
    without the rows. Options that are off and results that are not asked for are None.
    """

    scores: Tensor
    labels: Tensor
    weights: Tensor | None
    vector: Tensor | None
    terms: tuple[PairTerm, ...]
    mean: bool
    missing: bool  # rows whose label is NaN are left out
    one_class: Tensor | None  # counts batches of one class, int64
    value: Tensor
    pair_weight: Tensor | None
    grad: Tensor | None
    hess: Tensor | None
    hvp: Tensor | None

    @property
    def polynomials(self) -> tuple[KnotTerm, ...]:
        """The terms, in plans that take nothing but polynomials."""
        return cast("tuple[KnotTerm, ...]", self.terms)

    @property
    def n(self) -> int:
        """Number of rows of a task."""
        return self.scores.shape[-1]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.value.numel()

    @property
    def constants(self) -> dict[str, int]:
        """Constants of kernels that depend on what is given and what is asked for."""
        return {
            "N_TERMS": len(self.terms), "MEAN": self.mean, "MISSING": self.missing,
            "COUNTED": self.one_class is not None, "HAS_WEIGHTS": self.weights is not None,
            "HAS_VECTOR": self.vector is not None, "WANT_GRAD": self.grad is not None,
            "WANT_HESS": self.hess is not None,
        }  # fmt: skip


class Launched(NamedTuple):
    """A launch that can be repeated: ``run(*addresses, *values, stream=...)``.

    `pointers` names the pointer arguments in order; `values` holds all other arguments.
    """

    run: Any
    pointers: tuple[str, ...]
    values: tuple[float, ...]


class Trace(NamedTuple):
    """The tensors and launches of a plan; None for a launch that cannot be repeated."""

    buffers: dict[str, Tensor]
    launched: list[Launched | None]


def buffers(job: Job, n_words: int, n_counters: int, **more: Tensor) -> dict[str, Tensor]:
    """Allocate the work space and counters of a plan; return all tensors by argument name.

    `workspace` holds `n_words` float64; `counters` holds `n_counters` int32, all 0. Absent tensors
    of the job are replaced by their `PLACEHOLDERS`, and an absent pair weight by more work space.
    """
    device = job.scores.device
    n_words += n_words % 2  # addresses stay multiples of 16
    workspace = torch.empty(n_words + job.tasks, dtype=torch.float64, device=device)
    counters = zeroed_counters(n_counters, device)
    tensors: dict[str, Any] = {
        "scores": job.scores, "labels": job.labels, "weights": job.weights, "vector": job.vector,
        "one_class": job.one_class, "value": job.value, "pair_weight": job.pair_weight,
        "grad": job.grad, "hess": job.hess, "hvp": job.hvp,
        "workspace": workspace, "counters": counters, **more,
    }  # fmt: skip
    for name, placeholder in PLACEHOLDERS.items():
        if tensors[name] is None:
            tensors[name] = tensors[placeholder]
    if job.pair_weight is None:
        tensors["pair_weight"] = workspace[n_words:]
    return tensors


def power_of_2(n: int) -> int:
    """Return the next power of 2; Triton's own function takes microseconds."""
    return 1 << (n - 1).bit_length()


_arguments: dict[int, tuple[tuple[str, ...], ...]] = {}
_compiled: dict[tuple[object, ...], Any] = {}
_MOST_COMPILED = 4096


def launch(
    kernel: Any, grid: tuple[int, int], tensors: dict[str, Tensor],
    scalars: Mapping[str, float], constants: Mapping[str, Any], **options: Any,
) -> Launched | None:  # fmt: skip
    """Launch a kernel; from the second time on, without Triton's choice of the compiled variant.

    Triton inspects every argument, which takes as long as everything else that a small batch needs.
    The key of this cache holds all that Triton specialises on: the types of the pointers (their
    addresses are multiples of 16 here), what `_specialised` says of the scalars, the constants and
    the compile options; and the grid, which belongs to the function that launches.

    Parameters
    ----------
    kernel : triton.JITFunction
        Its arguments are pointers, then scalars, then constants (``tl.constexpr``).
    grid, options
        Programs along both axes; compile options of Triton.
    tensors, scalars, constants : dict
        Arguments by name; those that the kernel does not take are ignored, so that the kernels of
        a plan can share them.

    Returns
    -------
    Launched or None
        How to repeat the launch with other addresses that are multiples of 16. None if an address
        is not such a multiple, or in the interpreter.
    """
    names = _arguments.get(id(kernel))
    if names is None:
        kinds = {name: (name in scalars) + 2 * (name in constants) for name in kernel.arg_names}
        if [*kinds.values()] != sorted(kinds.values()):
            order = "pointers, then scalars, then constants"
            raise TypeError(f"a kernel takes {order}; got {[*kinds]}.")
        names = tuple(tuple(name for name in kinds if kinds[name] == kind) for kind in range(3))
        _arguments[id(kernel)] = names
    pointers, scalar_names, constant_names = names
    arguments = [tensors[name] for name in pointers]
    numbers = [scalars[name] for name in scalar_names]
    constant_values = [constants[name] for name in constant_names]
    addresses = [tensor.data_ptr() for tensor in arguments]
    if INTERPRETED or reduce(or_, addresses) % 16:
        keywords = dict(zip(constant_names, constant_values, strict=True))
        kernel[grid](*arguments, *numbers, **keywords, **options)
        return None
    device = arguments[0].device
    key = (
        id(kernel), device, grid, *[tensor.dtype for tensor in arguments],
        *map(_specialised, numbers), *constant_values, *options.items(),
    )  # fmt: skip
    run = _compiled.get(key)
    if run is None:
        whole = (*grid, 1)
        keywords = dict(zip(constant_names, constant_values, strict=True))
        compiled = kernel.warmup(*arguments, *numbers, **keywords, **options, grid=whole)
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.clear()
        run = _compiled[key] = compiled[whole]
    values = (*numbers, *constant_values)
    run(*addresses, *values, stream=current_stream(device))
    return Launched(run, pointers, values)


def _specialised(scalar: float) -> object:
    """Return what Triton compiles into a kernel about a scalar: of a float, its type alone.

    Of an integer it is the width, and whether it is 1 or a multiple of 16.
    """
    if isinstance(scalar, int):
        return scalar.bit_length() < 32, scalar == 1, scalar % 16 == 0
    return float


def on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers as a float64 tensor, cached for the current stream.

    The numbers are filled in on the device, because a copy from the host cannot be captured in a
    CUDA graph. A tensor that is captured belongs to its graph, so it is not cached.
    """
    if is_capturing():
        return _on_device.__wrapped__(numbers, device, 0)
    return _on_device(numbers, device, 0 if INTERPRETED else current_stream(device))


@lru_cache(maxsize=64)
def _on_device(numbers: tuple[float, ...], device: torch.device, stream: int) -> Tensor:
    return torch.stack([torch.full((), x, dtype=torch.float64, device=device) for x in numbers])


@lru_cache(maxsize=64)
def coefficients(terms: tuple[KnotTerm, ...]) -> tuple[float, ...]:
    """Return the terms as polynomials in the d of the first term: five numbers each.

    They are the shift, three coefficients, and the shift again, or infinity if there is no knot
    (see `workspace`). The polynomial b0 + b1 d + b2 d^2 is expanded at d = d_1 + shift - shift_1.
    """
    numbers: list[float] = []
    for shift, b0, b1, b2, truncated in terms:
        step = shift - terms[0][0]
        numbers += [shift, b0 + step * (b1 + step * b2), b1 + 2 * step * b2, b2]
        numbers.append(shift if truncated else float("inf"))
    return tuple(numbers)


def is_capturing() -> bool:
    """Return whether launches are recorded in a CUDA graph."""
    return not INTERPRETED and torch.cuda.is_current_stream_capturing()


@lru_cache(maxsize=16)
def n_multiprocessors(device: torch.device) -> int:
    """Return how many programs of any size run at the same time."""
    if INTERPRETED:
        return 16
    return torch.cuda.get_device_properties(device).multi_processor_count


def zeroed_counters(n: int, device: torch.device) -> Tensor:
    """Return n int32 counters that are 0; every kernel sets them to 0 again when it ends.

    Launches of one thread on one stream run one after the other, so they share their counters. A
    captured graph may be replayed on any stream, so it gets its own.
    """
    if INTERPRETED or is_capturing():
        return torch.zeros(n, dtype=torch.int32, device=device)
    return _counters(power_of_2(n), device, current_stream(device), get_ident())


@lru_cache(maxsize=256)
def _counters(n: int, device: torch.device, stream: int, thread: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int32, device=device)

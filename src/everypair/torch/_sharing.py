"""What torch shares with the compiled kernel: its threads, and the memory of its tensors.

Torch's OpenMP threads keep their cores busy for a moment after every operation. Other threads would
wait for a core just when the network has finished; on torch's own threads the kernel starts at
once.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from everypair.kernel import native, threads


def share_with_kernel() -> None:
    """Let the kernel use as many threads as torch does, its own if OpenMP's, and read tensors."""
    threads.follow(torch.get_num_threads)
    fork = _openmp_fork(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so")
    if fork:
        native.borrow_team(fork)
    functions = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # from version 2.10 on
    if functions is not None:
        native.read_tensors(functions)


def _openmp_fork(library: Path) -> int | None:
    """Return the address of GOMP_parallel in the OpenMP library that a loaded library uses.

    GNU's OpenMP defines this function; LLVM's and Intel's have it too.
    """
    try:
        handle = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(handle.GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError):  # no such library, no OpenMP in it, or another system
        return None

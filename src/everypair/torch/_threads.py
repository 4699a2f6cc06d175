"""The threads of torch, lent to the kernel.

Torch keeps its OpenMP threads spinning for a moment after every operation. Threads of our own would
have to wait for a core behind them, in the very moment after the network has finished; on torch's
own threads the kernel starts at once.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from everypair import _dispatch, _threads

__all__ = ["share_threads"]


def share_threads() -> None:
    """Run the kernel on torch's threads, as many as torch uses, where torch has OpenMP ones."""
    _threads.follow(torch.get_num_threads)
    fork = _openmp_fork(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so")
    if fork:
        _dispatch.borrow_team(fork)


def _openmp_fork(library: Path) -> int | None:
    """Return the address of GOMP_parallel in the OpenMP library that a loaded library uses.

    LLVM's and Intel's OpenMP have this function of GNU's as well.
    """
    try:
        handle = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(handle.GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError):  # no such library, no OpenMP in it, or another system
        return None

"""Get and set the number of threads of the compiled kernel.

Results are bitwise the same for any number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

_VARIABLE = "EVERYPAIR_NUM_THREADS"

_chosen: int | None = None


def set_num_threads(threads: int | None) -> None:
    """Set the number of threads that the compiled kernel may use, in all Python threads.

    Parameters
    ----------
    threads : int or None
        At least 1. None restores the default: the environment variable ``EVERYPAIR_NUM_THREADS``
        if it is set; otherwise `torch.get_num_threads` if `everypair.torch` is imported; otherwise
        the number of cores that this process may use.

    Examples
    --------
    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(None)
    """
    global _chosen
    if threads is not None and (
        isinstance(threads, bool)
        or not hasattr(threads, "__index__")
        or not 1 <= int(threads) < 2**31
    ):
        raise ValueError(
            f"threads must be a whole number from 1 to 2**31 - 1, or None; got {threads!r}. "
            "None restores the default."
        )
    _chosen = None if threads is None else int(threads)


def get_num_threads() -> int:
    """Return the number of threads that the compiled kernel may use.

    Small batches use fewer, because starting threads would take longer than it saves.

    Examples
    --------
    >>> get_num_threads() >= 1
    True
    """
    return _chosen or _from_environment() or _fallback()


def kernel_threads() -> int:
    """Return the number of threads to start: at most 256, because more would only cost memory."""
    return min(_chosen or _from_environment() or _fallback(), 256)


def follow(get_default: Callable[[], int]) -> None:
    """Take the default number of threads from this function instead of the number of cores."""
    global _fallback
    _fallback = get_default
    _from_environment.cache_clear()


@cache
def _from_environment() -> int:
    """Return the number of threads of the environment variable, 0 if it is not set."""
    text = os.environ.get(_VARIABLE, "").strip()
    if text and not (text.isdecimal() and int(text) >= 1):
        raise ValueError(
            f"the environment variable {_VARIABLE} must be a whole number of at least 1; "
            f"got {text!r}. Unset it to use every core."
        )
    return int(text or 0)


@cache
def _cores() -> int:
    # Containers and schedulers often allow fewer cores than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_fallback: Callable[[], int] = _cores

"""How many threads the compiled kernel may use.

The results do not depend on it: the kernel gives the same bits for any number of threads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["follow", "get_num_threads", "set_num_threads"]

_VARIABLE = "EVERYPAIR_NUM_THREADS"

_chosen: int | None = None
_default: int | None = None
_leader: Callable[[], int] | None = None


def set_num_threads(threads: int | None) -> None:
    """Let the kernel use this many threads from now on, in every Python thread.

    Parameters
    ----------
    threads : int or None
        At least 1. None goes back to the default: the environment variable
        ``EVERYPAIR_NUM_THREADS`` where it is set, else `torch.get_num_threads` once
        `everypair.torch` is imported, else every core this process may run on.

    Examples
    --------
    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(None)
    """
    global _chosen
    if threads is not None and (
        isinstance(threads, bool) or not hasattr(threads, "__index__") or int(threads) < 1
    ):
        raise ValueError(
            f"threads must be a whole number of at least 1, or None; got {threads!r}. "
            "None goes back to the default."
        )
    _chosen = None if threads is None else int(threads)


def get_num_threads() -> int:
    """Return how many threads the kernel may use.

    It takes fewer for batches so small that threads would cost more than they give.
    """
    if _chosen is not None:
        return _chosen
    global _default
    if _default is None:
        _default = _from_environment() or (0 if _leader else _cores())
    return _default or (_leader or _cores)()


def follow(leader: Callable[[], int]) -> None:
    """Let this function decide from now on where neither the user nor the environment does."""
    global _default, _leader
    _leader = leader
    _default = None


def _from_environment() -> int | None:
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"the environment variable {_VARIABLE} must be a whole number of at least 1; "
            f"got {text!r}. Unset it to use every core."
        )
    return int(text)


def _cores() -> int:
    # A container or a scheduler often grants fewer cores than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

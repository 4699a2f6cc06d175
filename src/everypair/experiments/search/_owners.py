"""Who runs a trial: the process, so that another can tell whether it still lives.

A process number alone is not enough: numbers are used again. Together with the time the process
began it names one process for good, on one machine.

>>> is_dead(this_process())
False
"""

from __future__ import annotations

import os
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import TypedDict

__all__ = ["Owner", "is_dead", "this_process"]


class Owner(TypedDict):
    """One process: its machine, its number there, and when it began."""

    host: str
    pid: int
    began: str


def this_process() -> Owner:
    """Return who asks."""
    return Owner(host=_host(), pid=os.getpid(), began=_began(os.getpid()) or "")


def is_dead(owner: Owner) -> bool:
    """Return whether that process is known to have ended; one of another machine never is."""
    if owner["host"] != _host() or not owner["began"]:
        return False
    began = _began(owner["pid"])
    return began is not None and began != owner["began"]


@cache
def _host() -> str:
    # Containers may share a host name while their process numbers mean different processes.
    try:
        numbering = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        numbering = 0
    return f"{socket.gethostname()}/{numbering}"


def _began(pid: int) -> str | None:
    """Return when a process began, "" where there is none, None where that cannot be found out."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return ""
        fields = stat.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended
    try:
        listed = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return listed.stdout.strip()

"""Name the process that runs a trial, so that others can find out whether it still runs.

The system uses process numbers again, so a number alone is not enough. Machine, number and start
time together name one process.

>>> has_ended(this_process())
False
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from functools import cache
from pathlib import Path


def this_process() -> str:
    """Return the name of the calling process: JSON of machine, process number, start time."""
    return json.dumps([_machine(), os.getpid(), start_time(os.getpid())])


def has_ended(owner: str) -> bool:
    """Return whether a process is known to have ended; on another machine that is unknown."""
    try:
        machine, pid, started = json.loads(owner)
    except (TypeError, ValueError):  # the store is damaged, or another version wrote it
        return False
    known = machine == _machine() and started
    return bool(known) and start_time(pid) not in (None, started)


@cache
def _machine() -> str:
    # Containers may share a host name while each numbers its own processes.
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{socket.gethostname()}/{namespace}"


def start_time(pid: int) -> str | None:
    """Return when a process started, "" if it does not run, None if that cannot be found out."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return ""
        fields = stat.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # Z and X: the process has ended
    try:
        ps = ["ps", "-o", "lstart=", "-p", str(pid)]
        return subprocess.run(ps, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return None

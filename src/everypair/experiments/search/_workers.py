"""Processes that run trials, one thread each, and tell their parent what came out.

The parent alone talks to the store. A worker gets trials through a pipe and sends back records,
so that it dies without harm: the parent sees it and lets the trials wait again. A worker whose
parent died ends at once.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, Protocol

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Record, Trial
from everypair.experiments.search.store import Claim

__all__ = ["Message", "Team", "Work", "Worker", "cores"]

_EPOCH_SECONDS = 0.5  # between two signs of life of one trial


def cores() -> int:
    """Return how many processes can run at once here."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Work(Protocol):
    """What a worker does. It is sent to the worker's process, so it has to be picklable."""

    @property
    def width(self) -> int:
        """How many trials are run at once."""

    def together(self, trial: Trial) -> object:
        """Return what trials that are run at once have in common."""

    def __call__(
        self, trials: Sequence[Trial], on_epoch: Callable[[dict[str, float]], None]
    ) -> Iterable[Record]:
        """Run trials; the records may come in any order, each as soon as it is there."""


@dataclass(frozen=True)
class Message:
    """What a worker says."""

    kind: Literal["epoch", "record", "stop", "died"]
    content: Any = None


@dataclass(eq=False)
class Worker:
    """A process, the pipe to it, and what it is running."""

    process: Any
    pipe: Connection
    claims: dict[Trial, Claim] = field(default_factory=dict)

    def give(self, claims: Sequence[Claim]) -> None:
        """Let the worker run trials."""
        self.claims = {claim.trial: claim for claim in claims}
        self.pipe.send([claim.trial for claim in claims])


class Team:
    """Workers that are started as they are needed; use it as a context manager."""

    def __init__(self, size: int, work: Work) -> None:
        self.size, self._work = size, work
        self.workers: list[Worker] = []
        self._context = multiprocessing.get_context("spawn")

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            # Nothing of value is lost: what is not in the store yet runs again.
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()

    def idle(self) -> Iterator[Worker]:
        """Yield the workers that have nothing to do, then new ones up to the size of the team."""
        yield from [worker for worker in self.workers if not worker.claims]
        while len(self.workers) < self.size:
            worker = self._start()
            self.workers.append(worker)
            yield worker

    def messages(self, timeout: float) -> Iterator[tuple[Worker, Message]]:
        """Yield what the workers say; return after so many seconds of silence at the latest."""
        by_pipe = {worker.pipe: worker for worker in self.workers}
        for pipe in wait(list(by_pipe), timeout):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                worker.process.join()
                worker.pipe.close()
                self.workers.remove(worker)
                message = Message("died", worker.process.exitcode)
            yield worker, message

    def _start(self) -> Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(there, self._work), daemon=True)
        with _no_interrupts():
            process.start()
        there.close()  # or the end of the process would not end the pipe
        return Worker(process, here)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; what is started inside never gets it, not even while it imports."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # now, since its start lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, work: Work) -> None:
    """Run trials until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "EVERYPAIR_NUM_THREADS"), "1"))
    if torch := sys.modules.get("torch"):  # a script that imports it came before us
        torch.set_num_threads(1)
    told = time.monotonic()

    def on_epoch(row: dict[str, float]) -> None:
        nonlocal told
        if time.monotonic() - told >= _EPOCH_SECONDS:
            told = time.monotonic()
            pipe.send(Message("epoch", row))

    while True:
        try:
            trials = pipe.recv()
        except EOFError:
            return
        for message in _outcomes(work, trials, on_epoch):
            pipe.send(message)


def _outcomes(
    work: Work, trials: Sequence[Trial], on_epoch: Callable[[dict[str, float]], None]
) -> Iterator[Message]:
    begin = time.monotonic()
    left = list(trials)
    try:
        for record in work(trials, on_epoch):
            left.remove(record.trial)
            yield Message("record", record)
    except UserError as error:  # the same mistake awaits the other trials
        yield Message("stop", str(error))
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            yield Message("stop", _FULL)
            return
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({os.path.basename(at.filename)}:{at.lineno})"
        seconds = (time.monotonic() - begin) / max(1, len(left))
        for trial in left:
            yield Message("record", Record(trial, "failed", {}, reason=reason, seconds=seconds))


_FULL = (
    "the disk is full. Free some space and run the same command again: what is finished is kept."
)


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

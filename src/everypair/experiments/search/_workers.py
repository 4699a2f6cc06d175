"""Worker processes that run trials, with one thread each, and send records to their parent.

Only the parent uses the store. A worker gets trials through a pipe and sends records back. When a
worker dies, for example because memory ran out, the parent knows which trials it was running: it
counts the death for these trials, and lets them wait again or fail. `concurrent.futures` cannot do
that: if one of its processes dies, all of its pending tasks fail with ``BrokenProcessPool``, and
nothing says which task was the cause. A worker whose parent has died ends at once.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Literal, Protocol

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Record, Trial

if TYPE_CHECKING:  # a worker has no use for the database
    from everypair.experiments.search.store import Claim

OnEpoch = Callable[[dict[str, float]], None]  # called with the row of an epoch

_EPOCH_SECONDS = 0.5  # least time between two messages about epochs


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class Work(Protocol):
    """How a worker runs trials. It is sent to the worker process, so it has to be picklable."""

    @property
    def width(self) -> int:
        """Greatest number of trials that are run at once."""

    def group_key(self, trial: Trial) -> object:
        """Return a value that is equal for trials that may be run at once."""

    def __call__(self, trials: Sequence[Trial], on_epoch: OnEpoch) -> Iterable[Record]:
        """Run trials and yield their records, in any order."""


@dataclass(frozen=True)
class Message:
    """A message from a worker to its parent."""

    kind: Literal["epoch", "record", "failed", "stop", "died"]
    content: Any = None


@dataclass(eq=False)
class Worker:
    """A process, the pipe to it, and the trials that it is running."""

    process: Any
    pipe: Connection
    claims: dict[Trial, Claim] = field(default_factory=dict)

    def start(self, claims: Sequence[Claim]) -> None:
        """Send trials to the worker, which runs them."""
        self.claims = {claim.trial: claim for claim in claims}
        with suppress(OSError):  # the worker has died: the pool reports it with its next messages
            self.pipe.send([claim.trial for claim in claims])


class WorkerPool:
    """Workers that are started as they are needed; use it as a context manager."""

    def __init__(self, size: int, work: Work) -> None:
        self.size, self._work = size, work
        self.workers: list[Worker] = []
        self._context = multiprocessing.get_context("spawn")

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            # Nothing is lost: trials that are not in the store yet run again.
            worker.process.kill()
        for worker in list(self.workers):
            self.end(worker)

    def idle(self) -> Iterator[Worker]:
        """Yield the workers that run nothing, then new ones up to the size of the pool."""
        yield from [worker for worker in self.workers if not worker.claims]
        while len(self.workers) < self.size:
            here, there = self._context.Pipe()
            process = self._context.Process(
                target=_run_worker, args=(there, self._work), daemon=True
            )
            with _no_interrupts():
                process.start()
            there.close()  # so that the end of the process is the end of the pipe
            self.workers.append(Worker(process, here))
            yield self.workers[-1]

    def end(self, worker: Worker) -> None:
        """End a worker. If one is needed, a new process takes its place."""
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)

    def messages(self, timeout: float) -> Iterator[tuple[Worker, Message]]:
        """Yield the messages that have arrived; wait at most so many seconds for the first."""
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


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block SIGINT; a process that is started meanwhile never gets it, not even on import."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # now, since starting it unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_worker(pipe: Connection, work: Work) -> None:
    """Run trials until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "EVERYPAIR_NUM_THREADS"), "1"))
    if torch := sys.modules.get("torch"):  # already imported by the user's script
        torch.set_num_threads(1)
    sent = time.monotonic()

    def on_epoch(row: dict[str, float]) -> None:
        nonlocal sent
        if time.monotonic() - sent >= _EPOCH_SECONDS:
            sent = time.monotonic()
            pipe.send(Message("epoch", row))

    with suppress(EOFError):  # the parent has closed the pipe
        while True:
            for message in _outcomes(work, pipe.recv(), on_epoch):
                pipe.send(message)


def _outcomes(work: Work, trials: Sequence[Trial], on_epoch: OnEpoch) -> Iterator[Message]:
    begin = time.monotonic()
    left = list(trials)
    try:
        for record in work(trials, on_epoch):
            left.remove(record.trial)
            yield Message("record", record)
    except UserError as error:  # the other trials would fail in the same way
        yield Message("stop", str(error))
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            full = "the disk is full. Free some space and run the same command again: what is "
            yield Message("stop", f"{full}finished is kept.")
            return
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({os.path.basename(at.filename)}:{at.lineno})"
        seconds = (time.monotonic() - begin) / max(1, len(left))
        yield Message("failed", (reason, seconds))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

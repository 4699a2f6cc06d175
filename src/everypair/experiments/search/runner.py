"""Run the trials of a grid that a store does not have yet, in several processes.

`run` repeats: give trials from the store to idle workers, and put their records into the store.
When no trial waits any more, it waits for the trials of other runs on the same store, since those
have to be run here if the other processes die. With finalists it does this stage by stage.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Record, Settings, Trial
from everypair.experiments.search._database import HEARTBEAT_SECONDS
from everypair.experiments.search._groups import Groups
from everypair.experiments.search._workers import Work, Worker, WorkerPool, cores
from everypair.experiments.search.finalists import blocks, finals, screening
from everypair.experiments.search.store import Counts, Store

_POLL_SECONDS = 1.0  # longest wait for messages of the workers
_MAX_DEATHS = 2  # of worker processes that run a trial, before the trial counts as failed


class TimeIsUpError(Exception):
    """The deadline of a run has come. Its finished trials are kept, and the others wait."""


@dataclass(frozen=True)
class Event:
    """Something that happened during a run, for the display."""

    kind: Literal["begin", "record", "epoch", "died", "separated", "waiting", "end"]
    counts: Counts  # of the stage
    record: Record | None = None
    row: dict[str, float] | None = None  # of an epoch
    trials: tuple[Trial, ...] = ()
    reason: str = ""  # why the losses of a group are now run separately
    stage: int = 1
    n_stages: int = 1  # with finalists, two for each block


def run(
    grid: Grid,
    settings: Settings,
    store: Store,
    *,
    work: Work,
    workers: int | None = None,
    tpe_trials: int | None = None,
    finalists: int | None = None,
    per_batch: bool = False,
    deadline: float = math.inf,
    on_event: Callable[[Event], None] = lambda event: None,
) -> None:
    """Run the trials that are not in the store yet, and return when all are.

    Parameters
    ----------
    grid, settings, store
        See `Store.prepare`.
    work : Work
        Runs trials; `everypair.experiments.search.work.Training` trains models.
    workers : int, optional
        Number of processes. Default: one for each core.
    tpe_trials : int, optional
        See `Store.prepare`.
    finalists : int, optional
        Run all trials of the first seed, and then on all seeds only so many of each imratio, loss
        and optimiser: those with the greatest validation AUC. One imratio is run after the other.
    per_batch : bool
        Whether each batch size has its own finalists.
    deadline : float
        Value of ``time.monotonic()`` at which the run ends. Trials that would end later, judged by
        the seconds of similar trials of this run, are not started.
    on_event : callable
        Called with each `Event`.

    Raises
    ------
    UserError
        If the other trials would fail as well: the disk is full, the data are gone.
    KeyboardInterrupt
        On Ctrl-C or SIGTERM. The running trials wait again.
    TimeIsUpError
        At the deadline, or before it if no trial that waits would be finished in time. The running
        trials wait again.
    """
    n_stages = 1 if finalists is None else 2 * len(blocks(grid, per_batch=per_batch))
    stages = _stages(grid, store, finalists, per_batch=per_batch)
    groups = Groups(store, work, deadline)
    with _sigterm_as_ctrl_c(), WorkerPool(workers or cores(), work) as pool:
        for number, stage in enumerate(stages, 1):
            store.prepare(stage, settings, tpe_trials=tpe_trials)
            groups.mixed = True
            pool.size = max(1, min(workers or cores(), -(-store.counts().waiting // work.width)))
            event = partial(Event, stage=number, n_stages=n_stages)
            _Run(store, pool, groups, deadline, event, on_event).until_done()


def _stages(grid: Grid, store: Store, finalists: int | None, *, per_batch: bool) -> Iterator[Grid]:
    """Yield one grid after the other; the finalists are chosen when their grid is asked for."""
    if finalists is None:
        yield grid
        return
    for block in blocks(grid, per_batch=per_batch):
        yield screening(block)
        yield finals(block, store.records(), finalists)


class _Run:
    """One stage of a run, with the trials that `Store.prepare` was given."""

    def __init__(
        self,
        store: Store,
        pool: WorkerPool,
        groups: Groups,
        deadline: float,
        event: Callable[..., Event],
        on_event: Callable[[Event], None],
    ) -> None:
        self.store, self.pool, self.groups, self.deadline = store, pool, groups, deadline
        self.event, self.on_event = event, on_event
        self.counts = store.counts()
        self.last_heartbeat = time.monotonic()
        self.deaths_in_a_row = 0

    def until_done(self) -> None:
        self.report("begin")
        try:
            while self.start_trials() or not self.is_done():
                left = self.deadline - time.monotonic()
                if left <= 0:
                    raise TimeIsUpError
                for worker, message in self.pool.messages(min(left, _POLL_SECONDS)):
                    getattr(self, f"on_{message.kind}")(worker, message.content)
                if time.monotonic() - self.last_heartbeat > HEARTBEAT_SECONDS:
                    self.store.beat()
                    self.last_heartbeat = time.monotonic()
        finally:
            # Before the pool kills the workers, so that these deaths are not counted.
            for worker in self.pool.workers:
                for claim in worker.claims.values():
                    self.store.release(claim)
        self.report("end")

    def start_trials(self) -> bool:
        """Give trials to idle workers; return whether any worker runs one."""
        if self.counts.waiting:
            for worker in self.pool.idle():
                if not (claims := self.groups.claim()):
                    break
                worker.start(claims)
        return any(worker.claims for worker in self.pool.workers)

    def is_done(self) -> bool:
        """Return whether all trials are finished; requeue those of other runs that died."""
        self.store.requeue_dead_trials()
        self.counts = self.store.counts()
        if self.groups.is_out_of_time():
            raise TimeIsUpError
        done = not self.counts.running and not self.counts.waiting
        if self.counts.running:
            self.report("waiting")
            time.sleep(_POLL_SECONDS)
        return done

    def on_epoch(self, worker: Worker, row: dict[str, float]) -> None:
        self.report("epoch", row=row, trials=tuple(worker.claims))

    def on_record(self, worker: Worker, record: Record) -> None:
        self.deaths_in_a_row = 0
        self.groups.learn(record)
        if self.store.finish(worker.claims.pop(record.trial), record):
            self.report("record", record=record, trials=(record.trial,))

    def on_failed(self, worker: Worker, failure: tuple[str, float]) -> None:
        """Run the losses of a mixed group separately; otherwise record that the trials failed."""
        reason, seconds = failure
        trials = tuple(worker.claims)
        if len({(trial.cell.loss, trial.cell.optimiser) for trial in trials}) > 1:
            self.groups.mixed = False
            for claim in worker.claims.values():
                self.store.release(claim)
            worker.claims = {}
            self.report("separated", trials=trials, reason=reason)
        for trial in list(worker.claims):
            self.on_record(worker, Record(trial, "failed", {}, reason=reason, seconds=seconds))
        if len(trials) > 1:  # a failed CUDA graph may leave its process without a usable device
            self.pool.end(worker)

    def on_stop(self, worker: Worker, reason: str) -> None:
        raise UserError(reason)

    def on_died(self, worker: Worker, exitcode: int) -> None:
        how = f"signal {signal.Signals(-exitcode).name}" if exitcode < 0 else f"code {exitcode}"
        for claim in worker.claims.values():
            if claim.deaths + 1 < _MAX_DEATHS:
                self.store.release(claim, died=True)
                continue
            reason = (
                f"its process ended with {how}, {_MAX_DEATHS} times; if memory ran out, take fewer "
                "workers or a smaller batch"
            )
            self.store.finish(claim, Record(claim.trial, "failed", {}, reason=reason))
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row > _MAX_DEATHS * self.pool.size:
            raise UserError(
                f"the worker processes end ({how}) before they finish a trial. If memory ran "
                "out, take fewer with --workers."
            )
        self.report("died", trials=tuple(worker.claims))

    def report(self, kind: Any, **content: Any) -> None:
        if kind != "epoch":
            self.counts = self.store.counts()
        self.on_event(self.event(kind, self.counts, **content))


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM, with which clusters end a job, like Ctrl-C."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Run the trials of a grid that a store does not have yet, in several processes.

`run` repeats: give trials from the store to idle workers, and put their records into the store.
When no trial waits any more, it waits for the trials of other runs on the same store, since those
have to be run here if the other processes die.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Record, Settings, Trial
from everypair.experiments.search._database import HEARTBEAT_SECONDS
from everypair.experiments.search._workers import Work, Worker, WorkerPool, cores
from everypair.experiments.search.finalists import finals, screening
from everypair.experiments.search.store import Claim, Counts, Store

_POLL_SECONDS = 1.0  # longest wait for messages of the workers
_MAX_DEATHS = 2  # of worker processes that run a trial, before the trial counts as failed


@dataclass(frozen=True)
class Event:
    """Something that happened during a run, for the display."""

    kind: Literal["begin", "record", "epoch", "died", "waiting", "end"]
    counts: Counts
    record: Record | None = None
    row: dict[str, float] | None = None  # of an epoch
    trials: tuple[Trial, ...] = ()
    stage: int = 1  # 2 if the finalists run


def run(
    grid: Grid,
    settings: Settings,
    store: Store,
    *,
    work: Work,
    workers: int | None = None,
    tpe_trials: int | None = None,
    finalists: int | None = None,
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
        and optimiser: those with the greatest validation AUC.
    on_event : callable
        Called with each `Event`.

    Raises
    ------
    UserError
        If the other trials would fail as well: the disk is full, the data are gone.
    KeyboardInterrupt
        On Ctrl-C or SIGTERM. The running trials wait again.
    """
    stage = 1
    if finalists is not None:
        stage = 2
        run(screening(grid), settings, store, work=work, workers=workers, on_event=on_event)
        grid = finals(grid, store.records(), finalists)
    store.prepare(grid, settings, tpe_trials=tpe_trials)
    size = max(1, min(workers or cores(), -(-store.counts().waiting // work.width)))
    with _sigterm_as_ctrl_c(), WorkerPool(size, work) as pool:
        _Run(store, pool, work, on_event, stage).until_done()


class _Run:
    def __init__(
        self,
        store: Store,
        pool: WorkerPool,
        work: Work,
        on_event: Callable[[Event], None],
        stage: int,
    ) -> None:
        self.store, self.pool, self.work, self.on_event = store, pool, work, on_event
        self.stage = stage
        self.counts = store.counts()
        self.last_heartbeat = time.monotonic()
        self.deaths_in_a_row = 0

    def until_done(self) -> None:
        self.report("begin")
        try:
            while self.start_trials() or not self.is_done():
                for worker, message in self.pool.messages(_POLL_SECONDS):
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
                if not (claims := self.claim_group()):
                    break
                worker.start(claims)
        return any(worker.claims for worker in self.pool.workers)

    def claim_group(self) -> list[Claim]:
        """Claim trials that may be run at once."""
        claims: list[Claim] = []
        key = self.work.group_key
        while len(claims) < self.work.width and (
            claim := self.store.claim(lambda t: not claims or key(t) == key(claims[0].trial))
        ):
            claims.append(claim)
        return claims

    def is_done(self) -> bool:
        """Return whether all trials are finished; requeue those of other runs that died."""
        self.store.requeue_dead_trials()
        self.counts = self.store.counts()
        done = not self.counts.running and not self.counts.waiting
        if self.counts.running:
            self.report("waiting")
            time.sleep(_POLL_SECONDS)
        return done

    def on_epoch(self, worker: Worker, row: dict[str, float]) -> None:
        self.report("epoch", row=row, trials=tuple(worker.claims))

    def on_record(self, worker: Worker, record: Record) -> None:
        self.deaths_in_a_row = 0
        if self.store.finish(worker.claims.pop(record.trial), record):
            self.report("record", record=record, trials=(record.trial,))

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
        self.on_event(Event(kind, self.counts, stage=self.stage, **content))


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

"""Run the trials of a grid that a store does not have yet, on several processes.

`run` goes round: idle workers get trials from the store, what they leave goes into the store, and
where nothing is left to hand out it waits for what other processes run, for those may die.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Record, Settings, Trial
from everypair.experiments.search._database import HEARTBEAT_SECONDS
from everypair.experiments.search._workers import Team, Work, Worker, cores

if TYPE_CHECKING:
    from everypair.experiments.search.store import Claim, Counts, Store

__all__ = ["Event", "run"]

_SILENCE_SECONDS = 1.0  # between two rounds in which nobody says anything
_DEATHS = 2  # of the process that runs a trial, before the trial counts as failed


@dataclass(frozen=True)
class Event:
    """What happened, for whoever shows it."""

    kind: Literal["begin", "record", "epoch", "died", "waiting", "end"]
    counts: Counts
    record: Record | None = None
    row: dict[str, float] | None = None  # of an epoch
    trials: tuple[Trial, ...] = ()  # which it is about


def run(
    grid: Grid,
    settings: Settings,
    store: Store,
    *,
    work: Work,
    workers: int | None = None,
    tpe_trials: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> None:
    """Run what is not in the store yet, and return when all of it is.

    Parameters
    ----------
    grid, settings, store
        See `Store.prepare`.
    work : Work
        Runs trials; `everypair.experiments.search.work.Training` trains models.
    workers : int, optional
        How many processes; one a core where not given.
    tpe_trials : int, optional
        See `Store.prepare`.
    on_event : callable
        Gets an `Event` for everything that happens.

    Raises
    ------
    UserError
        Where going on makes no sense: the disk is full, the data are gone.
    KeyboardInterrupt
        At Ctrl-C or SIGTERM, after the running trials were put back.
    """
    store.prepare(grid, settings, tpe_trials=tpe_trials)
    n_waiting = store.counts().waiting
    size = max(1, min(workers or cores(), -(-n_waiting // work.width)))
    with _terminable(), Team(size, work) as team:
        _Round(store, team, work, on_event).until_all_is_done()


class _Round:
    def __init__(
        self, store: Store, team: Team, work: Work, on_event: Callable[[Event], None]
    ) -> None:
        self.store, self.team, self.work, self.on_event = store, team, work, on_event
        self.counts = store.counts()
        self.beaten = time.monotonic()
        self.deaths_in_a_row = 0

    def until_all_is_done(self) -> None:
        self.tell("begin")
        try:
            while self.hand_out() or not self.all_is_done():
                for worker, message in self.team.messages(_SILENCE_SECONDS):
                    getattr(self, f"on_{message.kind}")(worker, message.content)
                self.beat()
        finally:
            # Before the workers are ended, so that none of their deaths is taken for a crash.
            for worker in self.team.workers:
                for claim in worker.claims.values():
                    self.store.release(claim)
        self.tell("end")

    def hand_out(self) -> bool:
        """Give trials to idle workers; return whether anything runs here."""
        if self.counts.waiting:
            for worker in self.team.idle():
                claims = self.claim_together()
                if not claims:
                    break
                worker.give(claims)
        return any(worker.claims for worker in self.team.workers)

    def claim_together(self) -> list[Claim]:
        claims: list[Claim] = []
        while len(claims) < self.work.width:
            claim = self.store.claim(partial(self.fits, claims))
            if claim is None:
                break
            claims.append(claim)
        return claims

    def fits(self, claims: list[Claim], trial: Trial) -> bool:
        together = self.work.together
        return not claims or together(claims[0].trial) == together(trial)

    def all_is_done(self) -> bool:
        """Look after what other processes run, while nothing runs here."""
        self.store.requeue_dead_trials()
        self.counts = self.store.counts()
        done = not self.counts.running and not self.counts.waiting
        if self.counts.running:
            self.tell("waiting")
            time.sleep(_SILENCE_SECONDS)
        return done

    def beat(self) -> None:
        if time.monotonic() - self.beaten > HEARTBEAT_SECONDS:
            self.store.beat()
            self.beaten = time.monotonic()

    def on_epoch(self, worker: Worker, row: dict[str, float]) -> None:
        self.tell("epoch", row=row, trials=tuple(worker.claims))

    def on_record(self, worker: Worker, record: Record) -> None:
        self.store.finish(worker.claims.pop(record.trial), record)
        self.deaths_in_a_row = 0
        self.tell("record", record=record, trials=(record.trial,))

    def on_stop(self, worker: Worker, reason: str) -> None:
        raise UserError(reason)

    def on_died(self, worker: Worker, exitcode: int) -> None:
        how = f"signal {signal.Signals(-exitcode).name}" if exitcode < 0 else f"code {exitcode}"
        for claim in worker.claims.values():
            if claim.deaths + 1 < _DEATHS:
                self.store.release(claim, died=True)
                continue
            reason = (
                f"its process ended with {how}, {_DEATHS} times; if memory ran out, take fewer "
                "workers or a smaller batch"
            )
            self.store.finish(claim, Record(claim.trial, "failed", {}, reason=reason))
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row > _DEATHS * self.team.size:
            raise UserError(
                f"the worker processes end ({how}) before they finish a trial. If memory ran "
                "out, take fewer with --workers."
            )
        self.tell("died", trials=tuple(worker.claims))

    def tell(self, kind: Any, **said: Any) -> None:
        self.counts = self.store.counts() if kind != "epoch" else self.counts
        self.on_event(Event(kind, self.counts, **said))


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM, with which clusters end a job, do what Ctrl-C does."""

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

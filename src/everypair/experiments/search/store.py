"""Keep the records of an experiment's trials, and hand out the trials that wait.

A store is a folder with a database in it, or the URL of a database. Any number of processes may
use it at once, on any number of machines. Each trial is one row. All changes of its state are
conditional updates (``UPDATE ... WHERE state = ... AND attempt = ...``), of which one process at
most succeeds: hence no trial is lost and none is finished twice.

>>> import tempfile
>>> from everypair.experiments.plan import Grid, Record, Settings
>>> grid = Grid("digits", (0.1,), ("square",), (50,), (0,), rates={"square": (0.1, 1.0)})
>>> with tempfile.TemporaryDirectory() as folder, open(folder, create=True) as store:
...     store.prepare(grid, Settings())
...     claim = store.claim()
...     store.finish(claim, Record(claim.trial, "finished", {}, validation_auc=0.9))
...     store.counts(), [record.trial.rate for record in store.records()]
True
(Counts(waiting=1, running=0, finished=1), [0.1])
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Record, Settings, Trial
from everypair.experiments.search import _database, _layout, _owners, _tpe
from everypair.experiments.search._database import EXPERIMENTS, NOW, TRIALS
from everypair.experiments.search._layout import Slot


class Counts(NamedTuple):
    """Numbers of trials by state; failed and diverged ones count as finished."""

    waiting: int
    running: int
    finished: int


@dataclass(frozen=True)
class Claim:
    """The right to run one trial."""

    trial: Trial
    row: int
    attempt: int = 1
    deaths: int = 0  # of worker processes that ran this trial before


def open(where: str, *, create: bool = False) -> Store:  # noqa: A001  # as files are opened
    """Open a store.

    Parameters
    ----------
    where : str
        A folder (it holds ``study.db``) or a database URL, ``postgresql+psycopg://...``. One
        database can keep several experiments: ``URL#name``.
    create : bool
        Whether to make the store if it does not exist, and to write to it.

    Raises
    ------
    UserError
        If there is no store, it cannot be used, or another version wrote it.
    """
    return Store(where, create=create)


class Store:
    """See `open`. Several threads may use it."""

    def __init__(self, where: str, *, create: bool = False) -> None:
        address, _, self.name = where.partition("#") if "://" in where else (where, "", "")
        self.where = _database.without_password(where)
        self._slots: dict[int, Slot] = {}  # of the prepared grid, by row
        self._is_prepared = False
        self._claims: set[Claim] = set()
        self._lock = threading.RLock()
        self._settings = select(EXPERIMENTS.c.settings).where(EXPERIMENTS.c.name == self.name)
        self._engine = _database.connect(address, self.name, create=create)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. Trials that are still claimed wait again."""
        try:
            for claim in list(self._claims):
                self.release(claim)
        finally:
            self._engine.dispose()

    @property
    def settings(self) -> Settings:
        """Settings that all trials share."""
        with self._transaction() as connection:
            text = connection.scalar(self._settings)
        if text is None:
            raise UserError(
                f"{self.where} holds no trials yet. Run `everypair experiment` on it first."
            )
        return _layout.read_json(text, Settings.from_dict, self.where)

    def prepare(self, grid: Grid, settings: Settings, *, tpe_trials: int | None = None) -> None:
        """Add the trials of a grid that are missing, and let those that failed wait again.

        Parameters
        ----------
        grid : Grid
            What to try. It may be larger or smaller than the one the store was begun with. From
            now on `claim` and `counts` are about its trials.
        settings : Settings
            Have to be those the store was begun with.
        tpe_trials : int, optional
            Let TPE choose so many (batch, rate) in each cell, with rates between the least and
            the greatest of the grid. The trials of a cell run one after another.
        """
        slots = {(slot.cell, slot.name): slot for slot in _layout.slots_of(grid, tpe_trials)}
        searches = {slot.cell: slot.search for slot in slots.values()}
        with self._transaction() as connection:
            _layout.check_settings(self._begin(connection, settings), settings, self.where)
            rows = self._rows("id", "cell", "slot", "search", "state", within=connection)
            for row in rows:
                if (search := searches.get(row.cell, row.search)) != row.search:
                    raise UserError(
                        f"the store {self.where} was begun with {row.search} (now {search}). "
                        f"{_layout.SAME_AGAIN}"
                    )
            there = {(row.cell, row.slot): row for row in rows}
            if new := [
                {"experiment": self.name, "cell": cell, "slot": name, "search": slot.search}
                for (cell, name), slot in slots.items()
                if (cell, name) not in there
            ]:
                connection.execute(insert(TRIALS), new)
            for key in slots.keys() & there.keys():
                if there[key].state == "failed":
                    failed = update(TRIALS).where(TRIALS.c.id == there[key].id)
                    connection.execute(failed.values(state="waiting", record=None, deaths=0))
            rows = self._rows("id", "cell", "slot", within=connection)
        ids = {(row.cell, row.slot): row.id for row in rows}
        self._slots = {ids[key]: slot for key, slot in slots.items()}
        self._is_prepared = True
        self.requeue_dead_trials()

    def waiting(self) -> list[Trial]:
        """Return the trials of the prepared grid that wait, in its order.

        Before TPE has chosen, batch and rate are -1.
        """
        ids = {row.id for row in self._rows("id", only=TRIALS.c.state == "waiting")}
        return [slot.trial for row, slot in self._slots.items() if row in ids]

    def claim(self, where: Callable[[Trial], bool] = lambda trial: True) -> Claim | None:
        """Return the right to run a trial, or None if none waits.

        Parameters
        ----------
        where : callable
            Which trials are wanted. Before TPE has chosen, batch and rate are -1.
        """
        with self._lock:
            unfinished = TRIALS.c.state.in_(["waiting", "running"])
            rows = self._rows("id", "state", "attempt", "deaths", only=unfinished)
            found = {row.id: row for row in rows}
            tpe_cells: set[str] = set()
            for row, slot in [(found[i], slot) for i, slot in self._slots.items() if i in found]:
                if slot.cell in tpe_cells:
                    continue  # TPE learns from the earlier slots of the cell: they come first
                if slot.rates:
                    tpe_cells.add(slot.cell)
                if row.state != "waiting" or not where(slot.trial):
                    continue
                claim = Claim(self._choose(slot, row.id), row.id, row.attempt + 1, row.deaths)
                self._claims.add(claim)  # first, so that `close` releases it whatever happens
                mine = {"state": "running", "owner": _owners.this_process(), "heartbeat": NOW}
                if self._change(row.id, row.attempt, "waiting", attempt=claim.attempt, **mine):
                    return claim
                self._claims.discard(claim)  # another process was faster
        return None

    def finish(self, claim: Claim, record: Record) -> bool:
        """Keep the record of a trial; return False if the trial has been given to others."""
        text = json.dumps(record.to_dict())
        kept = self._change(claim.row, claim.attempt, "running", state=record.state, record=text)
        self._claims.discard(claim)
        return kept

    def release(self, claim: Claim, *, died: bool = False) -> None:
        """Let a trial wait again; `died` counts that its worker process ended while it ran."""
        deaths = claim.deaths + died
        self._change(claim.row, claim.attempt, "running", state="waiting", deaths=deaths)
        self._claims.discard(claim)

    def requeue_dead_trials(self) -> int:
        """Let the trials wait again whose process has ended; return how many.

        On this machine, ended processes are found at once. On others, they are those that have
        sent no heartbeat for `GRACE_SECONDS`.
        """
        silent = (TRIALS.c.heartbeat < NOW - _database.GRACE_SECONDS).label("silent")
        running = TRIALS.c.state == "running"
        return sum(
            self._change(row.id, row.attempt, "running", state="waiting")
            for row in self._rows("id", "attempt", "owner", silent, only=running)
            if row.silent or _owners.has_ended(row.owner)
        )

    def beat(self) -> None:
        """Send a heartbeat: the claimed trials are still being run."""
        mine = (TRIALS.c.owner == _owners.this_process()) & (TRIALS.c.state == "running")
        with self._transaction() as connection:
            rows = TRIALS.c.id.in_([claim.row for claim in self._claims])
            connection.execute(update(TRIALS).where(rows, mine).values(heartbeat=NOW))

    def records(self) -> list[Record]:
        """Return the records of all trials in the store, in the order of the grid.

        What a larger grid has added to a cell follows what the cell had before.
        """
        cells: dict[str, list[Record]] = {}
        for row in self._rows("cell", "record"):
            cells.setdefault(row.cell, []).extend(self._read([row]))
        return [record for records in cells.values() for record in records]

    def counts(self) -> Counts:
        """Return how many trials wait, run and are finished.

        These are the trials of the prepared grid, or all if none was prepared.
        """
        rows = self._rows("id", "state")
        states = [row.state for row in rows if row.id in self._slots or not self._is_prepared]
        waiting, running = states.count("waiting"), states.count("running")
        return Counts(waiting, running, len(states) - waiting - running)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._lock, _database.storage_errors(self.where), self._engine.begin() as connection:
            yield connection

    def _rows(
        self, *columns: Any, only: Any = True, within: Connection | None = None
    ) -> Sequence[Row[Any]]:
        """Return columns of the trials, read in a given transaction or in one of their own."""
        named = [TRIALS.c[column] if isinstance(column, str) else column for column in columns]
        query = select(*named).where(TRIALS.c.experiment == self.name, only).order_by(TRIALS.c.id)
        with nullcontext(within) if within else self._transaction() as connection:
            return connection.execute(query).all()

    def _change(self, row: int, attempt: int, state: str, /, **values: Any) -> bool:
        """Change a trial that is in a given state of a given attempt; return whether it was."""
        expected = (TRIALS.c.id == row, TRIALS.c.attempt == attempt, TRIALS.c.state == state)
        with self._transaction() as connection:
            return connection.execute(update(TRIALS).where(*expected).values(values)).rowcount == 1

    def _begin(self, connection: Connection, settings: Settings) -> Settings:
        """Return the settings of the experiment, these if it is new, and lock its row.

        The lock ends with the transaction: of several processes that start at once, one after
        another adds its trials. SQLite has locked the whole file already.
        """
        text = json.dumps(asdict(settings))
        new = {"name": self.name, "layout": _layout.LAYOUT, "settings": text}
        with suppress(IntegrityError), connection.begin_nested():
            connection.execute(insert(EXPERIMENTS), new)
        kept = connection.scalars(self._settings.with_for_update()).one()
        return _layout.read_json(kept, Settings.from_dict, self.where)

    def _choose(self, slot: Slot, row: int) -> Trial:
        if not slot.rates:
            return slot.trial
        earlier = (TRIALS.c.cell == slot.cell) & (TRIALS.c.id < row)
        return _tpe.choose(slot, self._read(self._rows("record", only=earlier)))

    def _read(self, rows: Iterable[Row[Any]]) -> list[Record]:
        texts = [row.record for row in rows if row.record]
        return [_layout.read_json(text, Record.from_dict, self.where) for text in texts]

"""Keep what the trials of an experiment left, and hand out those that wait.

A store is a folder with a database in it, or the URL of one. Any number of processes may work on
it at once, on any number of machines: a trial runs once, and what a dead process was running waits
again. There is one Optuna study a cell (`_cells`), laid out as `_layout` says.

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

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from types import TracebackType
from typing import NamedTuple

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Cell, Grid, Record, Settings, Trial
from everypair.experiments.search import _database
from everypair.experiments.search._cells import CellStudy, Claim
from everypair.experiments.search._layout import (
    LAYOUT,
    Search,
    Slots,
    check_layout,
    check_search,
    check_settings,
    settings_from_dict,
    slots_of,
    study_name,
)

__all__ = ["Claim", "Counts", "Store", "open"]


class Counts(NamedTuple):
    """How far the trials are."""

    waiting: int
    running: int
    finished: int


def open(where: str, *, create: bool = False) -> Store:  # noqa: A001  # as files are opened
    """Open a store.

    Parameters
    ----------
    where : str
        A folder (it holds ``study.db``) or a database URL, ``postgresql+psycopg://...``. One
        database can keep several experiments: ``URL#name``.
    create : bool
        Whether to make the store where there is none.

    Raises
    ------
    UserError
        Where there is no store, it cannot be used, or another version wrote it.
    """
    return Store(where, create=create)


class Store:
    """See `open`. Safe to use from several threads."""

    def __init__(self, where: str, *, create: bool = False) -> None:
        self.where = _database.without_password(where)
        address, _, self.name = where.partition("#") if "://" in where else (where, "", "")
        self._plan: dict[Cell, tuple[Slots, Search]] = {}
        self._done: set[Cell] = set()  # of the plan, so that they are not looked at again
        self._claims: dict[int, Claim] = {}
        self._lock = threading.RLock()
        self._writable = create
        self._storage, self._engine = _database.connect(address, create=create)
        self._cells: dict[Cell, CellStudy] = {}
        try:
            with self._errors():
                self._read_cells()
        except BaseException:
            _database.close(self._storage, self._engine, written=self._writable)
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database. Trials that are still claimed wait again."""
        try:
            for claim in list(self._claims.values()):
                self.release(claim)
        finally:
            _database.close(self._storage, self._engine, written=self._writable)

    @property
    def settings(self) -> Settings:
        """What all trials share."""
        for cell in self._cells.values():
            return settings_from_dict(cell.attributes["settings"])
        raise UserError(
            f"{self.where} holds no trials yet. Run `everypair experiment` on it first."
        )

    def prepare(self, grid: Grid, settings: Settings, *, tpe_trials: int | None = None) -> None:
        """Let every trial of a grid wait that is not there yet, or failed when it ran.

        Parameters
        ----------
        grid : Grid
            What to try. It may be larger or smaller than the one the store was begun with; its
            trials are the ones that `claim` and `counts` are about from now on.
        settings : Settings
            Have to be those the store was begun with.
        tpe_trials : int, optional
            Let TPE choose so many (batch, rate) in each cell, the rates between the least and the
            greatest of the grid, one trial of a cell after another.
        """
        with self._lock, self._errors():
            self._done.clear()
            for known in self._cells.values():
                check_settings(known.attributes, settings, self.where)
            plan = {
                cell: (slots_of(grid, cell, tpe_trials), Search.of(grid, cell, tpe_trials))
                for cell in grid.cells()
            }
            for cell in plan.keys() & self._cells.keys():
                check_search(self._cells[cell].attributes, plan[cell][1], self.where)
            for cell, (slots, search) in plan.items():
                if cell not in self._cells:
                    self._create(cell, settings, search)
                self._cells[cell].plan(len(slots))
                self._cells[cell].try_again(slots)
            self._plan = plan  # not before its cells are there: Ctrl-C may come in between
            self.put_back_the_dead()

    def claim(self, where: Callable[[Trial], bool] = lambda trial: True) -> Claim | None:
        """Return the right to run a trial, or None where none waits.

        Parameters
        ----------
        where : callable
            Which trials are welcome. Before TPE has chosen, batch and rate are -1.
        """
        with self._lock, self._errors():
            for cell in [cell for cell in self._plan if cell not in self._done]:
                claim = self._cells[cell].claim(*self._plan[cell], where)
                if claim is not None:
                    self._claims[claim.trial_id] = claim
                    return claim
                if not {"WAITING", "RUNNING"} & set(self._states(cell)):
                    self._done.add(cell)
        return None

    def finish(self, claim: Claim, record: Record) -> bool:
        """Keep what a trial left; False where it had been given up, so that another runs it."""
        with self._lock, self._errors():
            kept = self._cells[claim.trial.cell].finish(claim.trial_id, record)
            self._claims.pop(claim.trial_id, None)
        return kept

    def release(self, claim: Claim, *, died: bool = False) -> None:
        """Let a trial wait again; `died` counts that its process ended while it ran."""
        with self._lock, self._errors():
            self._claims.pop(claim.trial_id, None)
            self._cells[claim.trial.cell].put_back(claim.trial_id, died=died)

    def put_back_the_dead(self) -> int:
        """Let the trials wait again whose process is gone; return how many."""
        with self._lock, self._errors():
            return sum(
                self._cells[cell].put_back_the_dead(*plan) for cell, plan in self._plan.items()
            )

    def beat(self) -> None:
        """Tell other machines that the claimed trials are still being run."""
        with self._lock, self._errors():
            for claim in self._claims.values():
                self._cells[claim.trial.cell].beat(claim.trial_id)

    def records(self) -> list[Record]:
        """Return what every trial in the store left, in the order of the grid."""
        with self._lock, self._errors():
            return [record for cell in self._cells.values() for record in cell.records()]

    def counts(self) -> Counts:
        """Return how many trials wait, run and are finished.

        These are the trials of the prepared grid, or all where none was prepared.
        """
        with self._lock, self._errors():
            states = [state for cell in self._plan or self._cells for state in self._states(cell)]
        waiting, running = states.count("WAITING"), states.count("RUNNING")
        return Counts(waiting, running, len(states) - waiting - running)

    def _states(self, cell: Cell) -> list[str]:
        return self._cells[cell].states(self._plan[cell][0] if self._plan else None)

    def _errors(self) -> AbstractContextManager[None]:
        return _database.storage_errors(self.where)

    def _read_cells(self) -> None:
        studies = sorted(self._storage.get_all_studies(), key=lambda study: study._study_id)
        for study in studies:
            attributes = study.user_attrs
            if "everypair" not in attributes or attributes["experiment"] != self.name:
                continue  # of another program, or of another experiment
            check_layout(attributes, self.where)
            cell = Cell(**attributes["cell"])
            if cell not in self._cells:
                self._cells[cell] = CellStudy(
                    self._storage, study._study_id, study.study_name, cell, attributes
                )

    def _create(self, cell: Cell, settings: Settings, search: Search) -> None:
        import optuna

        study = optuna.create_study(
            storage=self._storage,
            study_name=study_name(cell, self.name),
            direction="maximize",
            load_if_exists=True,  # another process may be doing the same
        )
        described = {
            "cell": asdict(cell),
            "settings": asdict(settings),
            "search": asdict(search),
            "planned": 0,
            "experiment": self.name,
            "everypair": LAYOUT,  # last: without it a study does not count
        }
        there = study.user_attrs
        for name, value in described.items():
            if name not in there:
                study.set_user_attr(name, value)
        self._read_cells()
        check_settings(self._cells[cell].attributes, settings, self.where)
        check_search(self._cells[cell].attributes, search, self.where)

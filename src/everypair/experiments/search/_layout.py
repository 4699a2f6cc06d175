"""What a store keeps of a grid: named slots, and settings that have to stay the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any, NamedTuple

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Cell, Grid, Settings, TableFile, Trial

LAYOUT = 2
"""Version of the tables. Increase it when older stores can no longer be continued."""


@dataclass(frozen=True)
class Search:
    """How the trials of a cell are chosen: by TPE within bounds or, without bounds, by a grid."""

    batches: tuple[int, ...] = ()
    rates: tuple[float, float] | tuple[()] = ()  # least and greatest

    @property
    def is_tpe(self) -> bool:
        """Whether TPE chooses."""
        return bool(self.rates)

    def __str__(self) -> str:
        if not self.rates:
            return "a grid"
        least, greatest = self.rates
        return f"TPE over batches {list(self.batches)} and rates from {least} to {greatest}"


class Slot(NamedTuple):
    """One position of the grid. It has one row in the store, hence at most one result."""

    cell: str
    name: str  # no other slot of the cell has it
    trial: Trial  # batch and rate are -1 until TPE has chosen them
    search: Search


def slots_of(grid: Grid, tpe_trials: int | None) -> list[Slot]:
    """Return the slots of a grid, or of TPE within its bounds, cell by cell.

    >>> grid = Grid("digits", (0.1,), ("square",), (50,), (0,), rates={"square": (0.1, 1.0)})
    >>> [slot.name for slot in slots_of(grid, tpe_trials=None)]
    ['batch=50 rate=0.1', 'batch=50 rate=1.0']
    >>> [slot.name for slot in slots_of(grid, tpe_trials=3)]
    ['tpe 0', 'tpe 1', 'tpe 2']
    """
    slots = []
    for cell in grid.cells():
        name, rates = _cell_name(cell), [float(rate) for rate in grid.rates_of(cell)]
        if tpe_trials is None:
            slots += [
                Slot(name, f"batch={batch} rate={rate!r}", Trial(cell, batch, rate), Search())
                for batch, rate in product(grid.batches, rates)
            ]
        else:
            search = Search(tuple(grid.batches), (min(rates), max(rates)))
            trial = Trial(cell, -1, -1.0)
            slots += [Slot(name, f"tpe {number}", trial, search) for number in range(tpe_trials)]
    return slots


def _cell_name(cell: Cell) -> str:
    """Return a name that no other cell has.

    >>> _cell_name(Cell("digits", 0.1, "square", "sgd", 0))
    'digits imratio=0.1 square sgd seed=0'
    """
    share = float(cell.imratio)
    return f"{cell.data} imratio={share!r} {cell.loss} {cell.optimiser} seed={cell.seed}"


def read_settings(text: str) -> Settings:
    """Return the settings that a store keeps as JSON."""
    plain = json.loads(text)
    table = plain.get("table")
    return Settings(**{**plain, "table": table and TableFile(**table)})


def check_layout(layout: int, settings: str, where: str) -> None:
    """Raise an error if another version wrote the store, by its layout and its settings."""
    known = {field.name for field in fields(Settings)}
    if layout == LAYOUT and set(json.loads(settings)) <= known:
        return
    writer = " It is an Optuna study of an earlier version." if layout == 1 else ""
    raise UserError(
        f"the store {where} has layout {layout}, and this version of everypair reads layout "
        f"{LAYOUT}.{writer} Use the version that wrote it, or name another folder with --out."
    )


def check_settings(kept: Settings, settings: Settings, where: str) -> None:
    """Raise an error that names the settings that differ from those of the store."""
    before, now = _by_option(kept), _by_option(settings)
    differing = [name for name in now if before[name] != now[name]]
    if not differing:
        return
    if differing == ["fingerprint"]:
        raise UserError(
            f"the store {where} was begun on other data: the rows have changed since. Name "
            "another folder with --out to begin anew."
        )
    changes = ", ".join(
        f"{name} {_or_none(before[name])} (now {_or_none(now[name])})"
        for name in differing
        if name != "fingerprint"
    )
    raise UserError(
        f"the store {where} was begun with {changes}, and all its trials share their settings. "
        "Use the same again to continue, or name another folder with --out to begin anew."
    )


def check_search(kept: str, search: Search, where: str) -> None:
    """Raise an error if the trials of a cell were chosen in another way."""
    if kept != str(search):
        raise UserError(
            f"the store {where} was begun with {kept} (now {search}). Use the same again to "
            "continue, or name another folder with --out to begin anew."
        )


def _by_option(settings: Settings) -> dict[str, Any]:
    plain = asdict(settings)
    table = plain.pop("table") or dict.fromkeys(field.name for field in fields(TableFile))
    return {**plain, "data": table.pop("path"), **table}


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)

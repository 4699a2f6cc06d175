"""The contents of a store: named slots for trials, and settings that have to stay the same."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Settings, TableFile, Trial

LAYOUT = 2
"""Version of the tables. Increase it when older stores can no longer be continued."""

SAME_AGAIN = "Use the same again to continue, or name another folder with --out to begin anew."


class Slot(NamedTuple):
    """One position of the grid. It has one row in the store, hence at most one result."""

    cell: str
    name: str  # no other slot of the cell has it
    trial: Trial  # batch and rate are -1 until TPE has chosen them
    # The sizes and the least and greatest rate between which TPE chooses; empty in a grid.
    batches: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()

    @property
    def search(self) -> str:
        """Describe how the trials of the cell are chosen."""
        if not self.rates:
            return "a grid"
        least, greatest = self.rates
        return f"TPE over batches {list(self.batches)} and rates from {least} to {greatest}"


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
        share = float(cell.imratio)
        name = f"{cell.data} imratio={share!r} {cell.loss} {cell.optimiser} seed={cell.seed}"
        if tpe_trials is None:
            slots += [Slot(name, trial.name, trial) for trial in grid.trials_of(cell)]
        else:
            rates = [float(rate) for rate in grid.rates_of(cell)]
            bounds = tuple(grid.batches), (min(rates), max(rates))
            trial = Trial(cell, -1, -1.0)
            slots += [Slot(name, f"tpe {number}", trial, *bounds) for number in range(tpe_trials)]
    return slots


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
    changes = [
        f"{name} {before[name]} (now {now[name]})"
        for name in now
        if before[name] != now[name] and name != "fingerprint"
    ]
    if changes:
        raise UserError(
            f"the store {where} was begun with {', '.join(changes)}, and all its trials share "
            f"their settings. {SAME_AGAIN}"
        )
    if kept.fingerprint != settings.fingerprint:
        raise UserError(
            f"the store {where} was begun on other data: the rows have changed since. Name "
            "another folder with --out to begin anew."
        )


def _by_option(settings: Settings) -> dict[str, Any]:
    plain = asdict(settings)
    table = plain.pop("table") or dict.fromkeys(field.name for field in fields(TableFile))
    plain |= {"data": table.pop("path"), **table}
    return {name: "none" if value is None else value for name, value in plain.items()}

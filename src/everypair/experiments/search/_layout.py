"""The contents of a store: named slots for trials, and settings that have to stay the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, NamedTuple, TypeVar

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Settings, TableFile, Trial

_T = TypeVar("_T")
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
    advice = "Use the version that wrote it, or name another folder with --out."
    if layout != LAYOUT:
        writer = " It is an Optuna study of an earlier version." if layout == 1 else ""
        raise UserError(
            f"the store {where} has layout {layout}, and this version of everypair reads layout "
            f"{LAYOUT}.{writer} {advice}"
        )
    unknown = read_json(settings, set, where) - {field.name for field in fields(Settings)}
    if unknown:
        raise UserError(
            f"the store {where} has settings that this version of everypair does not know: "
            f"{', '.join(map(str, unknown))}. {advice}"
        )


def read_json(text: str, make: Callable[[Any], _T], where: str) -> _T:
    """Make an object of a text in the store; raise UserError if the text is damaged."""
    try:
        return make(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the store {where} is damaged: it holds a text that is no record and no settings "
            f"({type(error).__name__}: {error}). Restore it from a copy, or name another folder "
            "with --out."
        ) from None


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

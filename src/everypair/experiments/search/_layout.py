"""How a store is laid out in Optuna: names, attributes, slots, and what has to agree."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any, Literal, TypeAlias

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Cell, Grid, Settings, TableFile

__all__ = [
    "LAYOUT",
    "Search",
    "Slots",
    "check_layout",
    "check_search",
    "check_settings",
    "settings_from_dict",
    "slots_of",
    "study_name",
]

LAYOUT = 1
"""Goes up when an older store can no longer be continued."""

Slots: TypeAlias = "dict[str, dict[str, float]]"
"""What to try in a cell, by name, in the order of the grid. Empty: TPE chooses."""


@dataclass(frozen=True)
class Search:
    """How the trials of a cell are chosen."""

    sampler: Literal["grid", "tpe"]
    batches: tuple[int, ...] = ()  # of TPE; those of a grid may grow
    rates: tuple[float, ...] = ()

    @classmethod
    def of(cls, grid: Grid, cell: Cell, tpe_trials: int | None) -> Search:
        """Return how a grid, or TPE within its bounds, searches a cell."""
        if tpe_trials is None:
            return cls("grid")
        rates = grid.rates_of(cell)
        return cls("tpe", tuple(grid.batches), (min(rates), max(rates)))


def slots_of(grid: Grid, cell: Cell, tpe_trials: int | None) -> Slots:
    """Return what is tried in a cell.

    >>> grid = Grid("digits", (0.1,), ("square",), (50,), (0,), rates={"square": (0.1, 1.0)})
    >>> slots_of(grid, grid.cells()[0], None)
    {'batch=50 rate=0.1': {'batch': 50, 'rate': 0.1},
     'batch=50 rate=1.0': {'batch': 50, 'rate': 1.0}}
    """
    if tpe_trials is not None:
        return {f"tpe {number}": {} for number in range(tpe_trials)}
    return {
        f"batch={batch} rate={rate!r}": {"batch": batch, "rate": rate}
        for batch, rate in product(grid.batches, map(float, grid.rates_of(cell)))
    }


def study_name(cell: Cell, experiment: str) -> str:
    """Return what a cell is called in Optuna.

    >>> study_name(Cell("digits", 0.1, "square", "sgd", 0), "")
    'digits imratio=0.1 square sgd seed=0'
    """
    name = f"{cell.data} imratio={cell.imratio:g} {cell.loss} {cell.optimiser} seed={cell.seed}"
    return f"{experiment}: {name}" if experiment else name


def settings_from_dict(plain: dict[str, Any]) -> Settings:
    """Return the settings that a study remembers."""
    table = plain.get("table")
    return Settings(**{**plain, "table": table and TableFile(**table)})


def check_layout(attributes: dict[str, Any], where: str) -> None:
    """Raise where a study was written by another version."""
    known = {field.name for field in fields(Settings)}
    if attributes["everypair"] != LAYOUT or set(attributes["settings"]) - known:
        raise UserError(
            f"the store {where} has layout {attributes['everypair']}, and this version of "
            f"everypair reads layout {LAYOUT}. Use the version that wrote it, or name another "
            "folder with --out."
        )


def check_settings(attributes: dict[str, Any], settings: Settings, where: str) -> None:
    """Raise where a store was begun with other settings, and say which."""
    kept, wanted = _flat(settings_from_dict(attributes["settings"])), _flat(settings)
    differing = [name for name in wanted if kept[name] != wanted[name]]
    if not differing:
        return
    if differing == ["fingerprint"]:
        raise UserError(
            f"the store {where} was begun on other data: the rows have changed since. Name "
            "another folder with --out to begin anew."
        )
    said = ", ".join(
        f"{name} {_or_none(kept[name])} (now {_or_none(wanted[name])})"
        for name in differing
        if name != "fingerprint"
    )
    raise UserError(
        f"the store {where} was begun with {said}, and all its trials share their settings. "
        "Use the same again to continue, or name another folder with --out to begin anew."
    )


def _flat(settings: Settings) -> dict[str, Any]:
    """Return the settings by the names of their options."""
    plain = asdict(settings)
    table = plain.pop("table") or dict.fromkeys(field.name for field in fields(TableFile))
    return {**plain, "data": table.pop("path"), **table}


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)


def check_search(attributes: dict[str, Any], search: Search, where: str) -> None:
    """Raise where a cell was searched in another way."""
    plain = attributes["search"]
    kept = Search(plain["sampler"], tuple(plain["batches"]), tuple(plain["rates"]))
    if kept != search:
        raise UserError(
            f"the store {where} was begun with {_say(kept)} (now {_say(search)}). Use the same "
            "again to continue, or name another folder with --out to begin anew."
        )


def _say(search: Search) -> str:
    if search.sampler == "grid":
        return "a grid"
    low, high = search.rates
    return f"TPE over batches {list(search.batches)} and rates from {low:g} to {high:g}"

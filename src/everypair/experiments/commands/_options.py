"""From what was typed after ``everypair experiment`` to a grid and settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from everypair.experiments import presets
from everypair.experiments.errors import UserError
from everypair.experiments.plan import FULL_BATCH, Grid, Settings, TableFile

__all__ = ["Options", "check_names", "check_splits", "planned"]

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Options:
    """What the command line says about the experiment itself; None is the preset's choice."""

    preset: str | None = None
    data: Path | None = None
    label: str | None = None
    group: str | None = None
    positive: str | None = None
    losses: str | None = None
    optimiser: str | None = None
    imratio: str | None = None
    batch: str | None = None
    rate: tuple[str, ...] = ()
    seeds: int | None = None
    grid: str = "preset"
    epochs: int | None = None
    model: str | None = None
    scores: str | None = None
    protocol: str | None = None
    batches: str | None = None
    margin: float | None = None


def planned(options: Options) -> tuple[Grid, Settings]:
    """Return what is to be tried; the settings lack the fingerprint of the data.

    >>> grid, settings = planned(Options("digits", losses="square", seeds=1, rate=("0.1,0.2",)))
    >>> grid.losses, grid.seeds, grid.rates
    (('square',), (0,), {'square': (0.1, 0.2)})
    """
    name = options.preset or ("digits" if options.data is None else "table")
    from everypair.experiments.training import objectives

    preset = presets.PRESETS.find(name)
    own = {
        field.name: getattr(options, field.name)
        for field in fields(Settings)
        if getattr(options, field.name, None) is not None
    }
    if options.batches is not None:
        own["sampler"] = options.batches
    settings = replace(preset.settings, **own, table=_table(name, options))
    if settings.protocol == "paper":
        if options.scores == "raw":
            raise UserError(
                "--scores raw does not go with --protocol paper, under which every model ends in a "
                "sigmoid, as in the authors' code. Leave one of the two out."
            )
        settings = replace(settings, scores="sigmoid")
    grid = presets.paper_grid(name) if options.grid == "paper" else preset.grid
    losses = _words(options.losses) or grid.losses
    for loss in losses:
        objectives.OBJECTIVES.find(loss)
    grid = presets.with_losses(
        grid, losses, _words(options.optimiser), **_rates(options.rate, losses)
    )
    said: dict[str, Any] = {
        "imratios": options.imratio and _numbers("imratio", options.imratio, _share),
        "batches": options.batch and _numbers("batch", options.batch, _batch_size),
        "seeds": options.seeds and tuple(range(options.seeds)),
    }
    return replace(grid, **{name: value for name, value in said.items() if value}), settings


def check_names(grid: Grid, settings: Settings) -> None:
    """Raise where a model, loss or optimiser is unknown, or they do not go together."""
    from everypair.experiments.training import models, optimisers

    models.MODELS.find(settings.model)
    for cell in grid.cells():
        for batch in grid.batches:
            optimisers.check(cell.loss, cell.optimiser, batch=batch)


class Checked(NamedTuple):
    """What the splits of an experiment are like."""

    left_out: list[str]  # columns of a table that no split learns from
    fewest: dict[float, int]  # positives of a validation part, by imratio


def check_splits(grid: Grid, settings: Settings, dataset: Any) -> Checked:
    """Raise where a split would leave a part without a class, before anything is trained."""
    from everypair.experiments._progress import progress
    from everypair.experiments.data import splits

    dropped: list[tuple[str, ...]] = []
    fewest: dict[float, int] = {}
    wanted = [(imratio, seed) for imratio in grid.imratios for seed in grid.seeds]
    with progress("Checking the splits", len(wanted)) as advance:
        for imratio, seed in wanted:
            made = splits.split(dataset, imratio=imratio, seed=seed, protocol=settings.protocol)
            dropped.append(made.encoder.dropped if made.encoder else ())
            n_pos = int(made.validation.labels.sum())
            fewest[imratio] = min(n_pos, fewest.get(imratio, n_pos))
            advance(1)
    left_out = [name for name in dropped[0] if all(name in others for others in dropped)]
    return Checked(left_out, fewest)


def _table(name: str, options: Options) -> TableFile | None:
    if name != "table":
        if given := [
            f"--{o}" for o in ("data", "label", "group", "positive") if getattr(options, o)
        ]:
            raise UserError(
                f"{', '.join(given)} goes with the preset table only; got {name}. "
                "Say: everypair experiment table --data FILE --label COLUMN"
            )
        return None
    if options.data is None or options.label is None:
        missing = "--data FILE" if options.data is None else "--label COLUMN"
        raise UserError(
            f"the preset table needs {missing}: "
            "everypair experiment table --data FILE --label COLUMN"
        )
    path = str(options.data.absolute())
    return TableFile(path, options.label, options.group, options.positive)


def _words(text: str | None) -> tuple[str, ...]:
    """Return what stands between commas, each once."""
    return tuple(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def _numbers(
    option: str, text: str, read: Callable[[str], Number], rule: str = ""
) -> tuple[Number, ...]:
    try:
        return tuple(dict.fromkeys(read(word) for word in _words(text)))
    except ValueError as error:
        rule = str(error) if " " in str(error) and "convert" not in str(error) else ""
        raise UserError(
            f"--{option} must be numbers with commas between{rule and ', '}{rule}; got {text!r}."
        ) from None


def _share(word: str) -> float:
    value = float(word)
    if not 0 <= value < 1:
        raise ValueError("each at least 0 (as the data are) and less than 1")
    return value


def _batch_size(word: str) -> int:
    if word == "full":
        return FULL_BATCH
    if not word.isdecimal():
        raise ValueError("each a whole number, or full")
    return int(word)


def _positive_rate(word: str) -> float:
    value = float(word)
    if not 0 < value < math.inf:
        raise ValueError("each greater than 0")
    return value


def _rates(said: Sequence[str], losses: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Read ``0.1,1`` (for every loss) and ``logistic=0.1,1`` (for one)."""
    rates: dict[str, tuple[float, ...]] = {}
    for text in said:
        loss, equals, numbers = text.rpartition("=")
        if equals and loss not in losses:
            raise UserError(
                f"--rate {text} is about a loss that is not run; there are {', '.join(losses)}."
            )
        found = _numbers("rate", numbers, _positive_rate)
        rates.update(dict.fromkeys([loss] if equals else losses, found))
    return rates

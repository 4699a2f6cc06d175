"""Turn the options of ``everypair experiment`` into a grid and settings, and check them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from everypair.experiments import presets
from everypair.experiments.commands._parameters import Number, NumberRule, numbers
from everypair.experiments.errors import UserError
from everypair.experiments.plan import FULL_BATCH, Grid, Settings, TableFile

_SHARE = NumberRule(float, lambda x: 0 <= x < 1, "each at least 0 (all rows) and less than 1")
_RATE = NumberRule(float, lambda x: 0 < x < math.inf, "each greater than 0")
_BATCH_SIZE = NumberRule(
    lambda word: FULL_BATCH if word == "full" else int(word),
    lambda size: size >= 0,
    "each a whole number, or full",
)


@dataclass(frozen=True)
class Options:
    """The options that describe the experiment; None stands for the value of the preset."""

    preset: str | None = None
    data: Path | None = None
    label: str | None = None
    group: str | None = None
    positive: str | None = None
    losses: str | None = None
    optimiser: str | None = None
    imratio: str | None = None
    batch: str | None = None
    rate: Sequence[str] | None = None
    seeds: int | None = None
    grid: str = "preset"
    epochs: int | None = None
    model: str | None = None
    scores: str | None = None
    protocol: str | None = None
    batches: str | None = None
    margin: float | None = None


def planned(options: Options) -> tuple[Grid, Settings]:
    """Return the grid and the settings, which do not have the fingerprint of the data yet.

    >>> grid, settings = planned(Options("digits", losses="square", seeds=1, rate=("0.1,0.2",)))
    >>> grid.losses, grid.seeds, grid.rates
    (('square',), (0,), {'square': (0.1, 0.2)})
    """
    from everypair.experiments.training import objectives

    name = options.preset or ("digits" if options.data is None else "table")
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
                "--scores raw and --protocol paper exclude each other: under that protocol every "
                "model ends in a sigmoid, as in the authors' code. Give only one of them."
            )
        settings = replace(settings, scores="sigmoid")
    grid = presets.paper_grid(name) if options.grid == "paper" else preset.grid
    losses = _words(options.losses) or grid.losses
    for loss in losses:
        objectives.OBJECTIVES.find(loss)
    grid = presets.with_losses(
        grid, losses, _words(options.optimiser), **_rates(options.rate or (), losses)
    )
    changes: dict[str, Any] = {
        "imratios": options.imratio and _distinct("imratio", options.imratio, _SHARE),
        "batches": options.batch and _distinct("batch", options.batch, _BATCH_SIZE),
        "seeds": options.seeds and tuple(range(options.seeds)),
    }
    return replace(grid, **{name: value for name, value in changes.items() if value}), settings


def check_names(grid: Grid, settings: Settings) -> None:
    """Raise UserError if a model, loss or optimiser is unknown, or they do not go together."""
    from everypair.experiments.training import models, optimisers

    models.MODELS.find(settings.model)
    for cell in grid.cells():
        for batch in grid.batches:
            optimisers.check(cell.loss, cell.optimiser, batch=batch)


class Checked(NamedTuple):
    """Facts about all splits of an experiment."""

    left_out: list[str]  # columns of a table that no split uses
    fewest: dict[float, int]  # the smallest number of validation positives, by imratio


def check_splits(grid: Grid, settings: Settings, dataset: Any) -> Checked:
    """Raise UserError if a split is impossible, before anything is trained.

    Only row numbers are chosen, and encoders of tables fitted; no row is encoded or copied.
    """
    from everypair.experiments._progress import progress
    from everypair.experiments.data import splits

    dropped: list[tuple[str, ...]] = []
    fewest: dict[float, int] = {}
    wanted = [(imratio, seed) for imratio in grid.imratios for seed in grid.seeds]
    with progress("Checking the splits", len(wanted)) as advance:
        for imratio, seed in wanted:
            rows = splits.split_rows(
                dataset, imratio=imratio, seed=seed, protocol=settings.protocol
            )
            encoder = splits.fit_encoder(dataset, rows)
            dropped.append(encoder.dropped if encoder else ())
            n_pos = int(dataset.positive[rows.validation].sum())
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
                "Use: everypair experiment table --data FILE --label COLUMN"
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
    """Return the words between commas, without duplicates."""
    return tuple(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def _distinct(option: str, text: str, rule: NumberRule[Number]) -> tuple[Number, ...]:
    return tuple(dict.fromkeys(numbers(option, text, rule)))


def _rates(options: Sequence[str], losses: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Read ``0.1,1`` (for all losses) and ``logistic=0.1,1`` (for one)."""
    rates: dict[str, tuple[float, ...]] = {}
    for text in options:
        loss, equals, values = text.rpartition("=")
        if equals and loss not in losses:
            raise UserError(
                f"--rate {text} names a loss that is not run; the losses are {', '.join(losses)}."
            )
        found = _distinct("rate", values, _RATE)
        rates.update(dict.fromkeys([loss] if equals else losses, found))
    return rates

"""Turn the options of ``everypair experiment`` into a grid and settings, and check them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from everypair.experiments import presets
from everypair.experiments.commands import _table_options
from everypair.experiments.commands._parameters import numbers, words
from everypair.experiments.errors import UserError
from everypair.experiments.plan import FULL_BATCH, Grid, Settings, TableFile

NETWORK_OPTIONS = (
    *("imratio", "optimiser", "batch", "rate", "trials", "model", "scores", "epochs", "margin"),
    *("batches", "schedule", "warm_start", "protocol", "precision", "subtrain_sample", "finalists"),
)
"""Options of networks. If one is given with a table, networks are trained, and nothing else."""


def planned(**given: Any) -> tuple[Grid, Settings]:
    """Return the grid and the settings, which do not have the fingerprint of the data yet.

    Takes the parameters of `experiment.command`; None stands for the value of the preset. The grid
    of a table has `spaces`, the parameters of the families, unless an option for networks is given.

    >>> grid, settings = planned(preset="digits", losses="square", seeds=1, rate=("0.1,0.2",))
    >>> grid.losses, grid.seeds, grid.rates
    (('square',), (0,), {'square': (0.1, 0.2)})
    """
    options = defaultdict(lambda: None, given)
    name = options["preset"] or ("digits" if options["data"] is None else "table")
    if name not in presets.PRESETS and Path(name).is_file():
        raise UserError(f"{name} is a file; use: everypair experiment --data {name} --label COLUMN")
    preset = presets.PRESETS.find(name)
    if trains_families(name, options):
        from everypair.experiments.families import grid_of

        own_losses, models = words(options["losses"] or ""), words(options["models"] or "")
        grid = grid_of(models, own_losses, range(options["seeds"] or 1))
        return grid, Settings(model="families", epochs=0, table=_table(name, options))
    from everypair.experiments.training import objectives

    names = {field.name for field in fields(Settings)} - {"sampler", "table", "fingerprint"}
    own = {setting: options[setting] for setting in names} | {"sampler": options["batches"]}
    own = {setting: value for setting, value in own.items() if value is not None}
    settings = replace(preset.settings, **own, table=_table(name, options))
    if settings.warm_start >= settings.epochs:
        raise UserError(
            f"--warm-start must be less than the {settings.epochs} epochs; got "
            f"{settings.warm_start}. Take more --epochs, or a shorter warm start."
        )
    if settings.protocol == "paper":
        if options["scores"] == "raw":
            raise UserError(
                "--scores raw and --protocol paper exclude each other: under that protocol every "
                "model ends in a sigmoid, as in the authors' code. Give only one of them."
            )
        settings = replace(settings, scores="sigmoid")
    grid = presets.paper_grid(name) if options["grid"] == "paper" else preset.grid
    losses = tuple(dict.fromkeys(words(options["losses"] or ""))) or grid.losses
    for loss in losses:
        objectives.OBJECTIVES.find(loss)
    rates = _rates(options["rate"] or (), losses)
    optimisers = list(dict.fromkeys(words(options["optimiser"] or "")))
    grid = presets.with_losses(grid, losses, optimisers, **rates)
    if text := options["imratio"]:
        rule = "each at least 0 (all rows) and less than 1"
        grid = replace(grid, imratios=_distinct("imratio", text, rule, lambda x: 0 <= x < 1))
    if text := options["batch"]:
        sizes = _distinct("batch", text, "each a whole number, or full", lambda x: x >= 0, _size)
        grid = replace(grid, batches=sizes)
    if options["seeds"]:
        grid = replace(grid, seeds=tuple(range(options["seeds"])))
    return grid, settings


def trains_families(preset: str, options: Mapping[str, Any]) -> bool:
    """Return whether families of models for tables are compared, and not networks."""
    given = [name for name in NETWORK_OPTIONS if options[name] is not None]
    networks = [f"--{name.replace('_', '-')}" for name in given]
    networks += [f"--{name}" for name in ("grid", "sampler") if options[name] in ("paper", "tpe")]
    if options["models"] is None:
        return preset == "table" and not networks
    if preset != "table":
        raise UserError(f"--models goes with the preset table only; got {preset}.")
    if networks:
        raise UserError(
            f"--models and {', '.join(networks)} exclude each other: these are options of networks."
        )
    return True


def check_names(grid: Grid, settings: Settings) -> None:
    """Raise UserError if a model, loss or optimiser is unknown, or they do not go together."""
    if grid.spaces:
        return  # checked when the grid was made
    from everypair.experiments.families import FAMILIES
    from everypair.experiments.training import models, optimisers

    if settings.model not in models.MODELS and settings.model in FAMILIES:
        raise UserError(
            f"--model is the network of all trials; use --models {settings.model} to compare "
            "models on a table"
        )
    models.MODELS.find(settings.model)
    for cell in grid.cells():
        for batch in grid.batches:
            optimisers.check(cell.loss, cell.optimiser, batch=batch, warm_start=settings.warm_start)


def check_splits(grid: Grid, settings: Settings, dataset: Any) -> dict[float, int]:
    """Raise UserError if a split is impossible, before anything is trained.

    Only row numbers are chosen; no row is encoded or copied. Returns the smallest number of
    validation positives by imratio.
    """
    from everypair.experiments._progress import progress
    from everypair.experiments.data import splits

    fewest: dict[float, int] = {}
    protocol, wanted = settings.protocol, list(product(grid.imratios, grid.seeds))
    with progress("Checking the splits", len(wanted)) as advance:
        for imratio, seed in wanted:
            rows = splits.split_rows(dataset, imratio=imratio, seed=seed, protocol=protocol)
            n_pos = int(dataset.positive[rows.validation].sum())
            fewest[imratio] = min(n_pos, fewest.get(imratio, n_pos))
            advance(1)
    return fewest


def _table(name: str, options: Mapping[str, Any]) -> TableFile | None:
    own = {o: options[o] for o in _table_options.NAMES}
    if name != "table":
        if given := [f"--{o}" for o, value in own.items() if value]:
            raise UserError(
                f"{', '.join(given)} goes with the preset table only; got {name}. "
                "Use: everypair experiment table --data FILE --label COLUMN"
            )
        return None
    if own["data"] is None or own["label"] is None:
        missing = "--data FILE" if own["data"] is None else "--label COLUMN"
        raise UserError(
            f"the preset table needs {missing}: "
            "everypair experiment table --data FILE --label COLUMN"
        )
    return _table_options.table_file(own)


def _distinct(*arguments: Any) -> tuple[Any, ...]:
    """Return the numbers of an option without duplicates; see `numbers` for the arguments."""
    return tuple(dict.fromkeys(numbers(*arguments)))


def _size(word: str) -> int:
    return FULL_BATCH if word == "full" else int(word)


def _rates(options: Sequence[str], losses: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Read ``0.1,1`` (for all losses) and ``logistic=0.1,1`` (for one)."""
    rates: dict[str, tuple[float, ...]] = {}
    for text in options:
        loss, equals, values = text.rpartition("=")
        if equals and loss not in losses:
            raise UserError(
                f"--rate {text} names a loss that is not run; the losses are {', '.join(losses)}."
            )
        found = _distinct("rate", values, "each greater than 0", lambda x: 0 < x < math.inf)
        rates.update(dict.fromkeys([loss] if equals else losses, found))
    return rates

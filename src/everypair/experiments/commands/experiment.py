"""``everypair experiment``: train with several losses, choose by validation AUC, report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from everypair.experiments._terminal import echo
from everypair.experiments.commands import _table_options
from everypair.experiments.commands._execution import Execution, deadline_after, usable_device
from everypair.experiments.commands._parameters import (
    JsonFlag,
    check_folder,
    flag,
    margin_option,
    option,
)
from everypair.experiments.errors import UserError

FEW_POSITIVES = 10
"""With fewer positives for validation, the standard error of the AUC is about 0.1 or more."""

TRY_PANEL, TRAIN_PANEL, RUN_PANEL = (
    {"rich_help_panel": p}
    for p in ("Hyper-parameters to try", "Settings of all trials", "Execution")
)
DATA = partial(option, rich_help_panel="Data", default="none")
TRY = partial(option, **TRY_PANEL, default="the preset's")
TRAIN = partial(option, **TRAIN_PANEL, default="the preset's")
RUN = partial(option, **RUN_PANEL)


def command(
    preset: Annotated[
        str | None,
        typer.Argument(
            help="Data set with its defaults: digits, cifar10, stl10, catdog or table (your own).",
            show_default="digits; table if --data is given",
        ),
    ] = None,
    data: Annotated[Path | None, DATA("CSV, Parquet or Excel file with your table.")] = None,
    label: Annotated[str | None, DATA("Name of the label column; needed with --data.")] = None,
    group: Annotated[str | None, DATA("Group column: only pairs inside a group count.")] = None,
    positive: Annotated[
        str | None,
        DATA(
            "Label of the positive class; all others are negative.",
            default="1, true or yes, else the rarer label",
        ),
    ] = None,
    drop: _table_options.Drop = None,
    only: _table_options.Only = None,
    time: _table_options.Time = None,
    test: _table_options.Test = None,
    imratio: Annotated[
        str | None,
        DATA(
            "Imbalance ratios: remove positives until this share is left for training and "
            "validation, such as 0.1,0.01; 0 keeps all rows.",
            default="the preset's",
        ),
    ] = None,
    models: Annotated[
        str | None,
        TRY(
            "Models for a table, such as linear,lightgbm,xgboost,catboost,mlp.",
            default="linear,lightgbm",
        ),
    ] = None,
    losses: Annotated[
        str | None,
        TRY("Losses to compare, such as squared_hinge,logistic; for a table logistic,pairs."),
    ] = None,
    optimiser: Annotated[
        str | None,
        TRY("Optimisers, such as sgd,momentum,adam.", default="sgd; pesg, solam for their losses"),
    ] = None,
    batch: Annotated[str | None, TRY("Batch sizes, such as 50,500,full (full: all rows).")] = None,
    rate: Annotated[
        list[str] | None,
        TRY("Learning rates: 0.1,1 for all losses or logistic=0.1,1 for one; repeatable."),
    ] = None,
    seeds: Annotated[int | None, TRY("Number of seeds, each with its own split.", min=1)] = None,
    finalists: Annotated[
        int | None,
        TRY("Try all on the first seed, the best N of each loss on all.", default="none", min=1),
    ] = None,
    per_batch: Annotated[
        bool,
        flag("--per-batch", "With --finalists: the best N of each batch size.", **TRY_PANEL),
    ] = False,
    grid: Annotated[
        Literal["preset", "paper"],
        TRY("Hyper-parameters of the preset, or all of the paper's.", default=None),
    ] = "preset",
    sampler: Annotated[
        Literal["grid", "tpe"],
        TRY("Try the whole grid, or let Optuna's TPE choose within its bounds.", default=None),
    ] = "grid",
    trials: Annotated[
        int | None,
        TRY("Trials per loss and seed; needed with --sampler tpe.", default="none", min=1),
    ] = None,
    model: Annotated[str | None, TRAIN("Network: linear, mlp or resnet20.")] = None,
    scores: Annotated[
        Literal["raw", "sigmoid"] | None,
        TRAIN("Scores: the network's outputs or their sigmoid.", default="the preset's: sigmoid"),
    ] = None,
    epochs: Annotated[int | None, TRAIN("Passes over the training rows.", min=1)] = None,
    margin: Annotated[float | None, margin_option("that of each loss", **TRAIN_PANEL)] = None,
    batches: Annotated[
        Literal["shuffle", "stratified"] | None,
        TRAIN("Draw at random, or both classes in each batch.", default="the preset's: shuffle"),
    ] = None,
    schedule: Annotated[
        Literal["constant", "cosine"] | None,
        TRAIN("Learning rate over the epochs.", default="the preset's: constant"),
    ] = None,
    warm_start: Annotated[
        int | None,
        TRAIN("First epochs, trained with the logistic loss.", default="the preset's: 0", min=0),
    ] = None,
    protocol: Annotated[
        Literal["corrected", "paper"] | None,
        TRAIN("Follow the paper's text, or its authors' code.", default="the preset's: corrected"),
    ] = None,
    precision: Annotated[
        Literal["float32", "bf16"] | None,
        TRAIN(
            "Arithmetic of the network; bf16 is faster on a GPU. Losses and scores are float32.",
            default="the preset's: float32",
        ),
    ] = None,
    subtrain_sample: Annotated[
        int | None,
        TRAIN(
            "Rows of subtrain to measure after each epoch but the last; 0: all.",
            default="the preset's: 0",
            min=0,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        RUN(
            "Folder for the results.",
            default="runs/PRESET, or runs/ and the name of the file",
            callback=check_folder,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        RUN("URL of a database that several machines share.", default="a file in the folder"),
    ] = None,
    workers: Annotated[
        int | None, RUN("Number of processes.", default="one per core; one with a GPU", min=1)
    ] = None,
    device: Annotated[str, RUN("auto (a GPU if there is one), cpu, cuda, cuda:1, ...")] = "auto",
    minutes: Annotated[
        float | None,
        RUN("Stop after so many minutes; the same command continues.", default="none", min=0.0),
    ] = None,
    together: Annotated[
        int | None,
        RUN("Most trials in one CUDA graph; on a CPU each runs alone.", default="16", min=1),
    ] = None,
    mixed: Annotated[
        bool,
        flag(
            "--mixed",
            "Several losses in one CUDA graph, if each has few trials.",
            **RUN_PANEL,
        ),
    ] = False,
    compiled: Annotated[
        bool, flag("--compile", "Compile the networks in CUDA graphs.", **RUN_PANEL)
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train with several losses, choose by validation AUC, report test AUC.

    The same command continues a run that was interrupted.
    """
    given = locals()
    deadline = deadline_after(minutes)
    # Printed before torch and pandas are imported, which takes seconds.
    echo(f"everypair experiment: {(data.name or data) if data else preset or 'digits'}", err=True)
    from everypair.experiments.commands._options import check_names, check_splits, planned
    from everypair.experiments.data import sources

    plan, settings = planned(**given)
    if (trials is not None) != (sampler == "tpe"):
        raise UserError(
            "--trials and --sampler tpe go together; for example --sampler tpe --trials 20."
        )
    if finalists and sampler == "tpe":
        raise UserError("--finalists and --sampler tpe exclude each other; give only one of them.")
    if per_batch and not finalists:
        raise UserError("--per-batch needs --finalists; for example --finalists 2 --per-batch.")
    check_names(plan, settings)
    device = "cpu" if plan.spaces else usable_device(device)
    dataset = sources.load(plan.data, table=settings.table)
    fewest = check_splits(plan, settings, dataset)
    notes = [_few_positives(fewest), *(f"Skipped: {reason}." for reason in plan.skipped)]
    settings = replace(settings, fingerprint=dataset.fingerprint)
    folder = out or Path("runs") / (Path(data).stem if data else plan.data)
    if (table := settings.table) is not None:
        table = replace(table, positive=dataset.positive_name.removeprefix(f"{table.label} = "))
        settings = replace(settings, table=table)
        notes = [*_table_options.describe_table(table, plan, settings, dataset, folder), *notes]
    execution = Execution(
        folder, storage, workers, device, deadline, together, mixed=mixed, compiled=compiled
    )
    choice = {"tpe_trials": trials, "finalists": finalists, "per_batch": per_batch}
    execution.run(plan, settings, dataset, choice, notes, as_json=as_json)


def _few_positives(fewest: dict[float, int]) -> str:
    """Return a warning if a validation part has too few positives, else an empty string."""
    if not (few := {imratio: n for imratio, n in fewest.items() if n < FEW_POSITIVES}):
        return ""
    counts = ", ".join(f"{n} at imratio {i:g}" if i else f"{n}" for i, n in few.items())
    return (
        f"Few positives for validation: {counts}. What is chosen there is mostly chance; rely on "
        "the intervals, not on the means."
    )

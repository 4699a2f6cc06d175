"""``everypair experiment``: train with several losses, choose by validation AUC, report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.experiments.data.sources import Dataset
    from everypair.experiments.plan import Grid, Settings, TableFile
    from everypair.experiments.report import Study

__all__ = ["command"]

FEW_POSITIVES = 10
"""With fewer in validation, its AUC has a standard error of about 0.1, if not more."""

DATA, TRY, TRAIN, RUN = "The data", "What is tried", "What all trials share", "Where it runs"


def command(
    preset: Annotated[
        str | None,
        typer.Argument(help="digits (the default), cifar10, stl10, catdog, or table."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Your CSV or Parquet file.", rich_help_panel=DATA)
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Its column with the two classes.", rich_help_panel=DATA)
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Its column of groups: only pairs inside count.", rich_help_panel=DATA),
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(help="The label that is positive; else 1 or the rarer.", rich_help_panel=DATA),
    ] = None,
    imratio: Annotated[
        str | None,
        typer.Option(help="Shares of positives: 0.1,0.01; 0: as they are.", rich_help_panel=DATA),
    ] = None,
    losses: Annotated[
        str | None, typer.Option(help="Such as squared_hinge,logistic.", rich_help_panel=TRY)
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option(help="Such as sgd,momentum,adam.", rich_help_panel=TRY)
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Batch sizes: 50,500,full.", rich_help_panel=TRY)
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            help="Learning rates: 0.1,1 or, for one loss, logistic=0.1,1 (repeatable).",
            rich_help_panel=TRY,
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many.", rich_help_panel=TRY)] = None,
    grid: Annotated[
        Literal["preset", "paper"],
        typer.Option(help="All that the paper tried, with paper.", rich_help_panel=TRY),
    ] = "preset",
    sampler: Annotated[
        Literal["grid", "tpe"],
        typer.Option(help="Try all, or let TPE choose within.", rich_help_panel=TRY),
    ] = "grid",
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="With tpe: how many for each seed.", rich_help_panel=TRY),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="linear, mlp or resnet20.", rich_help_panel=TRAIN)
    ] = None,
    scores: Annotated[
        Literal["raw", "sigmoid"] | None,
        typer.Option(help="What the model ends in.", rich_help_panel=TRAIN),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, rich_help_panel=TRAIN)] = None,
    margin: Annotated[
        float | None, typer.Option(min=0.0, help="Of the pair losses.", rich_help_panel=TRAIN)
    ] = None,
    batches: Annotated[
        Literal["shuffle", "stratified"] | None,
        typer.Option(help="How rows get into batches.", rich_help_panel=TRAIN),
    ] = None,
    protocol: Annotated[
        Literal["corrected", "paper"] | None,
        typer.Option(help="What the paper says, or its code did.", rich_help_panel=TRAIN),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of results; else runs/PRESET.", rich_help_panel=RUN),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Database URL for several machines.", rich_help_panel=RUN),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; else one a core.", rich_help_panel=RUN)
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:1...", rich_help_panel=RUN)
    ] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel=RUN)
    ] = False,
) -> None:
    """Train with several losses, choose by validation AUC, report test AUC.

    The same command continues a run that was interrupted.
    """
    from everypair.experiments.commands._options import Options, check_names, check_splits, planned

    options = Options(
        preset=preset,
        data=data,
        label=label,
        group=group,
        positive=positive,
        losses=losses,
        optimiser=optimiser,
        imratio=imratio,
        batch=batch,
        rate=tuple(rate or ()),
        seeds=seeds,
        grid=grid,
        epochs=epochs,
        model=model,
        scores=scores,
        protocol=protocol,
        batches=batches,
        margin=margin,
    )
    plan, settings = planned(options)
    if (trials is not None) != (sampler == "tpe"):
        raise UserError(
            "--trials goes with --sampler tpe: say both, for example --sampler tpe --trials 20."
        )
    check_names(plan, settings)
    device = _device(device)

    from everypair.experiments.data import sources

    dataset = sources.load(plan.data, table=settings.table)
    checked = check_splits(plan, settings, dataset)
    notes = [_too_few(checked.fewest)]
    if (table := settings.table) is not None:
        positive = dataset.positive_name.removeprefix(f"{table.label} = ")
        settings = replace(settings, table=replace(table, positive=positive))
        notes.insert(0, _table_read(table, dataset, checked.left_out))
    settings = replace(settings, fingerprint=dataset.fingerprint)
    folder = out or Path("runs") / (Path(data).stem if data else plan.data)
    _run(plan, settings, folder, storage, workers, trials, device, as_json, notes)


def _run(
    grid: Grid,
    settings: Settings,
    folder: Path,
    storage: str | None,
    workers: int | None,
    tpe_trials: int | None,
    device: str,
    as_json: bool,
    notes: Sequence[str],
) -> None:
    from rich.console import Console

    from everypair.experiments import report
    from everypair.experiments.commands._display import Display
    from everypair.experiments.search import runner, store
    from everypair.experiments.search.work import work_for
    from everypair.experiments.training import winner

    work, default_workers = work_for(settings, device, str(folder))
    with store.open(storage or str(folder), create=True) as opened:
        before = opened.records()
        display = Display(Console(stderr=True), [r for r in before if r.state != "failed"])
        models = winner.BestSeeds(folder, before)

        def on_event(event: runner.Event) -> None:
            if event.kind == "begin":  # not before the store has agreed to the settings
                for note in filter(None, notes):
                    display.console.print(note, soft_wrap=True, highlight=False, markup=False)
            if event.record is not None:
                models.add(event.record)
            display(event)

        try:
            with display:
                runner.run(
                    grid,
                    settings,
                    opened,
                    work=work,
                    workers=workers or default_workers,
                    tpe_trials=tpe_trials,
                    on_event=on_event,
                )
        except KeyboardInterrupt:
            counts = opened.counts()
            typer.echo(
                f"everypair: stopped. {counts.finished} of {sum(counts)} trials are finished and "
                "kept; the same command continues.",
                err=True,
            )
            raise SystemExit(130) from None
        study = report.study_of(opened, settings)
        model = winner.crown(folder, study.records)
    paths = report.write(study, settings, folder)
    if as_json:
        said = {**report.as_json(study), "files": [str(path) for path in paths.files]}
        typer.echo(json.dumps({**said, "model": model and str(model)}, allow_nan=False))
    else:
        console = Console()
        report.show(console, study, settings)
        console.print(f"The page: {paths.page}", soft_wrap=True, highlight=False)
        if model:
            console.print(f"The best model: {model}", soft_wrap=True, highlight=False)
    _complain_of_failures(study)


def _complain_of_failures(study: Study) -> None:
    failed = [record for record in study.records if record.state == "failed"]
    if not failed:
        return
    typer.echo(
        f"everypair: {len(failed)} of {len(study.records)} trials failed ({failed[0].reason}). "
        "The same command tries them again.",
        err=True,
    )
    if len(failed) == len(study.records):
        raise SystemExit(1)


def _table_read(table: TableFile, dataset: Dataset, left_out: Sequence[str]) -> str:
    """Say what a user's table turned out to be."""
    n, n_pos = len(dataset.positive), int(dataset.positive.sum())
    said = f"{Path(table.path).name}: {n:,} rows, {n_pos:,} of them positive"
    said += f" ({dataset.positive_name})."
    if left_out:
        shown = ", ".join(map(repr, left_out[:8])) + ", ..." * (len(left_out) > 8)
        said += f" Left out, since they never vary or never repeat: {shown}."
    return said


def _too_few(fewest: dict[float, int]) -> str:
    """Say where validation has too few positives to choose by, if anywhere."""
    few = {imratio: n for imratio, n in fewest.items() if n < FEW_POSITIVES}
    said = ", ".join(f"{n} at imratio {i:g}" if i else f"{n}" for i, n in few.items())
    if not few:
        return ""
    return (
        f"Few positives to choose by: validation has {said}. What is selected there is mostly "
        "luck; trust the intervals, not the means."
    )


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"--device {name} cannot be used here: {why}") from None
    return name

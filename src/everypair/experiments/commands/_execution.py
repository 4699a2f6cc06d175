"""Execute ``everypair experiment``: run the trials, report them, and keep the best model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from everypair.experiments.data.sources import Dataset
    from everypair.experiments.plan import Grid, Settings
    from everypair.experiments.report import Study


def execute(
    grid: Grid,
    settings: Settings,
    dataset: Dataset,
    folder: Path,
    storage: str | None,
    workers: int | None,
    choice: dict[str, int | None],  # how trials are chosen; see `runner.run`
    device: str,
    as_json: bool,
    notes: Sequence[str],
) -> None:
    from rich.console import Console

    from everypair.experiments import report
    from everypair.experiments.commands._display import Display
    from everypair.experiments.commands.report import write_and_show
    from everypair.experiments.contenders.outcome import conclude
    from everypair.experiments.search import runner, store
    from everypair.experiments.search.work import work_for
    from everypair.experiments.training import winner

    work, default_workers = work_for(settings, device, str(folder), families=bool(grid.spaces))
    with store.open(storage or str(folder), create=True) as opened:
        before = opened.records()
        done = [record for record in before if record.state != "failed"]
        display = Display(Console(stderr=True), done, epochs=settings.epochs)
        models = winner.BestSeeds(folder, before)

        def on_event(event: runner.Event) -> None:
            if event.kind == "begin" and event.stage == 1:  # the store has accepted the settings
                for note in filter(None, notes):
                    display.console.print(note, soft_wrap=True, highlight=False, markup=False)
            if event.record is not None:
                models.add(event.record)
            display(event)

        try:
            with display:
                options = {"workers": workers or default_workers, **choice}
                runner.run(grid, settings, opened, work=work, on_event=on_event, **options)
        except KeyboardInterrupt:
            counts = opened.counts()
            typer.echo(
                f"everypair: stopped. {counts.finished} of {sum(counts)} trials are finished and "
                "kept; the same command continues.",
                err=True,
            )
            raise SystemExit(130) from None
        study = report.study_of(opened, settings)
        if grid.spaces:
            with display.console.status("Comparing the models") as status:
                model = conclude(
                    folder,
                    dataset,
                    study.records,
                    skipped=grid.skipped,
                    threads=default_workers,
                    say=status.update,
                )
        else:
            model = winner.keep_winner(folder, study.records)
    write_and_show(study, folder, as_json=as_json, model=model)
    _report_failures(study)


def _report_failures(study: Study) -> None:
    """Print how many trials failed; exit with code 1 if all did."""
    if not (failed := [record for record in study.records if record.state == "failed"]):
        return
    typer.echo(
        f"everypair: {len(failed)} of {len(study.records)} trials failed ({failed[0].reason}). "
        "The same command tries them again.",
        err=True,
    )
    if len(failed) == len(study.records):
        raise SystemExit(1)


def usable_device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name} cannot be used here: {reason}") from None
    return name

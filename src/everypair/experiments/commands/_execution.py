"""Execute ``everypair experiment``: run the trials, report them, and keep the best model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from everypair.experiments import _terminal
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from everypair.experiments.commands._display import Display
    from everypair.experiments.data.sources import Dataset
    from everypair.experiments.plan import Grid, Settings
    from everypair.experiments.report import Study


TIME_IS_UP = 75
"""Exit code if ``--minutes`` ended a run: EX_TEMPFAIL of sysexits.h, "try again later"."""


def deadline_after(minutes: float | None) -> float:
    """Return the value that ``time.monotonic()`` has after so many minutes; infinity for None."""
    return math.inf if minutes is None else time.monotonic() + 60.0 * minutes


@dataclass(frozen=True)
class Execution:
    """Where and how trials are run: the options that do not change their results."""

    folder: Path
    storage: str | None = None  # URL of a database; None: a file in the folder
    workers: int | None = None
    device: str = "cpu"
    deadline: float = math.inf  # see `runner.run`
    together: int | None = None  # see `work_for`, as the next two
    mixed: bool = False
    compiled: bool = False

    def run(
        self,
        grid: Grid,
        settings: Settings,
        dataset: Dataset,
        choice: Mapping[str, Any],  # how trials are chosen; see `runner.run`
        notes: Sequence[str],
        *,
        as_json: bool,
    ) -> None:
        """Run the trials with a display, then write the report and the best model."""
        from everypair.experiments import report
        from everypair.experiments.commands._display import Display
        from everypair.experiments.commands.report import write_and_show
        from everypair.experiments.search import runner, store
        from everypair.experiments.search.work import GRAPH_TRIALS, work_for
        from everypair.experiments.training import winner

        work, default_workers = work_for(
            settings,
            self.device,
            str(self.folder),
            families=bool(grid.spaces),
            together=self.together or GRAPH_TRIALS,
            mixed=self.mixed,
            compiled=self.compiled,
        )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"--out must be a folder; {self.folder} cannot be one: {error.strerror}."
            ) from error
        with store.open(self.storage or str(self.folder), create=True) as opened:
            before = opened.records()
            done = [record for record in before if record.state != "failed"]
            display = Display(_terminal.console(stderr=True), done, epochs=settings.epochs)
            models = winner.BestSeeds(self.folder, before)

            def on_event(event: runner.Event) -> None:
                if event.kind == "begin" and event.stage == 1:  # the settings are accepted
                    for note in filter(None, notes):
                        display.console.print(note, soft_wrap=True)
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
                        workers=self.workers or default_workers,
                        deadline=self.deadline,
                        on_event=on_event,
                        **choice,
                    )
            except KeyboardInterrupt:
                _stop("stopped", display.progress(opened.counts()), 130)
            except runner.TimeIsUpError:
                _stop("the time is up", display.progress(opened.counts()), TIME_IS_UP)
            study = report.study_of(opened, settings)
            if grid.spaces:
                model = _conclude(self.folder, dataset, study, grid, default_workers, display)
            else:
                model = winner.keep_winner(self.folder, study.records)
        write_and_show(study, self.folder, as_json=as_json, model=model)
        _report_failures(study)


def _stop(reason: str, progress: str, code: int) -> NoReturn:
    _terminal.echo(
        f"everypair: {reason}. {progress} are finished and kept; the same command continues.",
        err=True,
    )
    raise SystemExit(code) from None


def _conclude(
    folder: Path, dataset: Dataset, study: Study, grid: Grid, threads: int, display: Display
) -> Path | None:
    """Compare the models for a table, save the best one, and return its path."""
    from rich.text import Text

    from everypair.experiments.contenders.outcome import conclude

    console = display.console
    with console.status("") as status:

        def say(text: str) -> None:
            status.update(Text(_terminal.printable(text)))
            if not console.is_terminal:  # where a status is not shown
                console.print(f"{text}.", soft_wrap=True)

        return conclude(
            folder, dataset, study.records, skipped=grid.skipped, threads=threads, say=say
        )


def _report_failures(study: Study) -> None:
    """Print how many trials failed; exit with code 1 if all did."""
    if not (failed := [record for record in study.records if record.state == "failed"]):
        return
    _terminal.echo(
        f"everypair: {len(failed)} of {len(study.records)} trials failed ({failed[0].reason}). "
        "The same command tries them again.",
        err=True,
    )
    if len(failed) == len(study.records):
        raise SystemExit(1)


def usable_device(name: str) -> str:
    """Return the device of ``--device``; raise UserError if it cannot be used."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name} cannot be used here: {reason}") from None
    return name

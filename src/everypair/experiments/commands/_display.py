"""Show the progress of an experiment on standard error: live on a terminal, else as lines."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from everypair.experiments._terminal import printable
from everypair.experiments.display_names import display_name
from everypair.experiments.plan import Record, Trial

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from everypair.experiments.search.runner import Event
    from everypair.experiments.search.store import Counts

_LINE_SECONDS = 10.0  # between two lines, if standard error is not a terminal


class Display:
    """Shows the events of `runner.run`; a context manager.

    Parameters
    ----------
    console : Console
    done : iterable of Record
        The trials that the store had before; the best values so far include them.
    epochs : int
        Of each trial. The bar counts a trial that runs by the share of its epochs that is done; on
        a GPU many trials end at the same time, and the bar would not move until then. 0: trials
        without epochs.
    """

    def __init__(self, console: Console, done: Iterable[Record] = (), *, epochs: int = 0) -> None:
        from rich import progress
        from rich.live import Live

        self.console = console
        self.best: dict[tuple[str, float], float] = {}  # by loss and imratio
        self.states: Counter[str] = Counter()
        self.epoch = ""
        self.epochs = epochs
        self.stage = ""  # such as "Stage 2 of 6: "; empty if there is one stage
        self._epochs_done: dict[Trial, float] = {}  # of the trials that run
        self._printed = time.monotonic()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}Trials"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left:"),
            progress.TimeRemainingColumn(),
            console=console,
            speed_estimate_period=300,  # seconds; long, because trials differ in length
        )
        self._task = self._bar.add_task("", total=None)
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        for record in done:
            self._add(record)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if event.n_stages > 1:
            self.stage = f"Stage {event.stage} of {event.n_stages}: "
        if event.record is not None:
            self._add(event.record)
            self._epochs_done.pop(event.record.trial, None)
        if event.kind in ("died", "separated"):
            self._epochs_done.clear()  # the other workers report their next epoch
        if event.kind == "separated":
            text = f"A group of several losses failed ({event.reason}). Each loss is tried alone."
            self.console.print(text, soft_wrap=True)
        if event.row is not None and event.trials:
            self._epochs_done |= dict.fromkeys(event.trials, event.row["epoch"])
            self.epoch = self._epoch_text(event.trials, event.row)
        if event.kind == "waiting":
            self.epoch = f"Waiting for {event.counts.running} trials that other processes run"
        total = sum(event.counts)
        if self.console.is_terminal:
            share = sum(self._epochs_done.values()) / max(1, self.epochs)
            finished = event.counts.finished + share
            self._bar.update(self._task, completed=finished, total=total, description=self.stage)
            self._live.update(self._picture())
        elif time.monotonic() - self._printed > _LINE_SECONDS or event.kind == "end":
            self._printed = time.monotonic()
            running = f" {self.epoch}." if self._epochs_done else ""
            done = f"{self.progress(event.counts)}{self._lost()}."
            line = f"{done}{running} {self._bests()}"
            self.console.print(line, soft_wrap=True)

    def progress(self, counts: Counts) -> str:
        """Return how many trials are finished, in words."""
        return f"{self.stage}{counts.finished} of {sum(counts)} trials"

    def _add(self, record: Record) -> None:
        self.states[record.state] += 1
        if math.isfinite(record.validation_auc):
            key = (record.trial.cell.loss, record.trial.cell.imratio)
            self.best[key] = max(self.best.get(key, 0.0), record.validation_auc)

    def _epoch_text(self, trials: Sequence[Trial], row: Mapping[str, float]) -> str:
        cell = trials[0].cell
        ratio = f", imratio {cell.imratio:g}" if cell.imratio else ""
        together = f", {len(trials)} trials together" if len(trials) > 1 else ""
        return (
            f"{display_name(cell.loss)}{ratio}{together}: epoch "
            f"{row['epoch']:.0f} of {self.epochs}, validation AUC {row['validation_auc']:.4f}"
        )

    def _lost(self) -> str:
        counts = [f"{self.states[s]} {s}" for s in ("diverged", "failed") if self.states[s]]
        return f" ({', '.join(counts)})" if counts else ""

    def _bests(self) -> str:
        values = (
            f"{display_name(loss)} {value:.4f}" + (f" at {imratio:g}" if imratio else "")
            for (loss, imratio), value in self.best.items()
        )
        return f"Best validation AUC: {', '.join(values) or 'none yet'}"

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title="Best validation AUC so far", title_justify="left", box=None)
        imratios = sorted({imratio for _, imratio in self.best}, reverse=True)
        table.add_column("")
        for imratio in imratios:
            table.add_column(f"imratio {imratio:g}" if imratio else "all rows", justify="right")
        for loss in dict.fromkeys(loss for loss, _ in self.best):
            found = (self.best.get((loss, imratio)) for imratio in imratios)
            cells = ("" if value is None else f"{value:.4f}" for value in found)
            table.add_row(display_name(loss), *cells)
        below = Text(printable(f"{self.epoch}{self._lost()}"), style="dim")
        return Group(self._bar, *([table] if self.best else []), below)

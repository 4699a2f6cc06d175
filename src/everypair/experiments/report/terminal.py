"""The report for a terminal: who leads, what was selected, differences, losses, cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from everypair.experiments.report import tables, wording
from everypair.experiments.report.study import Study
from everypair.experiments.selection import Contender

__all__ = ["parts"]


def parts(study: Study) -> Iterator[RenderableType]:
    """Yield what is printed, from the most to the least wanted."""
    if study.unfinished:
        done = f"{len(study.records):,} of {study.planned:,} trials are done"
        yield Text(f"Unfinished: {done}; results may still change.", style="yellow")
    yield _selected(study)
    for place in study.standings.values():
        yield Text(f"{wording.task(place.task, study.settings)}: ", style="bold").append(
            wording.standing(place, study.called), style="not bold"
        )
    if study.gaps:
        yield _differences(study)
    n_lost = sum(record.state != "finished" for record in study.records)
    if n_lost:
        yield _lost(study)
    yield _cost(study)


def _selected(study: Study) -> Table:
    columns = ("data", "imratio", "loss + optimiser", ">test AUC", ">seeds", ">batch", ">rate")
    table = _table("Test AUC of what had the greatest validation AUC (mean ± sd)", columns)
    previous = None
    for summary in study.summed:
        place = study.standings.get(summary.task)
        table.add_row(
            wording.data(summary.task.data, study.settings),
            wording.imratio(summary.task.imratio),
            wording.contender(summary.contender),
            wording.spread(summary.mean, summary.sd),
            str(summary.n),
            wording.batch(summary.batch),
            wording.rate(summary.rate) + (" *" if summary.n_at_edge else ""),
            style="bold" if place and place.leader == summary.contender else "",
        )
        if previous not in (None, summary.task):
            # The line belongs above this row, and rich draws lines below.
            table.rows[-2].end_section = True
        previous = summary.task
    if any(summary.n_at_edge for summary in study.summed):
        table.caption = "* selected at the edge of the rates tried: a better one may lie beyond"
    return table


def _differences(study: Study) -> Table:
    columns = ("data", "imratio", "first", "second", ">mean", ">95 % interval", ">seeds", "ahead")
    table = _table("Paired differences in test AUC, first minus second", columns)
    for gap in study.gaps:
        table.add_row(
            wording.data(gap.task.data, study.settings),
            wording.imratio(gap.task.imratio),
            study.called(gap.first),
            study.called(gap.second),
            wording.signed(gap.mean),
            wording.interval(gap),
            str(gap.n),
            wording.ahead(gap, study.called),
        )
    return table


def _lost(study: Study) -> Table:
    columns = ("data", "imratio", "loss + optimiser", ">rate", "state", ">trials")
    table = _table("What diverged or failed", columns)
    for row in tables.losses_of_trials(study.summed):
        table.add_row(
            wording.data(row["data"], study.settings),
            wording.imratio(row["imratio"]),
            wording.contender(Contender(row["loss"], row["optimiser"])),
            wording.rate(row["rate"]),
            row["state"],
            f"{row['n']} of {row['n_tried']}",
        )
    return table


def _cost(study: Study) -> Table:
    table = _table("Cost", ("loss + optimiser", ">trials", ">time of all", ">a trial"))
    for row in tables.cost(study.summed):
        table.add_row(
            wording.contender(Contender(row["loss"], row["optimiser"])),
            f"{row['n_trials']:,}",
            wording.duration(row["seconds"]),
            wording.duration(row["seconds_per_trial"]),
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    """Return an empty table; columns that begin with > are right-aligned."""
    from rich import box

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.caption_justify = "left"
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name[0] == ">" else "left")
    return table

"""The report for a terminal: who leads, what was selected, differences, losses, cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from everypair.experiments.report import tables, wording
from everypair.experiments.report.selection import Contender, Task
from everypair.experiments.report.study import Study

__all__ = ["parts"]

_MOST_DIFFERENCES = 12  # of which a person still reads every one


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
    yield ""
    if any(gap.n for gap in study.gaps):
        yield _differences(study)
    n_lost = sum(record.state != "finished" for record in study.records)
    if n_lost:
        yield _lost(study)
    yield _cost(study)


def _selected(study: Study) -> RenderableType:
    columns = (*_places(study), "loss", ">test AUC", ">seeds", ">batch", ">rate")
    table = _table(columns)
    previous = None
    for summary in study.summed:
        place = study.standings.get(summary.task)
        table.add_row(
            *_place(study, summary.task),
            study.called(summary.contender),
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
    edge = "* selected at the edge of the rates tried: a better one may lie beyond\n"
    title = "test AUC of what had the greatest validation AUC (mean ± sd)"
    below = [edge] if any(summary.n_at_edge for summary in study.summed) else []
    return _titled(study, title, table, *below)


def _differences(study: Study) -> RenderableType:
    gaps, below = study.gaps, []
    if len(gaps) > _MOST_DIFFERENCES:
        leaders = {place.task: place.leader for place in study.standings.values()}
        gaps = [gap for gap in gaps if leaders.get(gap.task) in (gap.first, gap.second)]
        below = [f"{len(study.gaps) - len(gaps)} more, without a leader, are on the page\n"]
    n_seeds = {gap.n for gap in gaps}
    columns = [*_places(study), "first", "second", ">mean", ">95 % interval", "ahead"]
    title = "paired differences in test AUC, first minus second"
    if len(n_seeds) > 1:
        columns.append(">seeds")
    else:
        title += f", {wording.amount(n_seeds.pop(), 'seed')}"
    table = _table(columns)
    for gap in gaps:
        cells = [
            *_place(study, gap.task),
            study.called(gap.first),
            study.called(gap.second),
            wording.signed(gap.mean),
            wording.interval(gap),
            wording.ahead(gap, study.called),
            str(gap.n),
        ]
        table.add_row(*cells[: len(columns)])
    return _titled(study, title, table, *below)


def _lost(study: Study) -> RenderableType:
    columns = (*_places(study), "loss", ">rate", "state", ">trials")
    table = _table(columns)
    for row in tables.losses_of_trials(study.summed):
        table.add_row(
            *_place(study, Task(row["data"], row["imratio"])),
            study.called(Contender(row["loss"], row["optimiser"])),
            wording.rate(row["rate"]),
            row["state"],
            f"{row['n']} of {row['n_tried']}",
        )
    return _titled(study, "what diverged or failed", table)


def _cost(study: Study) -> RenderableType:
    table = _table(("loss + optimiser", ">trials", ">time of all", ">a trial"))
    for row in tables.cost(study.summed):
        table.add_row(
            wording.contender(Contender(row["loss"], row["optimiser"])),
            f"{row['n_trials']:,}",
            wording.duration(row["seconds"]),
            wording.duration(row["seconds_per_trial"]),
        )
    return _titled(study, "cost", table)


def _places(study: Study) -> list[str]:
    """Return the columns that tell tasks apart; what all share stands in the title."""
    tasks = list(study.by_task)
    return [
        name
        for name in Task._fields
        if any(getattr(task, name) != getattr(tasks[0], name) for task in tasks)
    ]


def _place(study: Study, task: Task) -> list[str]:
    said = {
        "data": wording.data(task.data, study.settings),
        "imratio": wording.imratio(task.imratio),
    }
    return [said[name] for name in _places(study)]


def _table(columns: Sequence[str]) -> Table:
    """Return an empty table; columns that begin with > are right-aligned and never wrap."""
    from rich import box

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        right = name[0] == ">"
        table.add_column(name.lstrip(">"), justify="right" if right else "left", no_wrap=right)
    return table


def _titled(study: Study, title: str, table: Table, *below: str) -> RenderableType:
    """Put words above and below a table; not its own title, which wraps at the table's width."""
    names = {wording.data(task.data, study.settings) for task in study.by_task}
    title = f"{names.pop()}: {title}" if len(names) == 1 else title[0].upper() + title[1:]
    return Group(Text(title, style="bold"), table, *below)

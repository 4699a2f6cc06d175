"""The report for a terminal: selected trials, leaders, differences, lost trials, cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from everypair.experiments._terminal import printable
from everypair.experiments.report import tables, wording
from everypair.experiments.report.selection import Comparison, Contender
from everypair.experiments.report.study import Study

_MOST_DIFFERENCES = 12  # more are shortened to those with a leader


def parts(study: Study) -> Iterator[RenderableType]:
    """Yield the parts of the report, the most important first."""
    if study.unfinished:
        done = f"{len(study.records):,} of {study.planned:,} trials are done"
        yield Text(f"Unfinished: {done}; results may still change.", style="yellow")
    yield _selected(study)
    for comparison, place in study.standings.items():
        name = Text(printable(f"{wording.comparison(comparison, study.settings)}: "), style="bold")
        yield name.append(wording.standing(place, study.called), style="not bold")
    yield ""
    if any(gap.n for gap in study.gaps):
        yield _differences(study)
    if any(record.state != "finished" for record in study.records):
        yield _lost(study)
    yield _cost(study)


def _selected(study: Study) -> RenderableType:
    table = _table((*_place(study), "loss", ">test AUC", ">seeds", ">batch", ">rate"))
    for comparison, summed in study.by_comparison.items():
        place = study.standings.get(comparison)
        for summary in summed:
            table.add_row(
                *_place(study, comparison).values(),
                study.called(summary.contender),
                wording.spread(summary.mean, summary.sd),
                str(summary.n),
                wording.batch(summary.batch),
                wording.rate(summary.rate) + (" *" if summary.n_at_edge else ""),
                style="bold" if place and place.leader == summary.contender else "",
            )
        table.add_section()
    edge = "* the smallest or largest rate that was tried: a better one may lie beyond\n"
    title = "test AUC of the trials with the greatest validation AUC (mean ± sd)"
    below = [edge] if any(summary.n_at_edge for summary in study.summed) else []
    return _titled(study, title, table, *below)


def _differences(study: Study) -> RenderableType:
    gaps, below = study.gaps, []
    if len(gaps) > _MOST_DIFFERENCES:
        leaders = {place.comparison: place.leader for place in study.standings.values()}
        gaps = [gap for gap in gaps if leaders.get(gap.comparison) in (gap.first, gap.second)]
        below = [f"{len(study.gaps) - len(gaps)} more, without a leader, are on the page\n"]
    n_seeds = {gap.n for gap in gaps}
    columns = [*_place(study), "first", "second", ">mean", ">95 % interval", "ahead"]
    title = "paired differences in test AUC, first minus second"
    if len(n_seeds) > 1:
        columns.append(">seeds")
    else:
        title += f", {wording.amount(n_seeds.pop(), 'seed')}"
    table = _table(columns)
    for gap in gaps:
        cells = [
            *_place(study, gap.comparison).values(),
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
    table = _table((*_place(study), "loss", ">rate", "state", ">trials"))
    for row in tables.lost_trials(study.summed):
        table.add_row(
            *_place(study, Comparison(row["data"], row["imratio"])).values(),
            study.called(Contender(row["loss"], row["optimiser"])),
            wording.rate(row["rate"]),
            row["state"],
            f"{row['n']} of {row['n_tried']}",
        )
    return _titled(study, "what diverged or failed", table)


def _cost(study: Study) -> RenderableType:
    table = _table(("loss + optimiser", ">trials", ">total time", ">time per trial"))
    for row in tables.cost(study.summed):
        table.add_row(
            wording.contender(Contender(row["loss"], row["optimiser"])),
            f"{row['n_trials']:,}",
            wording.duration(row["seconds"]),
            wording.duration(row["seconds_per_trial"]),
        )
    return _titled(study, "cost", table)


def _place(study: Study, comparison: Comparison | None = None) -> dict[str, str]:
    """Return the columns that differ between comparisons; a common data set is in the title."""
    data, imratio = comparison or study.summed[0].comparison
    cells = {"data": wording.data(data, study.settings), "positives": wording.share(imratio)}
    differing = [len(set(values)) > 1 for values in zip(*study.by_comparison, strict=True)]
    return dict(compress(cells.items(), differing))


def _table(columns: Sequence[str]) -> Table:
    """Return an empty table; columns that begin with > are right-aligned and never wrap."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        right = name[0] == ">"
        table.add_column(name.lstrip(">"), justify="right" if right else "left", no_wrap=right)
    return table


def _titled(study: Study, title: str, table: Table, *below: str) -> RenderableType:
    """Put a title and notes around a table; the title may be wider than the table."""
    names = {wording.data(comparison.data, study.settings) for comparison in study.by_comparison}
    title = f"{names.pop()}: {title}" if len(names) == 1 else title[0].upper() + title[1:]
    return Group(Text(printable(title), style="bold"), table, *below)

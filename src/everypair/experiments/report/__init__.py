"""Tables, figures and one HTML page from the records of an experiment.

`write` writes files into a folder, `show` prints the tables to a terminal. Both take records, an
open store or a `Study`, finished or not. `selection` holds the statistics, `figures` all plots, and
``templates/`` the HTML of the page.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everypair.experiments._atomic import replacing
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Record, Settings
from everypair.experiments.report.study import Study

if TYPE_CHECKING:
    from rich.console import Console

    from everypair.experiments.search.store import Store

__all__ = ["FORMATS", "Paths", "Study", "as_json", "show", "study_of", "write"]

FORMATS = ("html", "csv", "png", "svg")
"""The formats that `write` knows."""


@dataclass(frozen=True)
class Paths:
    """The files that were written."""

    folder: Path
    files: tuple[Path, ...]

    @property
    def page(self) -> Path | None:
        """Return the HTML page; None if that format was not asked for."""
        return next((path for path in self.files if path.suffix == ".html"), None)


def study_of(
    source: Store | Iterable[Record] | Study,
    settings: Settings,
    *,
    planned: int | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Study:
    """Gather the input of a report.

    Parameters
    ----------
    source : Store, iterable of Record, or Study
        Records are in the order of the grid.
    settings : Settings
        The settings of all trials. They replace those of a study.
    planned : int, optional
        Number of trials when the experiment has ended. Default: all trials of a store, the number
        in a study, or the number of records.
    folder : path, optional
        The folder of the experiment, where files about a user's table are. Default: that of a
        study.
    """
    where = None if folder is None else Path(folder)
    if isinstance(source, Study):
        planned = source.planned if planned is None else planned
        where = where or source.folder
        same = (settings, planned, where) == (source.settings, source.planned, source.folder)
        if same:
            return source
        return replace(source, settings=settings, planned=planned, folder=where)
    records = tuple(source if isinstance(source, Iterable) else source.records())
    if planned is None:
        planned = len(records) if isinstance(source, Iterable) else sum(source.counts())
    if not records:
        raise UserError(
            "a report needs at least one trial that has ended; there is none yet. "
            "Start or resume the experiment first: everypair experiment"
        )
    return Study(records, settings, planned, where)


def write(
    source: Store | Iterable[Record] | Study,
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    formats: Collection[str] = FORMATS,
    planned: int | None = None,
) -> Paths:
    """Write the files of the report, each one atomically.

    Parameters
    ----------
    source, settings, planned
        As for `study_of`.
    folder : path
        Folder for the files; created if it does not exist.
    formats : collection of str
        Any of ``html``, ``csv``, ``png``, ``svg``.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        raise UserError(f"formats must be among {', '.join(FORMATS)}; got {', '.join(unknown)}.")
    study = study_of(source, settings, planned=planned)
    if study.folder is None:
        study = study_of(study, settings, folder=folder)
    written = []
    for name, content in _contents(study, formats):
        written.append(Path(folder) / name)
        try:
            with replacing(written[-1]) as draft:
                draft.write_bytes(content)
        except OSError as error:
            raise UserError(
                f"{written[-1]} could not be written: {error.strerror or error}. The trials are "
                "safe in the store; write the report elsewhere with `everypair report STORE --out`."
            ) from error
    return Paths(Path(folder), tuple(written))


def show(
    console: Console,
    source: Store | Iterable[Record] | Study,
    settings: Settings,
    *,
    planned: int | None = None,
) -> None:
    """Print the tables of the report to a rich console."""
    from everypair.experiments.report import terminal

    for part in terminal.parts(study_of(source, settings, planned=planned)):
        console.print(part)


def as_json(study: Study) -> dict[str, Any]:
    """Return the report's tables as plain lists and numbers; NaN becomes None."""
    from everypair.experiments.report import tables

    plain: dict[str, Any] = {
        name: [{k: None if v != v else v for k, v in row.items()} for row in rows]
        for name, rows in tables.everything(study).items()
    }
    facts = study.facts
    if facts.data:
        plain["data"] = facts.data
    if facts.scores:
        plain["thresholds"] = [one._asdict() for one in facts.scores.thresholds()]
    return {"n_trials": len(study.records), "n_planned": study.planned, **plain}


def _contents(study: Study, formats: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files, the fastest first."""
    from everypair.experiments.report import figures, page, tables

    facts = study.facts
    if "csv" in formats and facts.summary:
        for file, rows in tables.of_table(facts.summary, facts).items():
            yield f"{file}.csv", tables.as_csv(rows).encode()
    elif "csv" in formats:
        found = tables.everything(study)
        for file, name in tables.CSV.items():
            yield f"{file}.csv", tables.as_csv(found[name], name).encode()
    if "html" in formats:
        yield "report.html", page.page(study).encode()
    kinds = [kind for kind in ("png", "svg") if kind in formats]
    drawings = {name: partial(draw, study) for name, draw in figures.FIGURES.items()}
    if facts.summary:
        scores = facts.scores
        drawings = {"winner": partial(figures.file_winner, scores)} if scores else {}
    for file, draw in drawings.items() if kinds else ():
        drawn = draw()
        for kind in kinds:
            yield f"{file}.{kind}", figures.saved(drawn, kind)

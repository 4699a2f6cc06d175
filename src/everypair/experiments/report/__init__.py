"""Tables, figures and one HTML page from the records of an experiment.

`write` puts files into a folder, `show` prints the tables to a terminal; both read records or an
open store, finished or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
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
"""What `write` can write."""


@dataclass(frozen=True)
class Paths:
    """What was written."""

    folder: Path
    files: tuple[Path, ...]

    @property
    def page(self) -> Path | None:
        """Return the HTML page, where it was asked for."""
        return next((path for path in self.files if path.suffix == ".html"), None)


def study_of(
    source: Store | Iterable[Record], settings: Settings, *, planned: int | None = None
) -> Study:
    """Gather what a report is made from.

    Parameters
    ----------
    source : Store or iterable of Record
        Records stand in the order of the grid. A store also knows what is still to come.
    settings : Settings
        What all trials shared.
    planned : int, optional
        How many trials there will be in the end. Of a store: what it holds. Else: as many as came.
    """
    if isinstance(source, Iterable):
        records = tuple(source)
    else:
        records = tuple(source.records())
        planned = sum(source.counts()) if planned is None else planned
    if not records:
        raise UserError(
            "a report needs at least one trial that has ended; there is none yet. "
            "Start or resume the experiment first: everypair experiment"
        )
    return Study(records, settings, len(records) if planned is None else planned)


def write(
    source: Store | Iterable[Record] | Study,
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    formats: Collection[str] = FORMATS,
    planned: int | None = None,
) -> Paths:
    """Write the report's files; each appears whole or not at all.

    Parameters
    ----------
    source, settings, planned
        As `study_of` takes them.
    folder : path
        Where the files go; made if it is not there.
    formats : collection of str
        Any of ``html``, ``csv``, ``png``, ``svg``.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        raise UserError(f"formats must be among {', '.join(FORMATS)}; got {', '.join(unknown)}.")
    study = source if isinstance(source, Study) else study_of(source, settings, planned=planned)
    folder = Path(folder)
    written = []
    for name, content in _contents(study, formats):
        try:
            with replacing(folder / name) as draft:
                draft.write_bytes(content)
        except OSError as error:
            raise UserError(
                f"{folder / name} could not be written: {error.strerror or error}. The trials are "
                "safe in the store; write the report elsewhere with `everypair report STORE --out`."
            ) from error
        written.append(folder / name)
    return Paths(folder, tuple(written))


def show(
    console: Console,
    source: Store | Iterable[Record] | Study,
    settings: Settings,
    *,
    planned: int | None = None,
) -> None:
    """Print the tables of the report to a rich console."""
    from everypair.experiments.report import terminal

    study = source if isinstance(source, Study) else study_of(source, settings, planned=planned)
    for part in terminal.parts(study):
        console.print(part)


def as_json(study: Study) -> dict[str, Any]:
    """Return the report's tables as plain lists and numbers; what is not there is None."""
    from everypair.experiments.report import tables

    rows = {
        "selected": tables.table2(study.summed),
        "chosen": tables.figure3(study.summed),
        "differences": tables.differences(study.gaps),
        "lost": tables.losses_of_trials(study.summed),
        "cost": tables.cost(study.summed),
    }
    plain = {
        name: [{k: None if v != v else v for k, v in row.items()} for row in table]
        for name, table in rows.items()
    }
    return {"n_trials": len(study.records), "n_planned": study.planned, **plain}


def _contents(study: Study, formats: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files, the quick ones first."""
    from everypair.experiments.report import figures, page, tables

    if "csv" in formats:
        yield "table2.csv", tables.as_csv(tables.table2(study.summed)).encode()
        yield (
            "figure3.csv",
            tables.as_csv(tables.figure3(study.summed), tables.COLUMNS_FIGURE3).encode(),
        )
        yield (
            "differences.csv",
            tables.as_csv(tables.differences(study.gaps), tables.COLUMNS_DIFFERENCES).encode(),
        )
    if "html" in formats:
        yield "report.html", page.page(study).encode()
    kinds = [kind for kind in ("png", "svg") if kind in formats]
    drawers: dict[str, Callable[[Study], Any]] = figures.FIGURES if kinds else {}
    for name, draw in drawers.items():
        figure = draw(study)
        for kind in kinds:
            yield f"{name}.{kind}", figures.saved(figure, kind)

"""``everypair report STORE``: tables, figures and one HTML page from an experiment's store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everypair.experiments import _terminal
from everypair.experiments.commands._parameters import JsonFlag, check_folder, option

if TYPE_CHECKING:
    from everypair.experiments.report import Study


def command(
    store: Annotated[str, typer.Argument(help="Folder of an experiment, or its database's URL.")],
    out: Annotated[
        Path | None,
        option(
            "Folder for the files.",
            default="that of the experiment; report for a URL",
            callback=check_folder,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make tables, figures and one self-contained HTML page from an experiment."""
    from everypair.experiments import report
    from everypair.experiments.search.store import open as open_store

    with open_store(store, create=False) as opened:
        folder = None if "://" in store else store
        study = report.study_of(opened, opened.settings, folder=folder)
    origin = Path("report" if folder is None else folder)
    write_and_show(study, out or origin, origin, as_json=as_json)


def write_and_show(
    study: Study, folder: Path, origin: Path | None = None, *, as_json: bool, **best: Path | None
) -> None:
    """Write the files of a report into a folder, and print its tables or the same as JSON.

    `origin` is the folder of the experiment if it is another one; it has a summary if models were
    compared on a table. `best` may name the file of the best model: ``model=path`` is printed too.
    """
    from everypair.experiments import report
    from everypair.experiments.commands import _contenders as contenders
    from everypair.experiments.report import table_facts, wording

    paths = report.write(study, study.settings, folder)
    summary = table_facts.read_summary(origin or folder) or {}
    if as_json:
        plain = {**report.as_json(study), "files": [str(path) for path in paths.files], **summary}
        plain |= {name: path and str(path) for name, path in best.items()}
        _terminal.echo_json(plain, indent=None)
        return
    console = _terminal.console()
    if summary:
        contenders.show(console, summary)
    else:
        report.show(console, study, study.settings)
    console.print(f"The page: {paths.page}", soft_wrap=True)
    if picture := next((path for path in paths.files if path.suffix == ".png"), None):
        console.print(f"The picture: {picture}", soft_wrap=True)
    for name, path in best.items():
        if path:
            console.print(f"The best {name}: {path}", soft_wrap=True)
    if not summary and len(study.standings) == 1:
        [place] = study.standings.values()
        found = wording.standing(place, study.called)
        console.print(f"What was found: {found}", soft_wrap=True)

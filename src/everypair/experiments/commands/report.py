"""``everypair report STORE``: tables, figures and one HTML page from an experiment's store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]


def command(
    store: Annotated[
        str, typer.Argument(help="Folder of an experiment, or the URL of its database.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files. Default: the store's own, or report.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON instead.")
    ] = False,
) -> None:
    """Make tables, figures and one self-contained HTML page from an experiment."""
    import json

    from rich.console import Console

    from everypair.experiments import report
    from everypair.experiments.search.store import open as open_store

    with open_store(store, create=False) as opened:
        settings = opened.settings
        study = report.study_of(opened, settings)
    folder = out or Path("report" if "://" in store else store)
    paths = report.write(study, settings, folder)
    if as_json:
        files = [str(path) for path in paths.files]
        typer.echo(json.dumps({**report.as_json(study), "files": files}, allow_nan=False))
        return
    console = Console()
    report.show(console, study, settings)
    console.print(f"The page: {paths.page}", soft_wrap=True, highlight=False)

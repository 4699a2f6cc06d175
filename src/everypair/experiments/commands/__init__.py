"""The command line: one module per command, with its options and its printed output.

A module offers a function ``command`` whose parameters are typer's options; `app` gathers them. A
command raises `UserError` for errors that the user can correct. It imports other folders inside the
function, so that ``everypair --help`` is fast; no other folder imports from here.
"""

from __future__ import annotations

from typing import Annotated

import typer

import everypair
from everypair.experiments.commands import evaluate, experiment, geometry, predict, report, timing

app = typer.Typer(
    help="Train and evaluate scorers on every pair that should be in order.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"everypair {everypair.__version__}, {everypair.get_backend()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the full traceback of an unexpected error.")
    ] = False,
) -> None:
    pass


for _module in (experiment, report, predict, timing, geometry, evaluate):
    app.command(_module.__name__.rpartition(".")[2])(_module.command)

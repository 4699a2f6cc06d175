"""``everypair evaluate``: exact AUC or concordance and pair losses of a file of predictions."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everypair.experiments.commands._parameters import JsonFlag, option
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from everypair.experiments.figures.evaluation import Evaluation


class PairsOption(str, Enum):
    """The values of ``--pairs``."""

    binary = "binary"
    ordered = "ordered"
    survival = "survival"


def command(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with one row per prediction.")],
    scores: Annotated[
        str | None, option("Name of the score column.", default="score, prediction, ...")
    ] = None,
    labels: Annotated[
        str | None,
        option("Name of the label column.", default="label, target, y_true, time, ..."),
    ] = None,
    pairs: Annotated[
        PairsOption, option("What labels are: two classes, real targets, or survival times.")
    ] = PairsOption.binary,
    events: Annotated[
        str | None,
        option(
            "Column of events (1) and censored times (0).",
            default="event, died, ...; else negative times are censored",
        ),
    ] = None,
    weights: Annotated[str | None, option("Name of a weight column.", default="none")] = None,
    group: Annotated[
        str | None, option("Group column: only pairs inside a group count.", default="none")
    ] = None,
    positive: Annotated[
        str | None,
        option("Label of the positive class.", default="1, true or yes, else the rarer label"),
    ] = None,
    margin: Annotated[
        float | None,
        option("Margin of the pairwise losses.", default="that of each surrogate", min=0.0),
    ] = None,
    out: Annotated[
        Path | None,
        option("ROC curve: writes OUT.csv, .png and .svg, or only the file OUT.", default="none"),
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Evaluate a file of predictions: exact AUC with interval, pairwise losses, ROC curve.

    With --pairs ordered or survival, the concordance index instead of the AUC.
    """
    from rich.console import Console

    import everypair as ep
    from everypair.experiments.figures import evaluation, output

    if out is not None and pairs != PairsOption.binary:
        raise UserError(f"--out must be left out, because --pairs {pairs.value} has no ROC curve.")
    files = {} if out is None else output.targets(out, "roc", ("csv", "png", "svg"))
    with Console(stderr=True).status(f"Reading {file}"):
        predictions = evaluation.read(
            file, scores=scores, labels=labels, weights=weights, group=group, positive=positive,
            pairs=pairs.value, events=events,
        )  # fmt: skip
    try:
        found = evaluation.evaluate(predictions, margin=margin)
    except ValueError as error:  # from the library: infinite scores, negative weights, ...
        raise UserError(f"{file}: {error}") from error
    written = ""
    if files:
        curve = ep.roc_curve(predictions.scores, predictions.labels, weights=predictions.weights)
        rows = evaluation.curve_rows(curve)
        written = output.save_all(files, evaluation.draw(curve, found), rows)
    if json_:
        plain = {"file": str(file), "columns": predictions.columns, **asdict(found)}
        plain["written"] = [str(path) for path in files.values()]
        typer.echo(json.dumps(plain, indent=2))
        return
    _show(found, predictions.columns or {})
    if written:
        typer.echo(written)


def _show(found: Evaluation, columns: dict[str, str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from everypair import surrogates

    groups = "" if found.groups is None else f", {found.groups:,} groups"
    console = Console(highlight=False)
    rows, origin = f"{found.rows:,} rows", f"Scores from column {columns['scores']}"
    if found.pairs == "binary":
        rows += f": {found.positives:,} positive ({columns['positive']}), "
        rows += f"{found.negatives:,} negative"
    else:
        origin += (
            f", {'times' if found.pairs == 'survival' else 'targets'} from {columns['labels']}"
        )
        origin += f", events from {columns['events']}" if "events" in columns else ""
    console.print(f"{rows}{groups}. {origin}.", markup=False)
    inside = "" if groups == "" else ", inside groups"
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"over every pair{inside}")
    table.add_column("value", justify="right")
    name = "AUC" if found.pairs == "binary" else "concordance index"
    table.add_row(name, f"{found.auc:.6f}", style="bold")
    for average, value in (found.group_aucs or {}).items():
        weighted = "each group once" if average == "groups" else "groups by their rows"
        table.add_row(f"  mean, {weighted}", f"{value:.6f}")
    if found.auc_interval is not None:
        low, high = found.auc_interval
        table.add_row("  95 % interval (DeLong)", f"{low:.4f} to {high:.4f}")
    for name, loss in found.losses.items():
        margin = surrogates.get(name).default_margin if found.margin is None else found.margin
        table.add_row(f"{name}, margin {margin:g}", f"{loss:.6g}")
    console.print(table)

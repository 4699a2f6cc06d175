"""``everypair evaluate``: exact AUC or concordance and pair losses of files of predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everypair.experiments import _terminal
from everypair.experiments.commands._parameters import JsonFlag, margin_option, option
from everypair.experiments.errors import UserError

_GROUPS_SHOWN = 20

if TYPE_CHECKING:
    from everypair.experiments.figures.evaluation import Evaluation


class PairsOption(str, Enum):
    """The values of ``--pairs``."""

    binary = "binary"
    ordered = "ordered"
    survival = "survival"


def command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="CSV, Parquet or Arrow files of any size with one row per prediction, or a "
            "pattern in quotes.",
        ),
    ],
    scores: Annotated[
        str | None, option("Name of the score column.", default="score, prediction, ...")
    ] = None,
    compare: Annotated[
        str | None,
        option("Score column of another model: test the difference (DeLong).", default="none"),
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
            "Column of events: 1 or yes; 0 or no for censored times.",
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
    margin: Annotated[float | None, margin_option("that of each surrogate")] = None,
    loss: Annotated[
        list[str] | None,
        option("Pairwise loss to compute; may be repeated.", default="all, or one for large files"),
    ] = None,
    by_group: Annotated[
        bool, typer.Option("--by-group", help="Show each group as well; needs --group.")
    ] = False,
    bounded: Annotated[
        bool,
        typer.Option("--bounded", help="Use constant memory; show bounds of the errors."),
    ] = False,
    out: Annotated[
        Path | None,
        option("ROC curve: writes OUT.csv, .png and .svg, or only the file OUT.", default="none"),
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Evaluate files of predictions: exact AUC with interval, pairwise losses, ROC curve.

    With --pairs ordered or survival, the concordance index instead of the AUC.
    """
    from everypair.experiments._progress import progress
    from everypair.experiments.data import _chunks
    from everypair.experiments.figures import evaluation, output, roc_curve

    if by_group and group is None:
        raise UserError("--by-group needs --group, which names the column of the groups.")
    if out is not None and pairs != PairsOption.binary:
        raise UserError(f"--out must be left out, because --pairs {pairs.value} has no ROC curve.")
    if bounded and out is not None:
        raise UserError("--bounded must be used without --out, because it keeps no rows.")
    _check_losses(loss or ())
    targets = {} if out is None else output.targets(out, "roc", ("csv", "png", "svg"))
    paths = _chunks.files_of(files)
    total = sum(path.stat().st_size for path in paths if path.is_file())
    with progress(f"Reading {_shown(paths)}", total, in_bytes=True) as advance:
        predictions = evaluation.read(
            paths, scores=scores, labels=labels, weights=weights, group=group, positive=positive,
            pairs=pairs.value, events=events, bounded=bounded, compare=compare, advance=advance,
        )  # fmt: skip
    try:
        found = evaluation.evaluate(predictions, margin=margin, losses=loss, by_group=by_group)
    except (OverflowError, ValueError) as error:  # from the library: no pairs in groups, ...
        raise UserError(f"{_shown(paths)}: {error}") from error
    if pairs == PairsOption.survival and "events" not in predictions.columns:
        n_censored = int((predictions.arrays["labels"] < 0.0).sum())
        _terminal.echo(
            f"No column of events was named (--events) or found: {n_censored:,} negative times are "
            "censored, and all others are events.",
            err=True,
        )
    written = ""
    if targets:
        curve = roc_curve.curve(predictions)
        rows = roc_curve.curve_rows(curve)
        written = output.save_all(targets, roc_curve.draw(curve, found), rows)
    if json_:
        plain = {"files": [str(path) for path in paths], "columns": predictions.columns}
        plain |= asdict(found) | {"written": [str(path) for path in targets.values()]}
        _terminal.echo_json(plain)
        return
    _show(found, predictions.columns)
    if (
        found.pairs == "binary"
        and not bounded
        and loss is None
        and found.rows > evaluation.ALL_LOSSES_UP_TO
    ):
        _terminal.echo("Other losses of this many rows take long: --loss NAME computes one.")
    if written:
        _terminal.echo(written)


def _check_losses(names: Sequence[str]) -> None:
    """Raise UserError if a name of ``--loss`` is unknown."""
    import difflib

    from everypair import surrogates

    known = surrogates.names()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f" Did you mean {near[0]}?" if near else ""
            raise UserError(f"--loss must be one of {', '.join(known)}; got {name!r}.{advice}")


def _shown(paths: list[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _show(found: Evaluation, columns: dict[str, str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from everypair import surrogates

    groups = "" if found.groups is None else f", {found.groups:,} groups"
    console = _terminal.console()
    rows, origin = f"{found.rows:,} rows", f"Scores from column {columns['scores']}"
    if found.pairs == "binary":
        rows += f": {found.positives:,} positive ({columns['positive']}), "
        rows += f"{found.negatives:,} negative"
    else:
        origin += (
            f", {'times' if found.pairs == 'survival' else 'targets'} from {columns['labels']}"
        )
        origin += f", events from {columns['events']}" if "events" in columns else ""
    console.print(f"{rows}{groups}. {origin}.")
    inside = "" if groups == "" else ", inside groups"
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"over every pair{inside}")
    table.add_column("value", justify="right")
    bounds = {"AUC": found.auc_bound, **found.loss_bounds}
    shown = {name: (f"{bound:.1e}",) for name, bound in bounds.items() if any(bounds.values())}
    if shown:
        table.add_column("error at most", justify="right")
    name = "AUC" if found.pairs == "binary" else "concordance index"
    table.add_row(name, f"{found.auc:.6f}", *shown.get("AUC", ()), style="bold")
    for average, value in (found.group_aucs or {}).items():
        weighted = "each group once" if average == "groups" else "groups by their rows"
        table.add_row(f"  mean, {weighted}", f"{value:.6f}")
    if found.groups is None:
        interval = "needs two rows of each class"
        if found.auc_interval is not None:
            interval = "{:.4f} to {:.4f}".format(*found.auc_interval)
        method = " (DeLong)" if found.pairs == "binary" else ""
        table.add_row(f"  95 % interval{method}", interval)
    if (other := found.comparison) is not None:
        table.add_row(f"{name} of {columns['compare']}", f"{other.auc:.6f}", style="bold")
        table.add_row("  difference", f"{other.difference:+.6f}")
        table.add_row("  95 % interval (paired)", "{:+.4f} to {:+.4f}".format(*other.interval))
        table.add_row("  p-value (paired)", f"{other.p_value:.2g}")
    for name, loss in found.losses.items():
        margin = surrogates.get(name).default_margin if found.margin is None else found.margin
        table.add_row(f"{name}, margin {margin:g}", f"{loss:.6g}", *shown.get(name, ()))
    console.print(table)
    if math.inf in found.losses.values():
        console.print(
            "inf: the mean loss is beyond the range of float64. Scale the scores, or name a loss "
            "that grows linearly, such as --loss linear_hinge.",
            soft_wrap=True,
        )
    if found.by_group is not None:
        _show_groups(found.by_group)


def _show_groups(groups: dict[int | str, Evaluation]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("group")
    for column in ("rows", "positives", "AUC", "95 % interval"):
        table.add_column(column, justify="right")
    shown = sorted(groups.items(), key=lambda item: item[1].rows, reverse=True)[:_GROUPS_SHOWN]
    for key, found in shown:
        interval = (
            "" if found.auc_interval is None else "{:.4f} to {:.4f}".format(*found.auc_interval)
        )
        cells = (f"{found.rows:,}", f"{found.positives:,}", f"{found.auc:.6f}", interval)
        table.add_row(str(key), *cells)
    console = _terminal.console()
    console.print(table)
    if len(groups) > len(shown):
        console.print(f"The largest {len(shown)} of {len(groups):,} groups; --json has all.")

"""``everypair predict``: score a new file with a model that an experiment saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from everypair.experiments import _terminal
from everypair.experiments.commands._parameters import JsonFlag, option
from everypair.experiments.errors import UserError

_ROWS_COMPARED = 100_000  # with the rows that the model was fitted on
_MANY_SEEN = 0.25  # the share of rows that deserves a warning
_DAMAGED = (AttributeError, EOFError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def command(
    model: Annotated[Path, typer.Argument(help="Model of an experiment: RUN/model.zip, or RUN.")],
    file: Annotated[Path, typer.Argument(help="Table with the columns of the training.")],
    out: Annotated[
        Path | None,
        option(
            "Write all columns, scores and probabilities (.csv or .parquet).",
            default="print row numbers, scores and probabilities",
        ),
    ] = None,
    column: Annotated[str, option("Name of the column of scores.")] = "score",
    json_: JsonFlag = False,
) -> None:
    """Score new rows with a saved model; larger scores mean more positive.

    Models of a table also give the calibrated probability of a positive.
    """
    from rich.text import Text

    from everypair.experiments.commands import _scored_file

    if out is not None and out.suffix.lower() not in _scored_file.SUFFIXES:
        raise UserError(f"--out must end in {' or '.join(_scored_file.SUFFIXES)}; got {out}")
    console = _terminal.console(stderr=True)
    status = Text(_terminal.printable(f"Scoring {file}"))
    with console.status(status), _clear_errors(model, file):
        from everypair.experiments import contenders

        loaded = contenders.load(model)
        rows = loaded.read(file)
        scores = loaded.score(rows)
        columns = {column: scores}
        if isinstance(loaded, contenders.TableModel):
            name = "probability" if column == "score" else f"{column}_probability"
            columns[name] = loaded.calibration.probabilities(scores)
        notes, seen = {}, 0.0
        if loaded.encoder is not None:
            notes = loaded.encoder.unusable(rows)
            sample = rows.iloc[:: 1 + len(rows) // _ROWS_COMPARED]
            seen = loaded.seen.share(loaded.encoder.transform(sample))
    if out is not None:
        _scored_file.write(rows, columns, out, file)
    for name, note in notes.items():
        console.print(f"Column {name!r}: {note}", soft_wrap=True)
    if seen > _MANY_SEEN:
        console.print(
            f"Warning: the model was fitted on these rows (about {seen:.0%} of them). The AUC of "
            "their scores is too high: evaluate on rows that the model has not seen.",
            soft_wrap=True,
        )
    if json_:
        written = {"out": str(out)} if out else {k: x.tolist() for k, x in columns.items()}
        facts = {"model": str(model), "file": str(file), "rows": len(scores), "notes": notes}
        facts["seen"] = seen
        _terminal.echo_json({**facts, **written}, indent=None)
    elif out is not None:
        names = " and ".join(map(repr, columns))
        _terminal.echo(f"Written: {out} ({len(scores):,} rows, new: {names})")
    else:
        values = zip(*(x.tolist() for x in columns.values()), strict=True)
        lines = (",".join(map(repr, (row, *each))) for row, each in enumerate(values, 1))
        _terminal.echo("\n".join([",".join(["row", *columns]), *lines]))


@contextmanager
def _clear_errors(model: Path, file: Path) -> Iterator[None]:
    """Raise a clear UserError if the arguments are swapped or the model is damaged."""
    try:
        yield
    except (UserError, *_DAMAGED) as error:
        if model.is_file() and not _is_archive(model) and (file.is_dir() or _is_archive(file)):
            raise UserError(
                f"{model} is not a model, and {file} seems to be one; the order is: "
                "everypair predict MODEL FILE"
            ) from None
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{model} is damaged, or of another version of everypair: {type(error).__name__}"
        ) from error


def _is_archive(path: Path) -> bool:
    """Return whether a file is a zip archive other than Excel's, as saved models are."""
    import zipfile

    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return "xl/workbook.xml" not in archive.namelist()

"""``everypair predict``: score a new file with a model that an experiment saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everypair.experiments.commands._parameters import JsonFlag, option
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WRITERS = {".csv": "to_csv", ".parquet": "to_parquet"}


def command(
    model: Annotated[Path, typer.Argument(help="Model of an experiment: RUN/model.zip, or RUN.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet with the columns of the training.")],
    out: Annotated[
        Path | None,
        option("Write rows and scores (.csv or .parquet).", default="print row numbers and scores"),
    ] = None,
    column: Annotated[str, option("Name of the column of scores.")] = "score",
    json_: JsonFlag = False,
) -> None:
    """Score new rows with a saved model; larger scores mean more positive."""
    from rich.console import Console

    if out is not None and out.suffix.lower() not in _WRITERS:
        raise UserError(f"--out must end in {' or '.join(_WRITERS)}; got {out}")
    with Console(stderr=True).status(f"Scoring {file}"):
        from everypair.experiments import contenders

        loaded = contenders.load(model)
        rows = loaded.read(file)
        scores = loaded.score(rows)
        if out is not None:
            _write(rows, scores, column, out, file)
    if json_:
        written = {"out": str(out)} if out else {column: scores.tolist()}
        facts = {"model": str(model), "file": str(file), "rows": len(scores)}
        typer.echo(json.dumps({**facts, **written}))
    elif out is not None:
        typer.echo(f"Written: {out} ({len(scores):,} rows, column {column!r})")
    else:
        lines = (f"{row},{score!r}" for row, score in enumerate(scores.tolist(), 1))
        typer.echo("\n".join([f"row,{column}", *lines]))


def _write(rows: Any, scores: NDArray[np.float32], column: str, out: Path, file: Path) -> None:
    import numpy as np
    import pandas as pd  # type: ignore[import-untyped]

    from everypair.experiments._atomic import replacing

    # Images have no columns to copy, so their rows are numbered.
    table = isinstance(rows, pd.DataFrame)
    frame = rows if table else pd.DataFrame({"row": np.arange(1, len(scores) + 1)})
    if column in frame.columns:
        raise UserError(f"{file} has a column {column!r} already; choose another with --column")
    try:
        with replacing(out) as temporary:
            write = getattr(frame.assign(**{column: scores}), _WRITERS[out.suffix.lower()])
            write(temporary, index=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from None

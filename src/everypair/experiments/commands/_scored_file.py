"""Write a table again with columns of scores, and every other column as it was."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from everypair.experiments.data._files import CsvFormat

SUFFIXES = (".csv", ".parquet")


def write(
    rows: Any, columns: Mapping[str, NDArray[np.floating[Any]]], out: Path, file: Path
) -> None:
    """Write the rows of a file and their scores.

    Parameters
    ----------
    rows : DataFrame, or array of images
        The contents of `file`, as the model took them. Images get row numbers instead of columns.
    columns : dict of str to (n,)
        The new columns, such as the scores.
    out : Path
        Ends in .csv or .parquet.
    file : Path
        CSV to CSV copies the text of each row; Parquet to Parquet copies the columns and types.
    """
    import numpy as np
    import pandas as pd  # type: ignore[import-untyped]

    from everypair.experiments._atomic import replacing
    from everypair.experiments.data import _files

    table = isinstance(rows, pd.DataFrame)
    frame = rows if table else pd.DataFrame({"row": np.arange(1, len(rows) + 1)})
    for name in columns:
        if name in frame.columns:
            raise UserError(f"{file} has a column {name!r} already; choose another with --column")
    suffix = out.suffix.lower()
    kind = _files.file_kind(file) if table else ""
    try:
        with replacing(out) as temporary:
            if (kind, suffix) == ("csv", ".csv"):
                records = _with_columns(file, _files.csv_format(file), columns)
                with temporary.open("wb") as target:
                    target.writelines(records)
            elif (kind, suffix) == ("parquet", ".parquet"):
                _append_to_parquet(file, columns, temporary)
            elif suffix == ".csv":
                frame.assign(**columns).to_csv(temporary, index=False)
            else:
                frame.assign(**columns).to_parquet(temporary, index=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from None


def _append_to_parquet(file: Path, columns: Mapping[str, Any], out: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with pq.ParquetFile(file) as opened:
        table = opened.read()
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, out)


def _with_columns(file: Path, how: CsvFormat, columns: Mapping[str, Any]) -> list[bytes]:
    """Return the records of a CSV file, each with more fields; nothing else is changed."""
    from everypair.experiments.data._files import unpacked

    with unpacked(file) as opened:
        raw = opened.read()
    # These codecs keep a byte order mark as a character.
    utf16 = "utf-16-le" if raw.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
    codec = {"utf-8-sig": "utf-8", "utf-16": utf16}.get(how.encoding, how.encoding)
    records = list(_records(raw.decode(codec)))
    texts = []
    for name, values in columns.items():
        numbers = (repr(x).replace(".", how.decimal) for x in values.tolist())
        texts.append([_quoted(name, how.separator), *numbers])
    if sum(map(_is_filled, records)) != len(texts[0]):
        raise UserError(
            f"{file} has quotation marks that do not come in pairs, so its rows cannot be copied; "
            "write the scores to a .parquet file, or without --out"
        )
    fields = map(how.separator.join, zip(*texts, strict=True))
    found, width = [], 0
    for record in records:
        if _is_filled(record):
            body = record.rstrip("\r\n")
            # Separators inside quotes do not count; every second piece between quotes is outside.
            n_fields = 1 + sum(part.count(how.separator) for part in body.split('"')[::2])
            width = width or n_fields
            end = record[len(body) :]
            short = how.separator * (width - n_fields)
            record = f"{body}{short}{how.separator}{next(fields)}{end}"
        found.append(record.encode(codec))
    return found


def _records(text: str) -> Iterator[str]:
    """Yield the records of a CSV text with their line ends; quoted fields may hold line breaks."""
    record, n_quotes = [], 0
    for line in io.StringIO(text, newline=""):
        record.append(line)
        n_quotes += line.count('"')
        if n_quotes % 2 == 0:
            yield "".join(record)
            record, n_quotes = [], 0
    if record:
        yield "".join(record)


def _is_filled(record: str) -> bool:
    """Return whether a record is a row; pandas skips empty lines."""
    return bool(record.strip(" \r\n\ufeff"))


def _quoted(name: str, separator: str) -> str:
    special = any(character in name for character in (separator, '"', "\r", "\n"))
    return '"' + name.replace('"', '""') + '"' if special else name

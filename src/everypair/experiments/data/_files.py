"""Read a file with a table: CSV in the usual dialects, Parquet or Excel.

pandas reads the files. What is detected and checked here is what pandas accepts or explains poorly:
the separator and the encoding of a CSV file, columns that share a name, rows longer than the
header, codes with leading zeros, and files that are no tables.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import difflib
import gzip
import io
import json
import lzma
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn, cast

from everypair.experiments.errors import UserError, missing

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

Kind = Literal["csv", "parquet", "arrow", "excel"]
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_HEAD = 1 << 16  # bytes that are read to detect the kind of a file
_CHUNK = 1 << 22
_PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
# What pandas, pyarrow and the modules for compressed files raise; ParseError is a SyntaxError.
_UNPACKING = lzma.LZMAError, zipfile.BadZipFile, zlib.error
_DAMAGED = (EOFError, NotImplementedError, OSError, SyntaxError, ValueError, *_UNPACKING)
_DECIMAL_COMMA = re.compile(r'^(?:.*;)?"?[+-]?\d+,\d+"?(?:;|$)', re.MULTILINE)
_LEADING_ZERO = re.compile(rb'[\n,;|\t" ]0[0-9]')
_RAGGED = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")  # of pandas


@dataclass(frozen=True)
class CsvFormat:
    """How the text of a CSV file is stored."""

    separator: str
    encoding: str
    decimal: str  # a comma only if semicolons separate the columns
    names: tuple[str, ...]

    def options(self) -> dict[str, Any]:
        """Return the arguments of `pandas.read_csv`."""
        how = {"sep": self.separator, "decimal": self.decimal, "encoding": self.encoding}
        return {**how, "index_col": False}


def read(path: str | Path) -> pd.DataFrame:
    """Read a CSV, Parquet, Arrow or Excel file; its first bytes, not its name, tell which it is."""
    path = Path(path)
    with explained_errors(path):
        frame = _READ[file_kind(path)](path)
    check_names(path, frame.columns)
    if len(frame) == 0:
        refuse_empty(path)
    return frame


@contextmanager
def explained_errors(path: Path) -> Iterator[None]:
    """Raise UserError instead of the errors of reading a table."""
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]

    malformed = (pd.errors.EmptyDataError, pd.errors.ParserError, pd.errors.ParserWarning)
    try:
        yield
    except (*malformed, pa.ArrowException) as error:
        text = _first_line(error)
        if found := _RAGGED.search(text):
            expected, line, saw = found.groups()
            text = (
                f"line {line} has {saw} fields, where {expected} are expected. Correct that line, "
                "or put quotation marks around text that contains the separator"
            )
        elif text.startswith("Length of header"):
            text = "its rows have more fields than its first line has names of columns"
        raise UserError(f"{path} is not a CSV or Parquet table: {text}") from None
    except UserError:
        raise
    except _DAMAGED as error:
        advice = "; save it as CSV UTF-8" if isinstance(error, UnicodeError) else ""
        raise UserError(f"{path} cannot be read: {_first_line(error)}{advice}") from None


def file_kind(path: Path) -> Kind:
    """Return the kind of a file by its first bytes; raise UserError if it is no table."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a CSV, Parquet or Excel file in it")
    if not path.is_file():
        # The endings are not compared: all files of a folder may share theirs.
        neighbours = {p.stem: p for p in path.parent.glob("*") if p.is_file()}
        near = difflib.get_close_matches(path.stem, neighbours, 1)
        hint = f" Did you mean {neighbours[near[0]]}?" if near else ""
        raise UserError(f"{missing(path)}.{hint}")
    with unpacked(path) as file:
        first = file.read(_HEAD)
    if not first:
        raise UserError(f"{path} is empty: it has 0 bytes")
    if first.startswith(b"PAR1"):
        return "parquet"
    if first.startswith((b"ARROW1", b"\xff\xff\xff\xff")):  # the file format, or a stream
        return "arrow"
    if first.startswith(b"PK\x03\x04"):
        return _zip_kind(path)
    if first.startswith(b"\xd0\xcf\x11\xe0"):
        raise UserError(f"{path} is an old Excel file (.xls); save it as .xlsx or CSV UTF-8")
    if b"\x00" in first and not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{path} is not a table: it is neither text nor a Parquet or Excel file")
    if first.lstrip()[:1] in (b"{", b"[") and _is_json(first):
        raise UserError(f"{path} is a JSON file; convert it to CSV or Parquet")
    return "csv"


def csv_format(path: Path) -> CsvFormat:
    """Detect the encoding of a CSV file, and the separator that gives the most columns."""
    encoding = _encoding(path)
    names = {separator: _first_row(path, encoding, separator) for separator in SEPARATORS}
    separator = max(names, key=lambda s: len(names[s]))
    if not names[separator]:
        raise UserError(f"{path} has no first line with names of columns")
    check_names(path, filter(None, names[separator]))
    with unpacked(path) as file:
        text = file.read(_HEAD).decode(encoding, "ignore")
    comma = separator == ";" and _DECIMAL_COMMA.search(text)
    named = (name or f"Unnamed: {i}" for i, name in enumerate(names[separator]))  # as pandas does
    return CsvFormat(separator, encoding, "," if comma else ".", tuple(named))


def _first_row(path: Path, encoding: str, separator: str) -> list[str]:
    """Return the fields of the first line that is not empty; none if there is a huge field.

    pandas takes 0.1 ms a column for this, which is seconds for wide tables.
    """
    with unpacked(path) as file, io.TextIOWrapper(file, encoding, newline="") as text:
        try:
            rows = csv.reader(text, delimiter=separator)
            return next((row for row in rows if any(map(str.strip, row)) or len(row) > 1), [])
        except csv.Error:
            return []


def unpacked(path: Path) -> IO[bytes]:
    """Open a file for reading; files of gzip, bzip2 and xz are unpacked."""
    with path.open("rb") as file:
        first = file.read(8)
    how = next((how for magic, how in _PACKED.items() if first.startswith(magic)), open)
    return cast("IO[bytes]", how(path, "rb"))


def _is_json(first: bytes) -> bool:
    """Return whether text begins as JSON: a value, or a line that is one."""
    text = first.decode("utf-8", "ignore").lstrip()
    try:
        json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        return error.pos > 20  # a long value that was cut off
    return True


def _zip_kind(path: Path) -> Literal["excel"]:
    with zipfile.ZipFile(path) as archive:
        if "xl/workbook.xml" in archive.namelist():
            return "excel"
    raise UserError(f"{path} is a zip archive; unpack it and name the table in it")


def _encoding(path: Path) -> str:
    """Return UTF-8 or UTF-16 if the text is that, else the encoding of Windows (cp1252)."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with unpacked(path) as file:
        chunk = file.read(_CHUNK)
        if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        try:
            while chunk:
                decoder.decode(chunk)
                chunk = file.read(_CHUNK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig"


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    # read_table has no clear error message for columns that share a name.
    with pq.ParquetFile(path) as file:
        return file.read().to_pandas(ignore_metadata=True)


def arrow_reader(path: Path) -> Any:
    """Open a file of Arrow (or Feather), or a stream of Arrow."""
    import pyarrow as pa

    with path.open("rb") as file:
        is_file = file.read(4) == b"ARRO"
    source = pa.memory_map(str(path))
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


def _read_arrow(path: Path) -> pd.DataFrame:
    with arrow_reader(path) as reader:
        return reader.read_all().to_pandas(ignore_metadata=True)


def _read_excel(path: Path) -> pd.DataFrame:
    """Read the first sheet of an Excel file."""
    import pandas as pd

    try:
        names = pd.read_excel(path, header=None, nrows=1, engine="openpyxl")
        frame = pd.read_excel(path, engine="openpyxl")
    except ImportError:
        raise UserError(
            f"{path} is an Excel file, which needs the package openpyxl; install it with "
            "pip install openpyxl (or the extra: everypair[excel]), or save the table as CSV UTF-8"
        ) from None
    except (KeyError, *_DAMAGED) as error:
        raise UserError(f"{path} is not a readable Excel file: {_first_line(error)}") from None
    check_names(path, [] if names.empty else names.iloc[0].dropna())
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    options = csv_format(path).options()
    with warnings.catch_warnings():
        # pandas only warns when it cuts off rows that are longer than the header.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        # low_memory=False: otherwise the type of a column could depend on how it is cut in chunks.
        frame = _csv(path, low_memory=False, **options)
        has_codes = _may_have_leading_zeros(path, options["encoding"])
        if numeric := [name for name in frame.columns if has_codes and _is_whole(frame[name])]:
            text = _csv(path, usecols=numeric, dtype=str, **options)
            for name in numeric:
                if text[name].str.fullmatch(r" *0\d+ *").any():
                    frame[name] = text[name]  # codes such as 0638 stay text
    return frame


def _is_whole(values: pd.Series[Any]) -> bool:
    kind = values.dtype.kind  # missing values make whole numbers floats
    return kind in "iu" or (kind == "f" and bool((values.dropna() % 1 == 0).all()))


def _csv(path: Path, **options: Any) -> pd.DataFrame:
    import pandas as pd

    with unpacked(path) as file:
        return pd.read_csv(file, **options)


def _may_have_leading_zeros(path: Path, encoding: str) -> bool:
    """Return whether some field begins with 0 and another digit; may be wrong for quoted text."""
    if encoding == "utf-16":
        return True
    with unpacked(path) as file:
        before = b""
        while chunk := file.read(_CHUNK):
            if _LEADING_ZERO.search(before + chunk):
                return True
            before = chunk[-8:]
    return False


def check_names(path: Path, names: Iterable[object]) -> None:
    """Refuse equal names of columns."""
    counts = Counter(names)
    if counts and (most := counts.most_common(1)[0])[1] > 1:
        raise UserError(f"{path} has more than one column {most[0]!r}; rename or remove one")


def refuse_empty(path: Path) -> NoReturn:
    """Raise the error about a table without rows."""
    raise UserError(f"{path} is empty: it has no row below its header")


_READ = {"parquet": _read_parquet, "arrow": _read_arrow, "excel": _read_excel, "csv": _read_csv}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

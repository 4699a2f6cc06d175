"""Read a user's CSV or Parquet file: the label, the groups and the columns to learn from.

pandas reads the files. The checks around it are written by hand, because pandas accepts or explains
poorly what users get wrong most: a wrong separator, columns that share a name, rows longer than the
header, a label with other than two values.
"""

from __future__ import annotations

import difflib
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.errors import UserError
from everypair.experiments.plan import TableFile

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

_SEPARATORS = (",", ";", "\t")
_TRUE = {"1", "1.0", "true", "t", "yes", "y"}
_FALSE = {"0", "0.0", "-1", "-1.0", "false", "f", "no", "n"}


def load(table: TableFile) -> dict[str, Any]:
    """Read a labelled table; return fields of `sources.Dataset` by name."""
    frame = read(table.path)
    named = [table.label] if table.group is None else [table.label, table.group]
    require_columns(frame, named, table.path)
    if table.group == table.label:
        raise UserError(
            f"{table.path}: label and group must be two columns; both are {table.label!r}"
        )
    positive, positive_name = two_classes(frame[table.label], table)
    columns = frame.drop(columns=named)
    if columns.shape[1] == 0:
        raise UserError(f"{table.path} has no column to learn from besides {', '.join(named)}")
    digest = hashlib.sha256(repr((table.label, table.group, positive_name)).encode())
    digest.update(Path(table.path).read_bytes())
    return {
        "inputs": columns,
        "positive": positive,
        "groups": None if table.group is None else group_codes(frame[table.group], table.path),
        "positive_name": positive_name,
        "fingerprint": digest.hexdigest()[:16],
    }


def read(path: str | Path) -> pd.DataFrame:
    """Read a CSV or Parquet file; the first bytes, not the name, tell which of the two it is."""
    path = Path(path)
    with explained_errors(path):
        frame = _read_parquet(path) if first_bytes(path) == b"PAR1" else _read_csv(path)
    if not frame.columns.is_unique:
        refuse_duplicate(path, frame.columns[frame.columns.duplicated()][0])
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
        raise UserError(f"{path} is not a CSV or Parquet table: {_first_line(error)}") from None
    except UnicodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({_first_line(error)}). If it is a CSV file, save it as "
            "UTF-8; spreadsheet programs call that format CSV UTF-8"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {_first_line(error)}") from None


def first_bytes(path: Path) -> bytes:
    """Return the first four bytes of a file; raise UserError if there is none."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a CSV or Parquet file in it")
    if not path.is_file():
        neighbours = [p.name for p in path.parent.glob("*")]  # empty if there is no such folder
        near = difflib.get_close_matches(path.name, neighbours, 1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise UserError(f"{path}: no such file.{hint}")
    with path.open("rb") as file:
        first = file.read(4)
    if not first:
        raise UserError(f"{path} is empty: it has 0 bytes")
    return first


def require_columns(
    columns: pd.DataFrame | Sequence[str], names: Sequence[str], path: str | Path
) -> None:
    """Raise UserError, with similar names, if one of these columns is missing."""
    present = [str(column) for column in getattr(columns, "columns", columns)]
    if not (missing := [name for name in names if name not in present]):
        return
    near = dict.fromkeys(n for name in missing for n in difflib.get_close_matches(name, present, 2))
    shown = present[:12] + ["..."] * (len(present) > 12)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(shown)}"
    plural = "s" * (len(missing) > 1)
    raise UserError(f"{path} has no column{plural} {', '.join(map(repr, missing))}; {hint}")


def two_classes(labels: pd.Series[Any], table: TableFile) -> tuple[NDArray[np.bool_], str]:
    """Return which rows are positive, and a description such as 'fraud = yes'."""
    where = f"{table.path}: label column {table.label!r}"
    if n_missing := int(labels.isna().sum()):
        first = int(np.flatnonzero(labels.isna().to_numpy())[0]) + 1
        raise UserError(
            f"{where} is empty in {n_missing} of {len(labels)} rows (the first is row {first}); "
            "remove those rows, or fill them in"
        )
    labels = labels.astype(str)
    counts = {str(value): int(n) for value, n in labels.value_counts().items()}
    if len(counts) != 2:
        shown = ", ".join(f"{value!r} ({n})" for value, n in list(counts.items())[:5])
        more = ", ..." * (len(counts) > 5)
        raise UserError(
            f"{where} must hold exactly two values; it holds {len(counts)}: {shown}{more}. "
            "Make it two classes, or choose another column"
        )
    positive = positive_value(counts, table.positive, where)
    return (labels == positive).to_numpy(bool), f"{table.label} = {positive}"


def positive_value(counts: dict[str, int], wanted: str | None, where: str) -> str:
    """Choose the positive one of two values: `wanted`, else 1, true or yes, else the rarer."""
    if wanted is not None:
        same = [value for value in counts if value == wanted or same_number(value, wanted)]
        if not same:
            raise UserError(f"{where} has no value {wanted!r}; it has {' and '.join(counts)}")
        return same[0]
    for one, other in permutations(counts):
        if one.lower() in _TRUE and other.lower() in _FALSE:
            return one
    return min(sorted(counts, reverse=True), key=lambda value: counts[value])


def same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()


def group_codes(column: pd.Series[Any], path: str | Path) -> NDArray[np.int64]:
    """Return (n,) group numbers; raise UserError if a row has no group."""
    codes = np.asarray(column.factorize()[0], np.int64)
    empty = np.flatnonzero(codes < 0)
    if empty.size:
        raise UserError(
            f"{path}: group column {column.name!r} must hold a value in every row; got nothing in "
            f"row {empty[0] + 1} ({empty.size} such rows)"
        )
    return codes


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    # read_table has no clear error message for columns that share a name.
    with pq.ParquetFile(path) as file:
        return file.read().to_pandas(ignore_metadata=True)


def _read_csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    options, _ = csv_options(path)
    with warnings.catch_warnings():
        # pandas only warns when it cuts off rows that are longer than the header.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        # low_memory=False: otherwise the type of a column could depend on how it is cut in chunks.
        return pd.read_csv(path, low_memory=False, **options)


def csv_options(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return how pandas is to read a CSV file, and the names of its columns."""
    import pandas as pd

    options: dict[str, Any] = {"encoding": "utf-8-sig", "index_col": False}
    widths = {s: pd.read_csv(path, sep=s, nrows=0, **options).shape[1] for s in _SEPARATORS}
    separator = max(_SEPARATORS, key=lambda s: widths[s])
    names = pd.read_csv(path, sep=separator, nrows=1, header=None, dtype=str, **options).iloc[0]
    # Checked here, because pandas would rename the second of two equal columns.
    if (duplicates := names[names.duplicated() & names.notna()]).size:
        refuse_duplicate(path, duplicates.iloc[0])
    # If semicolons separate the columns, commas may be decimal commas.
    options.update(sep=separator, decimal="," if separator == ";" else ".")
    return options, list(pd.read_csv(path, nrows=0, **options).columns)


def refuse_empty(path: Path) -> NoReturn:
    """Raise the error about a table without rows."""
    raise UserError(f"{path} is empty: it has no row below its header")


def refuse_duplicate(path: Path, name: object) -> NoReturn:
    """Raise the error about two columns of one name."""
    raise UserError(f"{path} has more than one column {name!r}; rename or remove one")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

"""Read a user's CSV or Parquet file: the label, the groups and the columns to learn from.

pandas reads the files. The checks around it are written by hand, because pandas accepts or explains
poorly what users get wrong most: a wrong separator, columns that share a name, rows longer than the
header, a label with other than two values.
"""

from __future__ import annotations

import difflib
import hashlib
import warnings
from collections.abc import Sequence
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
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]

    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a CSV or Parquet file in it")
    if not path.is_file():
        neighbours = [p.name for p in path.parent.glob("*")]  # empty if there is no such folder
        near = difflib.get_close_matches(path.name, neighbours, 1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise UserError(f"{path}: no such file.{hint}")
    malformed = (pd.errors.EmptyDataError, pd.errors.ParserError, pd.errors.ParserWarning)
    try:
        with path.open("rb") as file:
            first = file.read(4)
        if not first:
            raise UserError(f"{path} is empty: it has 0 bytes")
        frame = _read_parquet(path) if first == b"PAR1" else _read_csv(path)
    except (*malformed, pa.ArrowException) as error:
        raise UserError(f"{path} is not a CSV or Parquet table: {_first_line(error)}") from None
    except UnicodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({_first_line(error)}). If it is a CSV file, save it as "
            "UTF-8; spreadsheet programs call that format CSV UTF-8"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {_first_line(error)}") from None
    if not frame.columns.is_unique:
        _refuse_duplicate(path, frame.columns[frame.columns.duplicated()][0])
    if len(frame) == 0:
        raise UserError(f"{path} is empty: it has no row below its header")
    return frame


def require_columns(frame: pd.DataFrame, names: Sequence[str], path: str | Path) -> None:
    """Raise UserError, with similar names, if one of these columns is missing."""
    present = [str(column) for column in frame.columns]
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
    positive = _positive_value(counts, table.positive, where)
    return (labels == positive).to_numpy(bool), f"{table.label} = {positive}"


def _positive_value(counts: dict[str, int], wanted: str | None, where: str) -> str:
    """Choose the positive one of two values: `wanted`, else 1, true or yes, else the rarer."""
    if wanted is not None:
        same = [value for value in counts if value == wanted or _same_number(value, wanted)]
        if not same:
            raise UserError(f"{where} has no value {wanted!r}; it has {' and '.join(counts)}")
        return same[0]
    for one, other in permutations(counts):
        if one.lower() in _TRUE and other.lower() in _FALSE:
            return one
    return min(sorted(counts, reverse=True), key=lambda value: counts[value])


def _same_number(one: str, other: str) -> bool:
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

    options: dict[str, Any] = {"encoding": "utf-8-sig", "index_col": False}
    widths = {s: pd.read_csv(path, sep=s, nrows=0, **options).shape[1] for s in _SEPARATORS}
    separator = max(_SEPARATORS, key=lambda s: widths[s])
    names = pd.read_csv(path, sep=separator, nrows=1, header=None, dtype=str, **options).iloc[0]
    # Checked here, because pandas would rename the second of two equal columns.
    if (duplicates := names[names.duplicated() & names.notna()]).size:
        _refuse_duplicate(path, duplicates.iloc[0])
    # If semicolons separate the columns, commas may be decimal commas.
    options.update(sep=separator, decimal="," if separator == ";" else ".")
    with warnings.catch_warnings():
        # pandas only warns when it cuts off rows that are longer than the header.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        # low_memory=False: otherwise the type of a column could depend on how it is cut in chunks.
        return pd.read_csv(path, low_memory=False, **options)


def _refuse_duplicate(path: Path, name: object) -> NoReturn:
    raise UserError(f"{path} has more than one column {name!r}; rename or remove one")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

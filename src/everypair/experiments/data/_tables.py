"""A user's CSV or Parquet file: the label, the groups and the columns to learn from."""

from __future__ import annotations

import difflib
import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.errors import UserError
from everypair.experiments.plan import TableFile

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

__all__ = ["ReadTable", "load", "read", "require_columns", "two_classes"]

_SEPARATORS = (",", ";", "\t")
_TRUE_AND_FALSE = (
    {"1", "1.0", "true", "t", "yes", "y"},
    {"0", "0.0", "-1", "-1.0", "false", "f", "no", "n"},
)


@dataclass(frozen=True)
class ReadTable:
    """Columns as they were read, and what the label and group columns say."""

    columns: pd.DataFrame
    positive: NDArray[np.bool_]
    groups: NDArray[np.int64] | None
    positive_name: str
    fingerprint: str


def load(table: TableFile) -> ReadTable:
    """Return a labelled table, ready to be split."""
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
    return ReadTable(
        columns=columns,
        positive=positive,
        groups=None if table.group is None else _groups(frame[table.group], table),
        positive_name=positive_name,
        fingerprint=digest.hexdigest()[:16],
    )


def read(path: str | Path) -> pd.DataFrame:
    """Return the table in a CSV or Parquet file; which of the two it is, its first bytes say."""
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]

    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a CSV or Parquet file in it")
    if not path.is_file():
        near = difflib.get_close_matches(path.name, _neighbours(path), 1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise UserError(f"{path}: there is no such file.{hint}")
    try:
        with path.open("rb") as file:
            first = file.read(4)
        if not first:
            raise UserError(f"{path} is empty: it has no bytes at all")
        is_parquet = first == b"PAR1"
        frame = _read_parquet(path) if is_parquet else _read_csv(path)
    except (
        pd.errors.EmptyDataError,
        pd.errors.ParserError,
        pd.errors.ParserWarning,
        pa.ArrowException,
    ) as error:
        raise UserError(f"{path} is not a CSV or Parquet table: {_first_line(error)}") from None
    except UnicodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({_first_line(error)}). If it is a CSV file, save it as "
            "UTF-8; spreadsheets call that CSV UTF-8"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {_first_line(error)}") from None
    if not frame.columns.is_unique:
        _refuse_twice(path, frame.columns[frame.columns.duplicated()][0])
    if len(frame) == 0:
        raise UserError(f"{path} is empty: it has no row below its header")
    return frame


def require_columns(frame: pd.DataFrame, names: Sequence[str], path: str | Path) -> None:
    """Raise, with near names, unless the table has all these columns."""
    there = [str(column) for column in frame.columns]
    missing = [name for name in names if name not in there]
    if not missing:
        return
    near = dict.fromkeys(n for name in missing for n in difflib.get_close_matches(name, there, 2))
    shown = there[:12] + ["..."] * (len(there) > 12)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(shown)}"
    plural = "s" * (len(missing) > 1)
    raise UserError(f"{path} has no column{plural} {', '.join(map(repr, missing))}; {hint}")


def two_classes(labels: pd.Series[Any], table: TableFile) -> tuple[NDArray[np.bool_], str]:
    """Return which rows are positive, and what that means in words."""
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
    """Choose one of two: the wanted one, else a yes beside a no however spelt, else the rarer."""
    if wanted is not None:
        same = [value for value in counts if value == wanted or _same_number(value, wanted)]
        if not same:
            raise UserError(f"{where} has no value {wanted!r}; it has {' and '.join(counts)}")
        return same[0]
    true, false = _TRUE_AND_FALSE
    first, second = counts
    for one, other in ((first, second), (second, first)):
        if one.lower() in true and other.lower() in false:
            return one
    return min(sorted(counts, reverse=True), key=lambda value: counts[value])


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()


def _groups(column: pd.Series[Any], table: TableFile) -> NDArray[np.int64]:
    codes = np.asarray(column.factorize()[0], np.int64)
    if n_missing := int((codes < 0).sum()):
        raise UserError(
            f"{table.path}: group column {table.group!r} is empty in {n_missing} rows; "
            "every row needs a group"
        )
    return codes


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    # Not read_table, which has no clear word for columns that share a name.
    with pq.ParquetFile(path) as file:
        return file.read().to_pandas(ignore_metadata=True)


def _read_csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    knobs: dict[str, Any] = {"encoding": "utf-8-sig", "index_col": False}
    widths = {s: pd.read_csv(path, sep=s, nrows=0, **knobs).shape[1] for s in _SEPARATORS}
    separator = max(_SEPARATORS, key=lambda s: widths[s])
    names = pd.read_csv(path, sep=separator, nrows=1, header=None, dtype=str, **knobs).iloc[0]
    if (twice := names[names.duplicated() & names.notna()]).size:  # else the second gets a new name
        _refuse_twice(path, twice.iloc[0])
    # Where the comma does not separate columns, it may be the decimal one.
    knobs.update(sep=separator, decimal="," if separator == ";" else ".")
    with warnings.catch_warnings():
        # Rows longer than the header would lose their ends.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        # All at once, so that the type of a column does not depend on where its chunks begin.
        return pd.read_csv(path, low_memory=False, **knobs)


def _refuse_twice(path: Path, name: object) -> NoReturn:
    raise UserError(f"{path} has more than one column {name!r}; rename or remove one")


def _neighbours(path: Path) -> list[str]:
    return [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

"""A user's table: which column is the label, which rows are positive, and what is learnt from.

`_files` reads the file; `load` gives each column its role.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import astuple, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.data import _values
from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.data._files import SEPARATORS, read
from everypair.experiments.errors import UserError
from everypair.experiments.plan import TableFile

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

__all__ = [
    "group_codes",
    "load",
    "positive_value",
    "read",
    "require_columns",
    "same_number",
    "two_classes",
]

_TRUE = {"1", "1.0", "true", "t", "yes", "y"}
_FALSE = {"0", "0.0", "-1", "-1.0", "false", "f", "no", "n"}
_SIMILAR = 0.65  # names that are less similar are not suggested
_MANY_VALUES = 20  # a column of more different numbers is a quantity, not a code
_FEWEST_NUMBERED = 50  # in shorter tables, 1, 2, 3, ... may be a feature


def load(table: TableFile) -> dict[str, Any]:
    """Read a labelled table; return fields of `sources.Dataset` by name."""
    frame = read(table.path)
    _check_roles(table, frame)
    positive, positive_name = two_classes(frame[table.label], table)
    columns, unused = _features(frame, table)
    digest = hashlib.sha256(
        repr(astuple(replace(table, path="", test=None, positive=positive_name))).encode()
    )
    digest.update(Path(table.path).read_bytes())
    fields: dict[str, Any] = {}
    if table.test is not None:
        fields = _test_part(table, positive_name, columns)
        digest.update(Path(table.test).read_bytes())
    if table.group is not None:
        fields["groups"] = group_codes(frame[table.group], table.path)
    if table.time is not None:
        fields["time"] = times(frame[table.time], table.path)
    return {
        "inputs": columns,
        "positive": positive,
        "positive_name": positive_name,
        "unused": unused,
        "encoder": TableEncoder(no_trend=(table.time,) if table.time else ()),
        "fingerprint": digest.hexdigest()[:16],
        **fields,
    }


def require_columns(
    columns: pd.DataFrame | Sequence[str], names: Sequence[str], path: str | Path
) -> None:
    """Raise UserError, with similar names, if one of these columns is missing."""
    present = [str(column) for column in getattr(columns, "columns", columns)]
    if not (missing := [name for name in names if name not in present]):
        return
    near = dict.fromkeys(
        n for name in missing for n in difflib.get_close_matches(name, present, 2, _SIMILAR)
    )
    shown = present[:12] + ["..."] * (len(present) > 12)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(shown)}"
    if len(present) == 1:
        *others, last = SEPARATORS.values()
        hint = f"it has {present[0]!r} only. Columns are separated by {', '.join(others)} or {last}"
    if present and all(is_number(name) for name in present):
        hint = (
            f"its first line has only numbers ({', '.join(shown)}), so the file seems to have no "
            "header. Add a first line with the names of the columns"
        )
    plural = "s" * (len(missing) > 1)
    raise UserError(f"{path} has no column{plural} {', '.join(map(repr, missing))}; {hint}")


def is_number(text: str) -> bool:
    """Return whether ``float`` can read the text."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_roles(table: TableFile, frame: pd.DataFrame) -> None:
    """Raise UserError if a named column is missing, or two options do not go together."""
    roles = {"label": table.label, "group": table.group, "time": table.time}
    named = {role: name for role, name in roles.items() if name is not None}
    require_columns(frame, [*named.values(), *table.drop, *table.only], table.path)
    for role, name in named.items():
        if role != "label" and name == table.label:
            raise UserError(f"{table.path}: label and {role} must be two columns; got {name!r}")
    if table.label in (*table.drop, *table.only):
        raise UserError(f"{table.path}: the label {table.label!r} cannot be a feature or dropped")
    if table.drop and table.only:
        raise UserError("--drop and --only exclude each other; give one of them")
    if table.group is not None and (table.time or table.test):
        other = "--time" if table.time else "--test"
        raise UserError(
            f"--group and {other} exclude each other: groups are kept in one part, and {other} "
            "divides the rows in another way"
        )
    if table.time and table.test:
        raise UserError("--time and --test exclude each other; give one of them")


def _features(frame: pd.DataFrame, table: TableFile) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the columns to learn from, and why others are not used."""
    unused = {table.label: "the label"}
    if table.group is not None:
        unused[table.group] = "the group"
    unused |= dict.fromkeys(table.drop, "dropped by --drop")
    for name in frame.columns:
        if table.only and str(name) not in table.only:
            unused.setdefault(str(name), "not named by --only")
        elif _is_nested(frame[name]):
            unused.setdefault(str(name), "lists or records; write their parts as columns")
        elif not table.only and name != table.time and _is_row_number(frame[name]):
            unused.setdefault(str(name), "row numbers: 0, 1, 2, ... in the order of the file")
    columns = frame.drop(columns=[name for name in frame.columns if str(name) in unused])
    if columns.shape[1] == 0:
        raise UserError(f"{table.path} has no column to learn from besides {', '.join(unused)}")
    return columns, unused


def _is_row_number(values: pd.Series[Any]) -> bool:
    """Return whether a column counts the rows, as a saved index does."""
    if values.dtype.kind not in "iu" or len(values) < _FEWEST_NUMBERED:
        return False
    return bool((np.diff(values.to_numpy()) == 1).all())


def _is_nested(values: pd.Series[Any]) -> bool:
    """Return whether the values are lists or records, which Parquet files can hold."""
    if values.dtype != object or len(known := values.dropna()) == 0:
        return False
    return isinstance(known.iloc[0], list | dict | np.ndarray)


def _test_part(table: TableFile, positive_name: str, columns: pd.DataFrame) -> dict[str, Any]:
    """Read the file with the test rows."""
    path = str(table.test)
    frame = read(path)
    require_columns(frame, [table.label, *map(str, columns.columns)], path)
    value = positive_name.removeprefix(f"{table.label} = ")
    positive, _ = two_classes(frame[table.label], replace(table, path=path, positive=value))
    names = [name for name in frame.columns if str(name) in set(map(str, columns.columns))]
    return {"test_inputs": frame[names], "test_positive": positive}


def times(column: pd.Series[Any], path: str | Path) -> NDArray[np.float64]:
    """Return (n,) times: seconds for dates, numbers as they are; UserError if one is missing."""
    kind, style = _values.kind_of(column)
    if kind == "nominal":
        shown = ", ".join(map(repr, column.dropna().unique()[:3].tolist()))
        raise UserError(
            f"{path}: time column {column.name!r} must hold dates or numbers; got {shown}. "
            "Dates such as 2024-01-31 or 2024-01-31 12:00 are always read"
        )
    found = _values.READ[kind](column, style)
    if (unknown := np.flatnonzero(np.isnan(found))).size:
        raise UserError(
            f"{path}: time column {column.name!r} must hold a date or number in every row; got "
            f"none in row {unknown[0] + 1} ({unknown.size} such rows)"
        )
    return found


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
    if len(counts) != 2 and (table.positive is None or len(counts) < 2):
        shown = ", ".join(f"{value!r} ({n})" for value, n in list(counts.items())[:5])
        more = ", ..." * (len(counts) > 5)
        advice = "To compare one value with all others, name it: --positive VALUE"
        if len(counts) > _MANY_VALUES and all(map(is_number, counts)):
            advice = (
                "If it is a quantity, make a column that says whether it is above a limit, or rank "
                "by it in Python: everypair.sklearn.PairLinearRanker"
            )
        elif len({value.strip().lower() for value in counts}) < len(counts):
            advice = "Some differ only in capital letters or spaces: write them alike"
        raise UserError(
            f"{where} must hold exactly two values; it holds {len(counts)}: {shown}{more}. "
            + (advice if len(counts) > 2 else "Choose another column, or add rows")
        )
    positive = positive_value(counts, table.positive, where)
    return (labels == positive).to_numpy(bool), f"{table.label} = {positive}"


def positive_value(counts: dict[str, int], wanted: str | None, where: str) -> str:
    """Choose the positive value: `wanted`, else 1, true or yes, else the rarer of two."""
    if wanted is not None:
        same = [value for value in counts if value == wanted or same_number(value, wanted)]
        if not same:
            some = [*counts][:5] + ["..."] * (len(counts) > 5)
            raise UserError(f"{where} has no value {wanted!r}; it has {', '.join(some)}")
        return same[0]
    for one, other in permutations(counts):
        if one.strip().lower() in _TRUE and other.strip().lower() in _FALSE:
            return one
    return min(sorted(counts, reverse=True), key=lambda value: counts[value])


def same_number(one: str, other: str) -> bool:
    """Return whether two labels are the same number, or the same text but for capital letters."""
    if is_number(one) and is_number(other):
        return float(one) == float(other)
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

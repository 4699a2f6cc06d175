"""The columns of a file of predictions: names, classes, groups and numbers, chunk by chunk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import everypair as ep
from everypair.experiments.data import _chunks, _tables
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from numpy.typing import NDArray


# Column names, in lower case, that are recognised if no column is given.
SCORES = ("score", "scores", "prediction", "predictions", "y_score", "y_pred", "probability")
LABELS = ("label", "labels", "target", "y_true", "y", "class")
TIMES = ("time", "times", "duration", "survival_time")
EVENTS = ("event", "events", "observed", "died", "death", "status")
_EVENT = {"1", "1.0", "true", "t", "yes", "y"}
_CENSORED = {"0", "0.0", "false", "f", "no", "n"}


class Classes:
    """The two values of a label column, found as the chunks arrive.

    If a positive value is wanted, there may be more values: all others are negative.
    """

    def __init__(self, column: str, wanted: str | None = None) -> None:
        self.column = column
        self.wanted = wanted
        self.values: list[str] = []

    def numbers(self, labels: pd.Series[Any], chunk: _chunks.Chunk) -> NDArray[np.bool_]:
        """Return whether each row has the wanted value, or the second one that was found."""
        where = f"{chunk.path}: label column {self.column!r}"
        if labels.isna().any():
            first = chunk.start + int(labels.isna().argmax()) + 1
            raise UserError(f"{where} is empty in row {first}; remove such rows, or fill them in")
        array = labels.to_numpy()
        if array.dtype.kind not in "biuf":
            array = labels.astype(str).to_numpy()
        rest, is_second = np.ones(array.shape[0], bool), np.zeros(array.shape[0], bool)
        while rest.any():
            value = array[rest.argmax()]
            same = array == value
            number = self._number(str(value), where, chunk.start + int(rest.argmax()) + 1)
            is_second[same] = (
                number if self.wanted is None else self._is_wanted(self.values[number])
            )
            rest &= ~same
        return is_second

    def _is_wanted(self, value: str) -> bool:
        wanted = str(self.wanted)
        return value == wanted or _tables.same_number(value, wanted)

    def _number(self, value: str, where: str, row: int) -> int:
        for i, known in enumerate(self.values):
            if known == value or _tables.same_number(known, value):
                return i
        if len(self.values) == 2 and self.wanted is None:
            first, second = self.values
            grades = all(map(_tables.is_number, (first, second, value)))
            raise UserError(
                f"{where} must hold exactly two values; it holds {first!r}, {second!r} and, in row "
                f"{row}, {value!r}. Name the positive one with --positive, or choose another column"
                + ("; for grades or real targets, use --pairs ordered" if grades else "")
            )
        self.values.append(value)
        return len(self.values) - 1

    def positive(self, rows: ep.PairAccumulator, path: Path) -> tuple[str, bool]:
        """Return the positive value, and whether its rows were counted as negative."""
        where = f"{path}: label column {self.column!r}"
        if len(self.values) < 2:
            raise UserError(
                f"{where} must hold exactly two values; it holds 1: {self.values[0]!r} "
                f"({rows.n_rows}). Make it two classes, or choose another column"
            )
        if self.wanted is not None:
            counts = dict.fromkeys(self.values, 0)
            return _tables.positive_value(counts, self.wanted, where), False
        counts = dict(zip(self.values, (rows.n_neg, rows.n_pos), strict=True))
        value = _tables.positive_value(counts, None, where)
        return value, value == self.values[0]


def roles(
    present: list[str],
    path: Path,
    scores: str | None,
    labels: str | None,
    events: str | None,
    pairs: str,
) -> tuple[str, str, str | None]:
    """Return the columns of scores, labels and events; those not given have usual names."""
    survival, lower = pairs == "survival", {name.lower() for name in present}
    scores = scores or _recognised(present, SCORES, "scores", path)
    usual = TIMES if survival and not lower.isdisjoint(TIMES) else LABELS
    labels = labels or _recognised(present, usual, "labels", path)
    if survival and events is None and not lower.isdisjoint(EVENTS):
        events = _recognised(present, EVENTS, "events", path)
    return scores, labels, events


def _recognised(present: list[str], names: tuple[str, ...], role: str, path: Path) -> str:
    """Return the one column with a usual name; raise UserError if there is none, or several.

    Of "score" and "probability", which `everypair predict` writes, it is the score.
    """
    lower = {column.lower(): column for column in present}
    found = [lower[name] for name in names if name in lower]
    if len(found) == 1 or [name.lower() for name in found] == ["score", "probability"]:
        return found[0]
    columns = ", ".join(map(repr, found or present[:12]))
    reason = "several columns have a usual name" if found else "no column has a usual name"
    raise UserError(f"{path}: --{role} must name a column, because {reason}: {columns}.")


def group_values(column: pd.Series[Any], chunk: _chunks.Chunk) -> NDArray[Any]:
    """Return the groups as integers or strings; raise UserError if a row has none."""
    if column.isna().any():
        raise UserError(
            f"{chunk.path}: group column {column.name!r} must hold a value in every row; got "
            f"nothing in row {chunk.start + int(column.isna().argmax()) + 1}"
        )
    array = column.to_numpy()
    return array if array.dtype.kind in "iu" else np.asarray(column.astype(str), dtype=np.str_)


def numbers(column: pd.Series[Any], role: str, chunk: _chunks.Chunk) -> NDArray[Any]:
    """Convert a column to floating-point numbers; raise UserError if a row holds none."""
    import pandas as pd

    found = pd.to_numeric(column, errors="coerce")
    rule = f"{role} column", "a finite number"
    _raise_unless(found.notna().to_numpy(bool), column, *rule, chunk)
    given: NDArray[Any] = found.to_numpy()
    array = given if given.dtype.kind == "f" else given.astype(np.float64)
    _raise_unless(np.isfinite(array), column, *rule, chunk)
    held = np.ones(array.shape, bool)
    for i in np.flatnonzero(abs(array) >= 2.0**53) if given.dtype.kind in "iu" else ():
        held[i] = int(given[i]) == float(array[i])
    advice = "a number that float64 holds (subtract a whole number near them)"
    _raise_unless(held, column, rule[0], advice, chunk)
    return array


def events_from(column: pd.Series[Any], chunk: _chunks.Chunk) -> NDArray[np.float64]:
    """Return 1 for events and 0 for censored times; raise UserError for other values."""
    text = column.astype(str).str.strip().str.lower()
    happened, known = text.isin(_EVENT).to_numpy(bool), text.isin(_EVENT | _CENSORED).to_numpy(bool)
    rule = "1, true or yes (an event) or 0, false or no (censored)"
    _raise_unless(known, column, "events column", rule, chunk)
    return np.asarray(happened, np.float64)


def _raise_unless(
    valid: NDArray[np.bool_], column: pd.Series[Any], role: str, rule: str, chunk: _chunks.Chunk
) -> None:
    import pandas as pd

    if not valid.all():
        i = int(np.argmin(valid))
        got = column.iloc[i]
        what = "nothing" if pd.isna(got) else repr(str(got))
        raise UserError(
            f"{chunk.path}: {role} {column.name!r} must hold {rule} in every row; got {what} in "
            f"row {chunk.start + i + 1}. Remove or recode such rows, or choose another column."
        )

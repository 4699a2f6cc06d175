"""Columns of a table into numbers; what is fitted comes from the subtrain rows alone.

>>> import pandas as pd
>>> rows = pd.DataFrame({"age": [20, None, 40], "town": ["A", "B", "B"], "same": [1, 1, 1]})
>>> encoder = TableEncoder(rare=1).fit(rows)
>>> encoder.names
('age', 'age is missing', 'town = A', 'town = B')
>>> encoder.transform(pd.DataFrame({"age": [30.0], "town": ["C"]})).tolist()
[[0.0, 0.0, 0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

__all__ = ["Column", "TableEncoder"]

CLIP = 10.0
"""Standard deviations beyond which a value counts as this far out: one typing error in a column
of amounts must not make the whole training diverge."""

_HUGE = 1e300  # the difference of two such numbers is still a number

NUMERIC_SHARE = 0.95
"""Text of which this share reads as numbers is a column of numbers with some marks for missing."""


@dataclass(frozen=True)
class Column:
    """What was learnt of one column.

    Parameters
    ----------
    name : str
    kind : {"number", "date", "nominal"}
    median, mean, scale : float
        Of numbers and dates (seconds since 1970). Scale 0: constant, so only `missing` is used.
    missing : bool
        Values were missing, so there is an indicator.
    levels, pooled : tuple of str
        Values with their own indicator, and the rare ones that share one.
    """

    name: str
    kind: str
    median: float = 0.0
    mean: float = 0.0
    scale: float = 0.0
    missing: bool = False
    levels: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the numbers this column becomes."""
        return (
            *((self.name,) if self.scale else ()),
            *((f"{self.name} is missing",) if self.missing else ()),
            *(f"{self.name} = {level}" for level in self.levels),
            *((f"{self.name} = (other)",) if self.pooled else ()),
        )

    def encode(self, values: pd.Series[Any]) -> list[NDArray[Any]]:
        """Return one array a feature."""
        if self.kind == "nominal":
            text, missing = _text(values).to_numpy(object), values.isna().to_numpy()
            numbers = []
        else:
            number = _NUMBERS[self.kind](values)
            missing = ~np.isfinite(number)
            filled = np.where(missing, self.median, number)
            with np.errstate(over="ignore"):
                far = (filled - self.mean) / (self.scale or 1.0)
            numbers = [np.clip(far, -CLIP, CLIP)] if self.scale else []
        return [
            *numbers,
            *((missing,) if self.missing else ()),
            *((text == level) & ~missing for level in self.levels),
            *((np.isin(text, self.pooled) & ~missing,) if self.pooled else ()),
        ]


@dataclass(frozen=True)
class TableEncoder:
    """Encodes the columns of a table as numbers.

    Numbers are standardised; missing ones become the median, with an indicator; dates are numbers;
    text becomes one indicator a level, rare levels sharing one; a level that was not there when
    fitting becomes zeros. Columns that say nothing (constant, or text that never repeats) go.

    Parameters
    ----------
    columns : tuple of Column
        Empty until `fit`.
    rare : int
        A level of fewer rows is pooled with the other rare ones.
    most_levels : int
        The most levels of a column that have their own indicator, the most frequent ones.
    dropped : tuple of str
        Columns that said nothing.
    """

    columns: tuple[Column, ...] = ()
    rare: int = 10
    most_levels: int = 50
    dropped: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    def fit(self, frame: pd.DataFrame) -> TableEncoder:
        """Return an encoder that knows the columns of these rows."""
        learnt = [self._learn(str(name), values) for name, values in frame.items()]
        kept = tuple(column for column in learnt if column.features)
        if not kept:
            raise UserError(
                "the table has no column that tells rows apart: every one is constant, empty or "
                f"text that never repeats ({', '.join(column.name for column in learnt[:8])})"
            )
        dropped = tuple(column.name for column in learnt if not column.features)
        return replace(self, columns=kept, dropped=dropped)

    def transform(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (n, features) float32; columns that were not there when fitting are ignored."""
        there = {str(name): values for name, values in frame.items()}
        if missing := [column.name for column in self.columns if column.name not in there]:
            raise UserError(
                f"the table lacks columns that the model was trained on: {', '.join(missing)}"
            )
        encoded = np.empty((len(self.names), len(frame)), np.float32)
        place = 0
        for column in self.columns:
            for feature in column.encode(there[column.name]):
                encoded[place] = feature
                place += 1
        return np.ascontiguousarray(encoded.T)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TableEncoder:
        """Return the encoder that `to_dict` wrote."""
        columns = tuple(
            Column(**{**c, "levels": tuple(c["levels"]), "pooled": tuple(c["pooled"])})
            for c in plain["columns"]
        )
        return cls(**{**plain, "columns": columns, "dropped": tuple(plain["dropped"])})

    def _learn(self, name: str, values: pd.Series[Any]) -> Column:
        kind = _kind(values)
        if kind == "nominal":
            missing = bool(values.isna().any())
            counts = _text(values.dropna()).value_counts()
            n_own = min(int((counts >= self.rare).sum()), self.most_levels)  # most frequent first
            levels = tuple(sorted(map(str, counts.index[:n_own])))
            pooled = tuple(map(str, counts.index[n_own:]))
            if len(levels) + bool(pooled) + missing < 2:
                return Column(name, kind)  # all rows alike
            return Column(name, kind, missing=missing, levels=levels, pooled=pooled)
        numbers = _NUMBERS[kind](values)
        known = numbers[np.isfinite(numbers)]
        if len(known) == 0:
            return Column(name, kind)
        median = float(np.median(known))
        beside = np.where(np.isfinite(numbers), numbers - median, 0.0)
        peak = float(np.abs(beside).max()) or 1.0  # so that no square overflows
        mean = median + float((beside / peak).mean() * peak)
        scale = float((beside / peak).std() * peak)
        return Column(name, kind, median, mean, scale, missing=len(known) < len(numbers))


def _kind(values: pd.Series[Any]) -> str:
    from pandas.api import types  # type: ignore[import-untyped]

    if types.is_numeric_dtype(values.dtype) or types.is_timedelta64_dtype(values.dtype):
        return "number"
    if types.is_datetime64_any_dtype(values.dtype):
        return "date"
    known = values.dropna()
    if isinstance(values.dtype, types.CategoricalDtype) or len(known) == 0:
        return "nominal"
    if np.isfinite(_as_numbers(known)).mean() >= NUMERIC_SHARE:
        return "number"
    return "date" if np.isfinite(_as_dates(known)).all() else "nominal"


def _text(values: pd.Series[Any]) -> pd.Series[Any]:
    return values.astype(object).map(str)


def _as_numbers(values: pd.Series[Any]) -> NDArray[np.float64]:
    import pandas as pd
    from pandas.api import types

    if types.is_timedelta64_dtype(values.dtype):
        return np.asarray(values.dt.total_seconds(), np.float64)
    if isinstance(values.dtype, types.CategoricalDtype):
        values = values.astype(object)
    if values.dtype == object:  # True and False beside missing values
        values = values.map(lambda value: float(value) if isinstance(value, bool) else value)
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.where(np.isfinite(numbers), np.clip(numbers, -_HUGE, _HUGE), np.nan)


def _as_dates(values: pd.Series[Any]) -> NDArray[np.float64]:
    import pandas as pd
    from pandas.api import types

    if not types.is_datetime64_any_dtype(values.dtype):
        values = _text(values)
    times = pd.to_datetime(values, errors="coerce", utc=True, format="ISO8601")
    return np.asarray((times - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), np.float64)


_NUMBERS = {"number": _as_numbers, "date": _as_dates}

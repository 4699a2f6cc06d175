"""Encode the columns of a table as numbers, fitted on the subtrain rows alone.

Written by hand, not as a scikit-learn pipeline, because the encoder is saved in ``model.pt``. It
consists of plain numbers and strings (`TableEncoder.to_dict`). Loading a model therefore needs no
pickle, which could run foreign code, and does not depend on the version of scikit-learn.

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

CLIP = 10.0
"""Encoded values are clipped to this many standard deviations, so that one mistyped amount does not
make the training diverge."""

_HUGE = 1e300  # numbers are clipped to this, so that differences of two do not overflow

NUMERIC_SHARE = 0.95
"""A text column of which at least this share can be read as numbers is a numeric column."""


@dataclass(frozen=True)
class Column:
    """The fitted encoding of one column; numbers and dates (in seconds since 1970) have a scale."""

    name: str
    kind: str  # "number", "date" or "nominal"
    median: float = 0.0
    mean: float = 0.0
    scale: float = 0.0  # 0 means constant: only `missing` is used then
    missing: bool = False  # whether fitted values were missing; if so, there is an indicator for it
    levels: tuple[str, ...] = ()  # values with an indicator each
    pooled: tuple[str, ...] = ()  # rare values that share one indicator

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the features that encode this column."""
        return (
            *((self.name,) if self.scale else ()),
            *((f"{self.name} is missing",) if self.missing else ()),
            *(f"{self.name} = {level}" for level in self.levels),
            *((f"{self.name} = (other)",) if self.pooled else ()),
        )

    def encode(self, values: pd.Series[Any]) -> list[NDArray[Any]]:
        """Return one array per feature."""
        if self.kind == "nominal":
            text, missing = _text(values).to_numpy(object), values.isna().to_numpy()
            numbers = []
        else:
            number = _NUMBERS[self.kind](values)
            missing = ~np.isfinite(number)
            filled = np.where(missing, self.median, number)
            with np.errstate(over="ignore"):
                standardised = (filled - self.mean) / (self.scale or 1.0)
            numbers = [np.clip(standardised, -CLIP, CLIP)] if self.scale else []
        return [
            *numbers,
            *((missing,) if self.missing else ()),
            *((text == level) & ~missing for level in self.levels),
            *((np.isin(text, self.pooled) & ~missing,) if self.pooled else ()),
        ]


@dataclass(frozen=True)
class TableEncoder:
    """Encodes the columns of a table as numbers.

    Numbers and dates are standardised. Missing numbers become the median, and an indicator marks
    them. Text becomes one indicator per level; rare levels share one; levels that were not in the
    fitted rows become zeros. Columns without information (constant, or text that never repeats) are
    dropped.
    """

    columns: tuple[Column, ...] = ()  # empty until `fit`
    rare: int = 10  # levels with fewer rows than this share one indicator
    most_levels: int = 50  # the largest number of levels with an indicator of their own
    dropped: tuple[str, ...] = ()  # columns without information

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    def fit(self, frame: pd.DataFrame) -> TableEncoder:
        """Return an encoder that is fitted on these rows."""
        learnt = [self._learn(str(name), values) for name, values in frame.items()]
        kept = tuple(column for column in learnt if column.features)
        if not kept:
            raise UserError(
                "the table has no column to learn from: every one is constant, empty or text that "
                f"never repeats ({', '.join(column.name for column in learnt[:8])})"
            )
        dropped = tuple(column.name for column in learnt if not column.features)
        return replace(self, columns=kept, dropped=dropped)

    def transform(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (n, features) float32; columns that are not in the fitted table are ignored."""
        present = {str(name): values for name, values in frame.items()}
        if missing := [column.name for column in self.columns if column.name not in present]:
            lacking = ", ".join(missing)
            raise UserError(f"the table has no columns {lacking}, which the model was trained on")
        encoded = np.empty((len(self.names), len(frame)), np.float32)
        features = (f for column in self.columns for f in column.encode(present[column.name]))
        for place, feature in enumerate(features):
            encoded[place] = feature
        return np.ascontiguousarray(encoded.T)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TableEncoder:
        """Make an encoder from the dictionary that `to_dict` returns."""
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
                return Column(name, kind)  # all rows are equal
            return Column(name, kind, missing=missing, levels=levels, pooled=pooled)
        numbers = _NUMBERS[kind](values)
        known = numbers[np.isfinite(numbers)]
        if len(known) == 0:
            return Column(name, kind)
        median = float(np.median(known))
        centred = np.where(np.isfinite(numbers), numbers - median, 0.0)
        peak = float(np.abs(centred).max()) or 1.0  # divided by this, no square overflows
        mean = median + float((centred / peak).mean() * peak)
        scale = float((centred / peak).std() * peak)
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
    if values.dtype == object:  # booleans with missing values among them
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

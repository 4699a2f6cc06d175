"""Encode the columns of a table as numbers, fitted on the training rows alone.

The same matrix suits linear models, networks and trees: numbers are standardised and never clipped
to equal values, so that their order is kept.

Written by hand, not as a scikit-learn pipeline, because the encoder is saved with the model. It
consists of plain numbers and strings (`TableEncoder.to_dict`). Loading a model therefore needs no
pickle, which could run foreign code, and does not depend on the version of scikit-learn.

>>> import pandas as pd
>>> rows = pd.DataFrame({"age": [20, None, 40], "town": ["A", "B", "B"], "same": [1, 1, 1]})
>>> encoder = TableEncoder(rare=1).fit(rows)
>>> encoder.names
('age', 'age is missing', 'town = A', 'town = B')
>>> encoder.transform(pd.DataFrame({"age": [30.0], "town": ["C"]})).tolist()
[[0.0, 0.0, 0.0, 0.0]]
>>> encoder.dropped
{'same': 'all values are equal'}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.data._values import READ, are_mixed_dates, as_text, kind_of
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

LINEAR_RANGE = 10.0
"""Beyond this many standard deviations, encoded values grow with the logarithm only, so that one
mistyped amount does not dominate the training."""

OUTLIERS = 0.005
"""This share of the values at each end does not count for mean and standard deviation."""

MOST_OFFSET = 1000.0
"""Numbers are rounded to float32 first, so that float32 and float64 files of a table have the same
features. Columns whose mean is more standard deviations than this away from 0, such as times in
seconds, would lose too much and are not rounded."""

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_CYCLES = {"hour": 24.0, "month": 12.0}


@dataclass(frozen=True)
class Column:
    """The fitted encoding of one column; numbers and dates (in seconds since 1970) have a scale."""

    name: str
    kind: str  # "number", "date" or "nominal"
    style: str = ""  # the decimal separator, or the format of dates
    median: float = 0.0
    mean: float = 0.0
    scale: float = 0.0  # 0: the number itself is not a feature
    missing: bool = False  # whether fitted values were missing; if so, there is an indicator for it
    parts: tuple[str, ...] = ()  # of dates: those of hour, weekday and month that vary
    levels: tuple[str, ...] = ()  # values with an indicator each
    pooled: tuple[str, ...] = ()  # rare values that share one indicator
    rounded: bool = False  # whether numbers are rounded to float32 before they are standardised

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the features that encode this column."""
        return (
            *((self.name,) if self.scale else ()),
            *((f"{self.name} is missing",) if self.missing else ()),
            *(f"{self.name}: {part}" for part in self._part_names()),
            *(f"{self.name} = {level}" for level in self.levels),
            *((f"{self.name} = (other)",) if self.pooled else ()),
        )

    def encode(self, values: pd.Series[Any]) -> Iterator[NDArray[Any]]:
        """Yield one array per feature."""
        if self.kind == "nominal":
            text, missing = as_text(values).to_numpy(object), values.isna().to_numpy()
        else:
            number = READ[self.kind](values, self.style)
            number = _rounded(number) if self.rounded else number
            missing = ~np.isfinite(number)
        if self.scale:
            with np.errstate(over="ignore"):
                z = (np.where(missing, self.median, number) - self.mean) / self.scale
            yield _compressed(z)
        if self.missing:
            yield missing
        if self.parts:
            yield from self._encoded_parts(np.where(missing, 0.0, number), missing)
        for level in self.levels:
            yield (text == level) & ~missing
        if self.pooled:
            yield np.isin(text, self.pooled) & ~missing

    def unusable(self, values: pd.Series[Any]) -> str:
        """Say what of these values the encoding cannot use; empty if it can use most of them."""
        known = values.dropna()
        if len(known) == 0:
            return "all values are missing"
        if self.kind == "nominal":
            bad = ~as_text(known).isin({*self.levels, *self.pooled}).to_numpy()
            what, tolerated = "did not occur in the training rows", 0.1
        else:
            bad = np.isnan(READ[self.kind](known, self.style))
            what, tolerated = f"cannot be read as {self.kind}s and count as missing", 0.0
        share = float(bad.mean())
        if share <= tolerated:
            return ""
        amount = "all values" if share == 1.0 else f"{share:.1%} of the values"
        return f"{amount} {what}, for example {str(known[bad].iloc[0])!r}"

    def _part_names(self) -> Iterator[str]:
        for part in self.parts:
            yield from _DAYS if part == "weekday" else (f"{part} (sine)", f"{part} (cosine)")

    def _encoded_parts(
        self, seconds: NDArray[np.float64], missing: NDArray[np.bool_]
    ) -> Iterator[NDArray[Any]]:
        found = date_parts(seconds)
        for part in self.parts:
            if part == "weekday":
                yield from ((found[part] == day) & ~missing for day in range(7))
            else:
                angle = 2 * np.pi * found[part] / _CYCLES[part]
                yield from (np.where(missing, 0.0, wave(angle)) for wave in (np.sin, np.cos))


@dataclass(frozen=True)
class TableEncoder:
    """Encodes the columns of a table as numbers.

    Numbers and dates are standardised; outliers keep their order, but are moved closer. Missing
    numbers become the median, and an indicator marks them. Dates also give hour, weekday and month.
    Text becomes one indicator per level; rare levels share one; levels that were not in the fitted
    rows become zeros. Columns without information are dropped, see `dropped`.
    """

    columns: tuple[Column, ...] = ()  # empty until `fit`
    rare: int = 10  # levels with fewer rows than this share one indicator
    most_levels: int = 50  # the largest number of levels with an indicator of their own
    no_trend: tuple[str, ...] = ()  # dates of which only hour, weekday and month are used
    dropped: dict[str, str] = field(default_factory=dict)  # why a column is not used, by name

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    def fit(self, frame: pd.DataFrame) -> TableEncoder:
        """Return an encoder that is fitted on these rows."""
        learnt = [self._learn(str(name), values) for name, values in frame.items()]
        kept = tuple(column for column, _ in learnt if column.features)
        dropped = {column.name: why for column, why in learnt if not column.features}
        if not kept:
            shown = "; ".join(f"{name}: {why}" for name, why in list(dropped.items())[:8])
            raise UserError(f"the table has no column to learn from ({shown})")
        return replace(self, columns=kept, dropped=dropped)

    def transform(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return (n, features) float32; columns that are not in the fitted table are ignored."""
        if hasattr(frame, "to_pandas"):  # polars and Arrow
            frame = frame.to_pandas()
        if not hasattr(frame, "columns"):
            raise UserError(
                "the rows must be a DataFrame with the columns that the model was trained on "
                f"({', '.join(column.name for column in self.columns)}); got "
                f"{type(frame).__name__}. Of a DataFrame, frame.iloc[[0]] is one row."
            )
        present = {str(name): values for name, values in frame.items()}
        if missing := [column.name for column in self.columns if column.name not in present]:
            lacking = ", ".join(missing)
            raise UserError(f"the table has no columns {lacking}, which the model was trained on")
        encoded = np.empty((len(self.names), len(frame)), np.float32)
        features = (f for column in self.columns for f in column.encode(present[column.name]))
        for place, feature in enumerate(features):
            encoded[place] = feature
        return np.ascontiguousarray(encoded.T)

    def unusable(self, frame: pd.DataFrame) -> dict[str, str]:
        """Return, by column, what of new rows the encoder cannot use; empty if all is well."""
        present = {str(name): values for name, values in frame.items()}
        found = {c.name: c.unusable(present[c.name]) for c in self.columns if c.name in present}
        return {name: note for name, note in found.items() if note}

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TableEncoder:
        """Make an encoder from the dictionary that `to_dict` returns."""
        lists = ("parts", "levels", "pooled")
        columns = tuple(
            Column(**{**c, **{name: tuple(c.get(name, ())) for name in lists}})
            for c in plain["columns"]
        )
        no_trend = tuple(plain.get("no_trend", ()))
        return cls(**{**plain, "columns": columns, "no_trend": no_trend})

    def _learn(self, name: str, values: pd.Series[Any]) -> tuple[Column, str]:
        """Return the encoding of a column, and why it has no feature if it has none."""
        if bool(values.isna().all()):
            return Column(name, "nominal"), "all values are missing"
        kind, style = kind_of(values)
        if kind == "nominal":
            return self._learn_levels(name, values)
        numbers = READ[kind](values, style)
        if not np.isfinite(numbers).any():
            return Column(name, kind, style), "no value can be read"
        column = _standardised(Column(name, kind, style, rounded=True), _rounded(numbers))
        if kind == "date" or abs(column.mean) >= MOST_OFFSET * column.scale:
            column = _standardised(Column(name, kind, style), numbers)
        if kind == "date":
            found = date_parts(numbers[np.isfinite(numbers)])
            varying = tuple(part for part, value in found.items() if np.ptp(value) > 0)
            column = replace(column, parts=varying)
        if name in self.no_trend:
            return replace(column, scale=0.0), "the time of the split"
        if values.nunique() > 1:
            return column, "numbers that differ only after the 16th digit; write codes as text"
        return column, "all values are equal"

    def _learn_levels(self, name: str, values: pd.Series[Any]) -> tuple[Column, str]:
        missing = bool(values.isna().any())
        counts = as_text(values.dropna()).value_counts()
        n_own = min(int((counts >= self.rare).sum()), self.most_levels)  # most frequent first
        levels = tuple(sorted(map(str, counts.index[:n_own])))
        pooled = tuple(map(str, counts.index[n_own:]))
        if len(levels) + bool(pooled) + missing >= 2:
            return Column(name, "nominal", missing=missing, levels=levels, pooled=pooled), ""
        why = f"text: {len(counts)} different values, none in {self.rare} rows or more"
        if len(counts) == 1:
            why = "all values are equal"
        elif are_mixed_dates(values):
            why = "dates in several formats; write all of them like 2024-01-31"
        return Column(name, "nominal"), why


def date_parts(seconds: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return hour (with fractions), weekday (Monday is 0) and month (January is 0) in UTC."""
    days = np.floor(seconds / 86400.0)
    months = seconds.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64) % 12
    return {
        "hour": (seconds - 86400.0 * days) / 3600.0,
        "weekday": (days + 3.0) % 7.0,  # 1970-01-01 was a Thursday
        "month": months.astype(np.float64),
    }


def _rounded(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to float32; numbers that are too large for it stay as they are."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float32).astype(np.float64)
    return np.where(np.isinf(rounded), numbers, rounded)


def _standardised(column: Column, numbers: NDArray[np.float64]) -> Column:
    """Return the column with the median, mean and scale of its numbers."""
    known = np.isfinite(numbers)
    median = float(np.median(numbers[known]))
    mean, scale = _centre_and_scale(np.where(known, numbers, median), median)
    return replace(column, median=median, mean=mean, scale=scale, missing=not known.all())


def _centre_and_scale(numbers: NDArray[np.float64], median: float) -> tuple[float, float]:
    """Return mean and standard deviation, with outliers moved to the quantiles of `OUTLIERS`."""
    centred = numbers - median
    low = float(np.quantile(centred, OUTLIERS, method="lower"))
    high = float(np.quantile(centred, 1.0 - OUTLIERS, method="higher"))
    if low < high:  # else all values but a few are equal: those few must count
        centred = np.clip(centred, low, high)
    peak = float(np.abs(centred).max()) or 1.0  # divided by this, no square overflows
    return median + float((centred / peak).mean() * peak), float((centred / peak).std() * peak)


def _compressed(z: NDArray[np.float64]) -> NDArray[np.float64]:
    z = np.clip(z, -1e300, 1e300)
    beyond = np.maximum(np.abs(z) - LINEAR_RANGE, 0.0)
    return np.asarray(np.sign(z) * (np.minimum(np.abs(z), LINEAR_RANGE) + np.log1p(beyond)))

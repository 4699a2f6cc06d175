"""Read the values of a column as numbers, amounts or dates, and tell which of these it holds.

>>> import pandas as pd
>>> kind_of(pd.Series(["1.234,50 €", "12,00 €"]))
('number', ',')
>>> kind_of(pd.Series(["0638", "1204"]))  # a code: its leading zero would be lost
('nominal', '')
>>> kind_of(pd.Series(["31.01.2024", "01.02.2024"]))
('date', '%d.%m.%Y')
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

NUMERIC_SHARE = 0.95
"""A text column of which at least this share can be read as numbers is a numeric column."""

_SAMPLE = 500  # texts of a column by which the decimal separator is chosen
_HUGE = 1e300  # numbers are clipped to this, so that differences of two do not overflow

# Signs and codes of currencies, and per cent, before or after an amount.
_CODES = "USD|EUR|GBP|CHF|JPY|CNY|RMB|INR|AUD|CAD|NZD|SGD|HKD|SEK|NOK|DKK|PLN|CZK|HUF|RON|BGN|ISK"
_CODES += "|TRY|RUB|UAH|ILS|AED|SAR|ZAR|NGN|KES|EGP|BRL|MXN|ARS|CLP|COP|PEN|KRW|THB|IDR|MYR|PHP|VND"
_UNIT = rf"(?:(?:US|AU|CA|NZ|R|A|C|S|HK)?\$|[€£¥₹₽₩₺₴₫฿₪]|\b(?:{_CODES})\b|zł|Kč|kr\.?|Fr\.?|%)"
_SIGN = r"[+\-−]?"
_SPACES = "'’\u00a0\u202f "
# By decimal separator: digits with correct groups of thousands.
_DIGITS = {
    ".": rf"(?:\d{{1,3}}(?:[,{_SPACES}]\d{{3}})+|\d+)(?:\.\d+)?|\.\d+",
    ",": rf"(?:\d{{1,3}}(?:[.{_SPACES}]\d{{3}})+|\d+)(?:,\d+)?|,\d+",
}
_AMOUNT = {
    decimal: re.compile(
        rf"(?P<open>\()?(?P<sign>{_SIGN})\s*{_UNIT}?\s*(?P<inner>{_SIGN})"
        rf"(?P<digits>{digits})\s*{_UNIT}?(?(open)\))",
        re.IGNORECASE,
    )
    for decimal, digits in _DIGITS.items()
}
_LEADING_ZERO = re.compile(r"0\d+")
_THOUSANDS_BY_DOT = re.compile(r"\D*\d{1,3}(?:\.\d{3})*\D*")

_ISO = "ISO8601"
_DAYS = (
    *("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y"),
    *("%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_DATE_FORMATS = (
    _ISO,
    *(day + time for time in ("", " %H:%M", " %H:%M:%S") for day in _DAYS),
    *("%H:%M", "%H:%M:%S"),  # times of day
)


def kind_of(values: pd.Series[Any]) -> tuple[str, str]:
    """Return "number", "date" or "nominal", and how text is to be read.

    For numbers that is the decimal separator, for dates their format, and else an empty string.
    """
    from pandas.api import types  # type: ignore[import-untyped]

    if types.is_numeric_dtype(values.dtype) or types.is_timedelta64_dtype(values.dtype):
        return "number", "."
    if types.is_datetime64_any_dtype(values.dtype):
        return "date", _ISO
    known = values.dropna()
    if isinstance(values.dtype, types.CategoricalDtype) or len(known) == 0:
        return "nominal", ""
    distinct = known.map(str).unique()
    if any(_LEADING_ZERO.fullmatch(text.strip()) for text in distinct):
        return "nominal", ""
    some = distinct[:: max(1, len(distinct) // _SAMPLE)]
    decimal, share = _decimal_separator(some)
    # The whole column is read only if the sample does not exclude that it is numeric.
    if share > 0.5 and np.isfinite(as_numbers(known, decimal)).mean() >= NUMERIC_SHARE:
        return "number", decimal
    for style in _DATE_FORMATS:
        # One value that does not match is enough to go on to the next format.
        first = np.isfinite(as_dates(known.iloc[:20], style)).all()
        if first and np.isfinite(as_dates(known, style)).all():
            return "date", style
    return "nominal", ""


def are_mixed_dates(values: pd.Series[Any]) -> bool:
    """Return whether almost all values are dates, but no format fits all of them."""
    some = values.dropna().iloc[:_SAMPLE]
    read = [np.isfinite(as_dates(some, style)) for style in _DATE_FORMATS]
    return bool(np.any(read, axis=0).mean() >= NUMERIC_SHARE)


def as_text(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return the values as text; whole numbers have no decimals, whatever their type.

    A column of codes that is read as floats in one file, because some are missing, has then the
    same text as in another file.
    """
    return values.astype(object).map(_text)


def as_numbers(values: pd.Series[Any], decimal: str = ".") -> NDArray[np.float64]:
    """Return (n,) numbers; NaN for values that are missing, infinite or cannot be read."""
    import pandas as pd
    from pandas.api import types

    if types.is_timedelta64_dtype(values.dtype):
        return np.asarray(values.dt.total_seconds(), np.float64)
    if isinstance(values.dtype, types.CategoricalDtype):
        values = values.astype(object)
    if types.is_numeric_dtype(values.dtype):
        numbers = pd.to_numeric(values).to_numpy(np.float64, na_value=np.nan)
    else:
        numbers = _by_distinct(values, lambda one: _number(one, decimal))
    return np.where(np.isfinite(numbers), np.clip(numbers, -_HUGE, _HUGE), np.nan)


def as_dates(values: pd.Series[Any], style: str = _ISO) -> NDArray[np.float64]:
    """Return (n,) seconds since 1970; NaN for values that are missing or cannot be read."""
    import pandas as pd
    from pandas.api import types

    if not types.is_datetime64_any_dtype(values.dtype):
        values = values.astype(object).map(str)
    times = pd.to_datetime(values, errors="coerce", utc=True, format=style)
    # Microseconds reach from year 0 to 9999. pandas' own difference to 1970 does not.
    exact = times.dt.tz_localize(None).to_numpy().astype("datetime64[us]")
    return np.where(np.isnat(exact), np.nan, exact.astype(np.int64) / 1e6)


READ: dict[str, Callable[[pd.Series[Any], str], NDArray[np.float64]]] = {
    "number": as_numbers,
    "date": as_dates,
}


def _text(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return str(int(value) if whole else value)  # type: ignore[call-overload]


def _number(value: object, decimal: str) -> float:
    """Read one value; text is stripped of currency, per cent and separators of thousands."""
    if not isinstance(value, str):
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return np.nan
    if decimal == ".":
        try:
            return float(value) if "_" not in value else np.nan
        except ValueError:
            pass
    found = _AMOUNT[decimal].fullmatch(value.strip())
    if found is None:
        return np.nan
    digits = re.sub(
        rf"[{_SPACES}]|{re.escape(',' if decimal == '.' else '.')}", "", found["digits"]
    )
    minus = any(sign in "-−" for sign in found["sign"] + found["inner"]) or found["open"]
    return float(digits.replace(",", ".")) * (-1.0 if minus else 1.0)


def _decimal_separator(distinct: Any) -> tuple[str, float]:
    """Return the decimal separator with which more texts are numbers, and the share of those."""
    found = {d: [text for text in distinct if not np.isnan(_number(text, d))] for d in _AMOUNT}
    if len(found[","]) != len(found["."]):
        best = max(found, key=lambda d: len(found[d]))
        return best, len(found[best]) / len(distinct)
    # Amounts such as 1.234 € and 999 €: the dots separate thousands if there is a currency.
    plain = all(re.fullmatch(rf"{_SIGN}[\d.,]+", text.strip()) for text in found[","])
    dots = any("." in text for text in found[","])
    grouped = all(_THOUSANDS_BY_DOT.fullmatch(text) for text in found[","])
    decimal = "," if dots and grouped and not plain else "."
    return decimal, len(found[decimal]) / len(distinct)


def _by_distinct(values: pd.Series[Any], read: Callable[[object], float]) -> NDArray[np.float64]:
    """Apply a function to each distinct value once; missing values become NaN."""
    codes, distinct = values.astype(object).factorize()
    table = np.array([*map(read, distinct), np.nan])
    return np.asarray(table[codes], np.float64)

"""Check the options of a pair loss: which pairs count, the margin and the reduction."""

from __future__ import annotations

import math
from functools import lru_cache
from numbers import Real
from typing import Any

from everypair import surrogates
from everypair.surrogates import PairTerm, Surrogate

_PAIRS = ("binary", "ordered", "survival")
_CENSORING = ("harrell", "uno")


def check_rate(value: object, name: str, whole: float, *, closed: bool = True) -> float:
    """Check a bound on a rate and return it; `whole` is the one that keeps the whole curve.

    The other end is allowed for max_fpr if the bound is `closed`, and never for min_tpr.
    """
    rate = _number(value)
    if 0.0 <= rate <= 1.0 and (rate != 1.0 - whole or (closed and whole == 1.0)):
        return rate
    least = "at least 0" if closed or not whole else "above 0"
    rule = f"{least} and at most 1" if whole else f"{least} and below 1"
    raise ValueError(
        f"{name} must be a number {rule}; got {value!r}. {whole} keeps the whole curve."
    )


def check_pairs(pairs: str, censoring: str) -> None:
    """Check which pairs count, and how censored ones are weighted."""
    if pairs not in _PAIRS:
        raise ValueError(
            "pairs must be 'binary' (positives above negatives), 'ordered' (higher targets above "
            f"lower ones) or 'survival' (earlier events above later times); got {pairs!r}."
        )
    if censoring not in _CENSORING:
        raise ValueError(
            "censoring must be 'harrell' (all pairs count the same) or 'uno' (inverse probability "
            f"of censoring); got {censoring!r}."
        )
    if censoring != "harrell" and pairs != "survival":
        raise ValueError(f"censoring must be left out if pairs is not 'survival'; got {pairs!r}.")


def check_rates(max_fpr: object, min_tpr: object, pairs: str) -> tuple[float, float] | None:
    """Check the bounds of a partial AUC and return both; None if neither is given."""
    if max_fpr is None and min_tpr is None:
        return None
    widest = 1.0 if max_fpr is None else check_rate(max_fpr, "max_fpr", 1.0)
    lowest = 0.0 if min_tpr is None else check_rate(min_tpr, "min_tpr", 0.0)
    if pairs != "binary":
        raise ValueError(
            "max_fpr and min_tpr must be left out if pairs is not 'binary', because only two "
            f"classes have a ROC curve; got pairs={pairs!r}."
        )
    return widest, lowest


def check_margin(margin: object, default: float | None = None) -> float:
    """Check the margin and return it as a float; None stands for the default, if there is one."""
    if type(margin) is float and 0.0 <= margin < math.inf:
        return margin
    if margin is None and default is not None:
        return default
    number = _number(margin)
    if 0.0 <= number < math.inf:
        return number
    raise ValueError(
        f"margin must be a finite number of at least 0; got {margin!r}. "
        "It is the lead in score that a positive should have over a negative; 1.0 is usual."
    )


def _number(value: Any) -> float:
    """Return a real number, or an array or a tensor that is one, as a float; NaN for all others."""
    try:
        return float(value) if isinstance(value, Real) or value.shape == () else math.nan
    except (AttributeError, TypeError, ValueError, OverflowError):
        return math.nan


def check_reduction(reduction: str) -> bool:
    """Check the reduction and return whether it is the mean."""
    if reduction in ("mean", "sum"):
        return reduction == "mean"
    raise ValueError(
        f"reduction must be 'mean' (divide by the total pair weight) or 'sum'; got {reduction!r}. "
        "There is no reduction per row: a loss belongs to pairs."
    )


def terms_at(surrogate: str | Surrogate, margin: object) -> tuple[PairTerm, ...]:
    """Check a surrogate, or its name, and a margin; return the terms of the surrogate there."""
    chosen = surrogates.get(surrogate)
    return chosen.at_margin(check_margin(margin, chosen.default_margin))


_terms_of_name = lru_cache(maxsize=64)(terms_at)


def loss_options(
    surrogate: str | Surrogate, margin: float | None, reduction: str
) -> tuple[tuple[PairTerm, ...], bool]:
    """Check the options of a loss; return the terms of the surrogate, and whether to average."""
    is_plain = type(surrogate) is str and (margin is None or type(margin) is float)
    terms = (_terms_of_name if is_plain else terms_at)(surrogate, margin)
    return terms, reduction == "mean" or check_reduction(reduction)

"""Clear errors for functions such as `lightgbm_objective` that are passed without being called."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def maker(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that makes an objective or a metric for LightGBM or XGBoost.

    These libraries call what they are given with two arrays or more, and such a function takes its
    options by keyword. If it receives arrays, the error says what to type.
    """

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        if len(args) > 1 and not isinstance(args[0], str):
            _raise_uncalled(function, f"{function.__name__}()")
        return function(*args, **options)

    return checked


def catboost_maker(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that makes an objective for CatBoost from the labels.

    CatBoost does not call what it is given, but its method `calc_ders_range`.
    """

    def calc_ders_range(*_: Any) -> NoReturn:
        _raise_uncalled(function, f"{function.__name__}(labels)")

    vars(function)["calc_ders_range"] = calc_ders_range
    return function


def _raise_uncalled(function: Callable[..., Any], call: str) -> NoReturn:
    raise TypeError(
        f"{function.__name__} is a function that makes an objective or a metric, and was passed "
        f"without being called. Pass {call}, with the parentheses."
    )

"""Command-line parameters that several commands share: options with help, lists of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import typer

from everypair.experiments.errors import UserError

Number = TypeVar("Number", int, float)


def option(text: str, *, default: str | None = None, **more: Any) -> Any:
    """Return a typer option; `default` describes in words what a default of None means."""
    return typer.Option(help=text, show_default=True if default is None else default, **more)


JsonFlag: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@dataclass(frozen=True)
class NumberRule(Generic[Number]):
    """How to read one number of an option, and which values it may have."""

    read: Callable[[str], Number]
    accepts: Callable[[Number], bool]
    text: str


FINITE = NumberRule(float, math.isfinite, "each finite")


def numbers(name: str, text: str, rule: NumberRule[Number]) -> list[Number]:
    """Return the numbers between commas; raise UserError if one of them breaks the rule.

    >>> numbers("margin", "1,2.5", FINITE)
    [1.0, 2.5]
    """
    try:
        found = [rule.read(word.strip()) for word in text.split(",") if word.strip()]
    except ValueError:
        found = []
    if not found or not all(map(rule.accepts, found)):
        raise UserError(f"--{name} must be numbers separated by commas, {rule.text}; got {text!r}.")
    return found

"""Command-line parameters that several commands share: options with help, lists of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from everypair.experiments.errors import UserError


def option(text: str, *, default: str | None = None, **more: Any) -> Any:
    """Return a typer option; `default` describes in words what a default of None means."""
    return typer.Option(help=text, show_default=True if default is None else default, **more)


def flag(name: str, text: str, **more: Any) -> Any:
    """Return a typer option without a value, and without an opposite such as ``--no-json``."""
    return typer.Option(name, help=text, **more)


def margin_option(default: str, **more: Any) -> Any:
    """Return the option ``--margin``; `default` describes what a default of None means."""
    text = "Margin of the pairwise losses."
    return option(text, default=default, min=0.0, callback=_check_finite, **more)


def _check_finite(margin: float | None) -> float | None:
    if margin == math.inf:
        raise UserError("--margin must be a finite number; got inf.")
    return margin


def check_folder(out: Path | None) -> Path | None:
    """Refuse the URL of a database as the value of ``--out``."""
    if out is not None and re.match(r"\w[\w+.-]+:/", str(out)):
        raise UserError(
            f"--out must be a folder; got {str(out)!r}, which looks like a URL. A database is "
            "named by --storage of `everypair experiment`."
        )
    return out


JsonFlag: TypeAlias = Annotated[bool, flag("--json", "Print JSON instead of text.")]


def words(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(
    name: str,
    text: str,
    rule: str = "each finite",
    accepts: Callable[[Any], bool] = math.isfinite,
    read: Callable[[str], float] = float,
) -> list[Any]:
    """Return the numbers between commas; raise UserError with the rule if one is not accepted.

    >>> numbers("margin", "1,2.5")
    [1.0, 2.5]
    """
    try:
        found = [read(word) for word in words(text)]
    except ValueError:
        found = []
    if not found or not all(map(accepts, found)):
        raise UserError(f"--{name} must be numbers separated by commas, {rule}; got {text!r}.")
    return found

r"""Print text and JSON. Names and values of the user's files cannot control the terminal.

>>> echo("label\x1b[31m = yes")
label\x1b[31m = yes
>>> echo_json({"auc": 0.5, "losses": {"exponential": float("inf")}}, indent=None)
{"auc": 0.5, "losses": {"exponential": null}}
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# All control characters but tab and line feed, marks that change the direction of text, line
# separators, and the surrogates that stand for undecodable bytes of file names.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return a text whose control characters are escaped, such as ``\x1b``."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text on standard output, or on standard error."""
    import typer

    typer.echo(printable(text), err=err)


def echo_json(plain: Any, *, indent: int | None = 2) -> None:
    """Print JSON; numbers that are not finite, which it does not have, become null."""
    echo(json.dumps(_without_infinities(plain), indent=indent, allow_nan=False))


def console(*, stderr: bool = False) -> Console:
    """Return a console of rich that takes text literally: no markup, no names of emoji."""
    from rich.console import Console

    class Literal(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    return Literal(stderr=stderr, markup=False, emoji=False, highlight=False)


def _without_infinities(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _without_infinities(value) for name, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_without_infinities(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain

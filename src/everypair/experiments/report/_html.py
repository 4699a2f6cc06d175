"""Tables of the page: real ones, with captions, header cells, and numbers to sort by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from everypair.experiments.display_names import display_name
from everypair.experiments.report.selection import Contender
from everypair.experiments.report.study import Study

__all__ = ["Value", "colour", "short", "table", "who"]

N_COLOURS = 6


@dataclass(frozen=True)
class Value:
    """A cell: what is shown, as HTML, and for numbers what it is sorted by."""

    html: str
    number: float | None = None
    kind: str = ""

    def cell(self, tag: str = "td") -> str:
        """Return the cell as an element; the first of a row heads it."""
        kind = f"{self.kind} number" if self.number is not None else self.kind
        by = "" if self.number is None else f' data-v="{_plain(self.number)}"'
        scope = ' scope="row"' if tag == "th" else ""
        return f'<{tag}{scope} class="{kind.strip()}"{by}>{self.html}</{tag}>'


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Value]], *, n_row_heads: int = 1
) -> str:
    """Return a sortable table that scrolls by itself where it is too wide."""
    numeric = [value.number is not None for value in rows[0]] if rows else []
    head = "".join(
        f'<th scope="col"{" class=number" if right else ""}>{escape(text)}</th>'
        for text, right in zip(heads, numeric, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(v.cell('th' if k < n_row_heads else 'td') for k, v in enumerate(row))}</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="sortable"><caption><span>{escape(caption)}</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def colour(study: Study, one: Contender) -> str:
    """Return the CSS class of a contender's colour."""
    return f"c{study.contenders.index(one) % N_COLOURS}"


def short(study: Study, one: Contender) -> str:
    """Return a contender with its colour, as briefly as it can be told from the others."""
    return f'<span class="dot {colour(study, one)}"></span>{escape(study.called(one))}'


def who(study: Study, one: Contender) -> str:
    """Return a contender with its colour: loss and optimiser."""
    return (
        f'<span class="dot {colour(study, one)}"></span>{escape(display_name(one.loss))} '
        f"<small>+ {escape(display_name(one.optimiser))}</small>"
    )


def _plain(number: float) -> str:
    return "NaN" if math.isnan(number) else f"{number:.10g}"

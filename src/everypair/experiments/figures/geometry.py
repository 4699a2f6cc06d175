"""The paper's figure 1, for any polynomial surrogate: the loss of a pair as a polynomial.

As a function of a negative's score x, the loss of its pair with a positive of score s is
``a x^2 + b x + c`` for x beyond a knot (paper, equations for a_j, b_j, c_j). The coefficients of
all positives are added, and the sum is evaluated once at each negative, without a loop over pairs.

>>> from everypair.surrogates import SQUARE
>>> found = geometry(SQUARE, positives=[0.0, 2.0], negatives=[1.0], margin=1.0)
>>> found.pieces[1]
[Piece(positive=2.0, knot=None, a=1.0, b=-2.0, c=1.0)]
>>> found.sums
[Sum(negative=1.0, a=2.0, b=0.0, c=2.0, value=4.0)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from everypair.experiments.figures.output import styled
from everypair.surrogates import Term

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from everypair.surrogates import Surrogate

_COLOURS = ("#c44e52", "#55a868", "#0b62c4", "#dd8452", "#8172b3", "#2a9d8f")
_POINTS = 800


@dataclass(frozen=True)
class Piece:
    """One term of a positive's loss as a function of a negative's score x; active for x > knot."""

    positive: float
    knot: float | None
    a: float
    b: float
    c: float


@dataclass(frozen=True)
class Sum:
    """The summed coefficients of the active terms at a negative, and their value there."""

    negative: float
    a: float
    b: float
    c: float
    value: float


@dataclass(frozen=True)
class Geometry:
    """The pieces of each positive, the sums at each negative, and the loss over all pairs."""

    surrogate: Surrogate
    margin: float
    pieces: list[list[Piece]]
    sums: list[Sum]
    loss: float


def geometry(
    surrogate: Surrogate,
    *,
    positives: Sequence[float],
    negatives: Sequence[float],
    margin: float | None = None,
) -> Geometry:
    """Write the loss of every positive as polynomials in a negative's score, and sum them.

    All terms of the surrogate must be polynomials.
    """
    margin = surrogate.default_margin if margin is None else margin
    pieces = [_pieces(surrogate, score, margin) for score in positives]
    sums = [_sum(pieces, score) for score in negatives]
    return Geometry(surrogate, margin, pieces, sums, math.fsum(s.value for s in sums))


def draw(*found: Geometry) -> Figure:
    """Draw the positives' curves on the left, and their sum with the negatives on the right.

    Each geometry has a row of its own.
    """
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(11, 4.6 * len(found)), layout="constrained")
        rows = figure.subfigures(len(found), squeeze=False)[:, 0]
        for row, one in zip(rows, found, strict=True):
            _draw_row(row, one)
    return figure


def _draw_row(row: SubFigure, found: Geometry) -> None:
    positives = [terms[0].positive for terms in found.pieces]
    negatives = [s.negative for s in found.sums]
    knots = [p.knot for terms in found.pieces for p in terms if p.knot is not None]
    ends = [*positives, *negatives, *knots]
    border = 0.15 * (max(ends) - min(ends)) or 1.0
    x = np.linspace(min(ends) - border, max(ends) + border, _POINTS)
    curves = [found.surrogate.value(found.margin - (s - x)) for s in positives]

    left, right = row.subplots(1, 2, sharex=True)
    _draw_each(left, found, x, curves)
    _draw_sum(right, found, x, np.sum(curves, axis=0))
    for axes in (left, right):
        axes.set_xlabel("score x of a negative")
    name = found.surrogate.name.replace("_", " ")
    row.suptitle(f"{name}, margin {found.margin:g}: loss over all pairs {found.loss:.4g}")


def _pieces(surrogate: Surrogate, score: float, margin: float) -> list[Piece]:
    # The shortfall is t = x + shift; insert it into c0 + c1 t + c2 t^2.
    shift = margin - score
    return [
        Piece(
            positive=score,
            knot=None if term.knot is None else term.knot - shift,
            a=term.c2,
            b=term.c1 + 2.0 * term.c2 * shift,
            c=term.c0 + shift * (term.c1 + term.c2 * shift),
        )
        for term in surrogate.terms
        if isinstance(term, Term)
    ]


def _sum(pieces: list[list[Piece]], x: float) -> Sum:
    counted = [p for terms in pieces for p in terms if p.knot is None or x > p.knot]
    a, b, c = (math.fsum(getattr(p, name) for p in counted) for name in "abc")
    return Sum(x, a, b, c, (a * x + b) * x + c)


def _draw_each(axes: Axes, found: Geometry, x: np.ndarray, curves: list[np.ndarray]) -> None:
    for j, (terms, curve) in enumerate(zip(found.pieces, curves, strict=True)):
        colour = _COLOURS[j % len(_COLOURS)]
        axes.plot(x, curve, color=colour, linewidth=2, label=_formula(terms))
        axes.plot([terms[0].positive], [0.0], "o", color=colour, clip_on=False, zorder=5)
        for knot in {p.knot for p in terms if p.knot is not None}:
            axes.axvline(knot, color=colour, linewidth=0.8, linestyle=":")
    axes.set_title("1. Each positive (dot) is a curve: its loss with a negative at x")
    axes.set_ylabel("loss of one pair")
    axes.legend(fontsize=8.5, loc="upper left", frameon=True, edgecolor="none", framealpha=0.9)


def _draw_sum(axes: Axes, found: Geometry, x: np.ndarray, total: np.ndarray) -> None:
    axes.plot(x, total, color="#8e44ad", linewidth=2.6)
    base = min(0.0, float(total.min()))
    axes.axhline(base, linewidth=0)  # so that the arrows begin inside of the axes
    arrow = {"arrowstyle": "->", "color": "black", "shrinkA": 0, "shrinkB": 0}
    for s in found.sums:
        point = (s.negative, s.value)
        axes.annotate("", point, (s.negative, base), arrowprops=arrow)
        axes.plot(*point, "o", color="black", markersize=4)
        text = axes.annotate(f"{s.value:.3g}", point, (-5, 5), textcoords="offset points")
        text.set(ha="right", fontsize=9)
    axes.set_title("2. Their sum, evaluated once at each negative (arrow)")
    axes.set_ylabel("loss of all pairs of one negative")


def _formula(terms: list[Piece]) -> str:
    """Return the loss of a positive as text, such as 'x² - 2 x + 1 where x > 0'."""
    return "\n".join(
        _polynomial(p) + ("" if p.knot is None else f" where x > {_number(p.knot)}") for p in terms
    )


def _polynomial(piece: Piece) -> str:
    parts = []
    for value, power in ((piece.a, "x²"), (piece.b, "x"), (piece.c, "")):
        if value == 0.0:
            continue
        size = "" if abs(value) == 1.0 and power else _number(abs(value))
        sign = "−" if value < 0.0 else "+"
        parts.append(f"{sign} {size}{' ' if size and power else ''}{power}")
    text = " ".join(parts) or "0"
    return text[2:] if text.startswith("+ ") else text.replace("− ", "−", 1)


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")

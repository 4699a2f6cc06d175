"""The terms of a surrogate by the shift at which their formula changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from everypair.surrogates import (
    ExponentialTerm,
    Floats,
    KnotTerm,
    PairTerm,
    ShiftedTerm,
    SmoothTerm,
)


class Side(NamedTuple):
    """A function of a distance |d|, for the pairs on one side of a shift.

        p_0 + p_1 |d| + p_2 d^2 + sum over k >= 1 of (c_k + e_k u) exp(-k u),   u = rate |d|

    The last coefficient of each array is not zero, and arrays may be empty; `c` and `e` have the
    same length. `e` is None if it would be zero.
    """

    p: Floats
    c: Floats
    e: Floats | None


class Piece(NamedTuple):
    """The terms that change their formula at one shift.

    With ``d = y + shift - x``, ``sides[order][0]`` holds for d <= 0 and ``sides[order][1]`` for
    d > 0. The orders are the value (0), the slope (1) and the curvature (2), the derivatives with
    respect to d. `coefficients` holds c and p of all orders and sides, of shape (3, 2, K) and
    (3, 2, 3).
    """

    shift: float
    rate: float
    sides: tuple[tuple[Side, Side], ...]
    coefficients: tuple[Floats, Floats]


class Part(Protocol):
    """The sums of a piece, or of an exponential term."""

    def sums(self, weights: Any, orders: Sequence[int], per_other: bool) -> list[Any]:
        """See `RowSums`."""


Exponential = tuple[float, ExponentialTerm]  # with its shift


@lru_cache(maxsize=64)
def pieces_of(
    terms: tuple[PairTerm, ...], *, wide: bool
) -> tuple[tuple[Piece, ...], tuple[Exponential, ...]]:
    """Return the terms by shift, and the exponential terms.

    `wide` says that scores are float64, which need more powers.
    """
    shifted = [term for term in terms if isinstance(term, ShiftedTerm)]
    smooth = [(shift, term) for shift, term in shifted if isinstance(term, SmoothTerm)]
    exponential = [(shift, term) for shift, term in shifted if isinstance(term, ExponentialTerm)]
    truncated = [term for term in terms if isinstance(term, KnotTerm)]
    found = []
    for shift, term in smooth:
        # The first smooth term takes the truncated ones of its shift with it.
        own = [knot_term for knot_term in truncated if knot_term.shift == shift]
        truncated = [knot_term for knot_term in truncated if knot_term.shift != shift]
        found.append(_piece(shift, term.rate, own, *_powers(term, wide)))
    for shift in sorted({term.shift for term in truncated}):
        own = [term for term in truncated if term.shift == shift]
        found.append(_piece(shift, 1.0, own, *np.zeros((2, 3, 2, 0))))
    return tuple(found), tuple(exponential)


def _powers(term: SmoothTerm, wide: bool) -> Floats:
    """Return c and e of a smooth term, of shape (2, orders, sides, powers)."""
    fits = term.high if wide else term.low
    n_powers = max(len(side) for fit in fits for side in (fit.below, fit.above))
    found = np.zeros((2, 3, 2, n_powers))
    for order, fit in enumerate(fits):
        for side, pairs in enumerate((fit.below, fit.above)):
            found[:, order, side, : len(pairs)] = np.transpose(pairs)
        found[:, order] *= term.scale * term.rate**order
    return found


def _piece(shift: float, rate: float, terms: list[KnotTerm], c: Floats, e: Floats) -> Piece:
    p = np.zeros((3, 2, 3))
    for _, b0, b1, b2, truncated in terms:
        of_orders = np.array([[b0, b1, b2], [b1, 2.0 * b2, 0.0], [2.0 * b2, 0.0, 0.0]])
        p[:, 1] += of_orders
        if not truncated:
            p[:, 0] += of_orders * [1.0, -1.0, 1.0]  # d = -|d| there
    below, above = (
        [_side(*arrays) for arrays in zip(p[:, i], c[:, i], e[:, i], strict=True)] for i in (0, 1)
    )
    sides = tuple(zip(below, above, strict=True))
    return Piece(shift, rate, sides, (np.ascontiguousarray(c), p))


def _side(p: Floats, c: Floats, e: Floats) -> Side:
    n_powers = np.flatnonzero((c != 0.0) | (e != 0.0)).max(initial=-1) + 1
    c, e = c[:n_powers], e[:n_powers]
    return Side(np.trim_zeros(p, "b"), c, e if e.any() else None)

"""The one encoding of a surrogate as numbers, which every backend reads.

With ``d = s_neg + shift - s_pos`` and ``u = rate |d|``, a pair has the value, the slope (its
derivative in d) and the curvature (the second derivative)

    p_0 + p_1 |d| + p_2 d^2 + unit sum over k >= 1 of (c_k + e_k u) exp(-k u)

where the coefficients depend on the order of the derivative and on the side of d = 0, and `unit` is
the scale of the smooth term times the rate to the power of the order. Exponential terms, which are
one product on both sides, stand beside them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from everypair.surrogates._terms import (
    ExponentialTerm,
    Floats,
    KnotTerm,
    PairTerm,
    ShiftedTerm,
    SmoothTerm,
)


class Table(NamedTuple):
    """The polynomials, and at most one smooth term, that change their formula at one shift.

    Orders of derivatives are 0, 1 and 2, side 0 is d <= 0, and side 1 is d > 0. The side must be
    decided exactly, for the real numbers that the floats represent: a truncated term and the smooth
    term that completes it both jump at d = 0, and only their sum does not.

    Attributes
    ----------
    shift, rate, scale : float
    p : (3, 2, 3) float64
        By order, side and degree.
    c, e : (3, 2, K) float64
        By order, side and power, for derivatives by u. K is 0 without a smooth term.
    bound : float
        The largest relative error of the value.
    """

    shift: float
    rate: float
    scale: float
    p: Floats
    c: Floats
    e: Floats
    bound: float

    @property
    def units(self) -> Floats:
        """What `c` and `e` are multiplied by, of shape (3, 1, 1)."""
        return np.array([self.scale * self.rate**order for order in range(3)])[:, None, None]

    def n_powers(self, *orders: int) -> int:
        """Return the number of powers that these orders have; that of the others may be larger."""
        is_used = (self.c != 0.0) | (self.e != 0.0)
        return int(np.flatnonzero(is_used[list(orders)].any((0, 1))).max(initial=-1)) + 1


class Exponential(NamedTuple):
    """An exponential term: ``scale * exp(rate * d)``."""

    shift: float
    rate: float
    scale: float


class Tables(NamedTuple):
    """A surrogate at a margin; the tables of smooth terms come first."""

    pieces: tuple[Table, ...]
    exponential: tuple[Exponential, ...]


@lru_cache(maxsize=128)
def tables(terms: tuple[PairTerm, ...], wide: bool) -> Tables:
    """Encode the terms of a surrogate for float64 scores (`wide`), or float32, with fewer powers.

    Polynomials belong to the first smooth term of the same shift; a constant that counts on both
    sides belongs to the first smooth term of any shift.

    Examples
    --------
    >>> from everypair.surrogates import logistic
    >>> (table,), _ = tables(logistic().at_margin(0.0), False)
    >>> table.p[:, 1].tolist()  # d, 1 and 0 where d > 0
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    >>> table.c.shape
    (3, 2, 12)
    """
    shifted = [term for term in terms if isinstance(term, ShiftedTerm)]
    smooth = [(shift, term) for shift, term in shifted if isinstance(term, SmoothTerm)]
    polynomials = [term for term in terms if isinstance(term, KnotTerm)]
    shifts = [shift for shift, _ in smooth]
    places: dict[int, list[KnotTerm]] = {i: [] for i in range(len(smooth))}
    knot_terms: dict[float, list[KnotTerm]] = {}
    for term in polynomials:
        if term.shift in shifts:
            places[shifts.index(term.shift)].append(term)
        elif smooth and not (term.truncated or term.b1 or term.b2):
            places[0].append(term)
        else:
            knot_terms.setdefault(term.shift, []).append(term)
    pieces = [_smooth_table(shift, term, places[i], wide) for i, (shift, term) in enumerate(smooth)]
    none = np.zeros((3, 2, 0))
    pieces += [
        Table(shift, 1.0, 1.0, _polynomials(knot_terms[shift]), none, none, 0.0)
        for shift in sorted(knot_terms)
    ]
    exponential = tuple(
        Exponential(shift, term.rate, term.scale)
        for shift, term in shifted
        if isinstance(term, ExponentialTerm)
    )
    return Tables(tuple(pieces), exponential)


def _polynomials(terms: list[KnotTerm]) -> Floats:
    p = np.zeros((3, 2, 3))
    for _, b0, b1, b2, truncated in terms:
        derivatives = np.array([[b0, b1, b2], [b1, 2.0 * b2, 0.0], [2.0 * b2, 0.0, 0.0]])
        p[:, 1] += derivatives
        if not truncated:
            p[:, 0] += derivatives * [1.0, -1.0, 1.0]  # d = -|d| there
    p.flags.writeable = False
    return p


def _smooth_table(shift: float, term: SmoothTerm, polynomials: list[KnotTerm], wide: bool) -> Table:
    fits = term.high if wide else term.low
    n_powers = max(len(side) for fit in fits for side in (fit.below, fit.above))
    powers = np.zeros((2, 3, 2, n_powers))
    for order, fit in enumerate(fits):
        for side, pairs in enumerate((fit.below, fit.above)):
            powers[:, order, side, : len(pairs)] = np.transpose(pairs)
    powers.flags.writeable = False
    p = _polynomials(polynomials)
    return Table(shift, term.rate, term.scale, p, powers[0], powers[1], fits.value.bound)

"""Which smooth surrogates the kernels take, and their numbers as kernels take them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from everypair.surrogates import PairTerm, Table, tables


class Numbers(NamedTuple):
    """One smooth term and the polynomials that belong to it, for scores of one type.

    A pair adds ``constant + scale f(rate d)`` where d <= 0, and
    ``b0 + b1 d + b2 d^2 + scale f(rate d)`` where d > 0, with ``d = s_neg + shift - s_pos``.
    """

    shift: float
    rate: float
    scale: float
    b0: float
    b1: float
    b2: float
    constant: float


@lru_cache(maxsize=64)
def takes(terms: tuple[PairTerm, ...]) -> bool:
    """Return whether `by_powers` computes a surrogate.

    It has one smooth term, and beside it constants and polynomials that are truncated where the
    smooth term changes sides. It must be continuous there, with its first two derivatives: rows of
    both classes with equal positions are sorted in any order.
    """
    pieces, exponential = tables(terms, True)
    if len(pieces) != 1 or exponential or not pieces[0].c.size or pieces[0].p[1:, 0].any():
        return False
    return bool(pieces[0].scale) and all(
        _is_smooth(table_of(terms, wide)) for wide in (False, True)
    )


def _is_smooth(table: Table) -> bool:
    """Return whether all jumps at d = 0 are errors of the fits.

    The relative error of a fit grows by the square of its degree with each derivative (Markov).
    """
    max_jump = 4.0 * table.bound
    polynomials = (table.p[:, 1, 0] - table.p[:, 0, 0]) / table.units.ravel()
    for polynomial, (below, above) in zip(polynomials, table.c.sum(-1), strict=True):
        if not abs(above - below + polynomial) <= max_jump * max(1.0, abs(below), abs(above)):
            return False
        max_jump *= table.c.shape[-1] ** 2
    return True


def table_of(terms: tuple[PairTerm, ...], wide: bool) -> Table:
    """Return the table of a surrogate that `takes` accepts."""
    return tables(terms, wide).pieces[0]


def numbers(table: Table) -> Numbers:
    """Return the numbers of a surrogate that `takes` accepts."""
    constant = float(table.p[0, 0, 0])
    b0, b1, b2 = table.p[0, 1].tolist()
    return Numbers(table.shift, table.rate, table.scale, b0, b1, b2, constant)


class Fitted(NamedTuple):
    """What the kernels take of a surrogate."""

    numbers: Numbers
    fits: tuple[float, ...]  # the coefficients FITS of `walk`
    n_powers: int
    linear: bool  # whether there are e_k
    at_0: tuple[float, float, float, float] | None  # see `expansion`; None if not float32


@lru_cache(maxsize=64)
def fitted(terms: tuple[PairTerm, ...], wide: bool, requested: tuple[bool, bool, bool]) -> Fitted:
    """Return what the kernels take; one function, because hashing the terms takes microseconds.

    `requested` says which of value, slope and curvature are needed; coefficients of others are 0.
    """
    table = table_of(terms, wide)
    n_powers = table.n_powers(*np.flatnonzero(requested))
    fits = np.stack([table.c, table.e], -1)[:, ::-1, :n_powers]  # the side above 0 comes first
    fits = np.where(np.reshape(requested, (3, 1, 1, 1)), fits, 0.0)
    at_0 = None if wide else expansion(terms)
    return Fitted(
        numbers(table), tuple(fits.ravel().tolist()), n_powers, bool(fits[..., 1].any()), at_0
    )


def expansion(terms: tuple[PairTerm, ...]) -> tuple[float, float, float, float] | None:
    """Return the surrogate at d = 0 and its first three derivatives, for float32 scores.

    None if it has factors |d|, if its third derivative jumps there, or if the fourth is larger than
    the first: then blocks that are narrow must not be summed by moments. See `narrow`.
    """
    table = table_of(terms, False)
    if table.e.any():
        return None
    k = np.arange(1, table.c.shape[-1] + 1)
    sides = []
    for side, sign in enumerate((-1.0, 1.0)):
        value, slope, curvature = table.c[:, side]
        # Each further derivative of exp(-k u) in d multiplies it by -k, and by k where d < 0.
        c = (value, slope, curvature, -sign * k * curvature, k**2 * curvature)
        units = table.scale * table.rate ** np.arange(5.0)
        sides.append(units * [of_order.sum() for of_order in c])
        sides[side][:3] += table.p[:, side, 0]
    f0, f1, f2, f3, f4 = (0.5 * (sides[0] + sides[1])).tolist()
    rate, jump = table.rate, abs(sides[0][3] - sides[1][3])
    if not (jump <= 1e-3 * abs(f1) * rate**2 and abs(f4) <= abs(f1) * rate**3):
        return None
    return f0, f1, f2, f3

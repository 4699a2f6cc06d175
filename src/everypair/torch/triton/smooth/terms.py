"""Which smooth surrogates the kernels take, and their numbers as kernels take them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, cast

from everypair.surrogates import Fit, KnotTerm, PairTerm, ShiftedTerm, SmoothTerm


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
    *others, last = terms
    if type(last) is not ShiftedTerm or not isinstance(last.term, SmoothTerm):
        return False
    for term in others:
        if type(term) is ShiftedTerm:
            return False
        shift, _, b1, b2, truncated = cast("KnotTerm", term)
        if shift != last.shift if truncated else b1 or b2:
            return False
    return _is_smooth(last.term, numbers(terms))


def _is_smooth(term: SmoothTerm, found: Numbers) -> bool:
    """Return whether all jumps at d = 0 are errors of the fits.

    The relative error of a fit grows by the square of its degree with each derivative (Markov).
    """
    if not term.scale:
        return False
    polynomial = found.b0 - found.constant, found.b1, 2.0 * found.b2
    for fits in (term.low, term.high):
        n_powers = max(len(side) for fit in fits for side in (fit.below, fit.above))
        allowed = 4.0 * fits.value.bound
        for order, fit in enumerate(fits):
            below, above = (sum(c for c, _ in side) for side in (fit.below, fit.above))
            jump = above - below + polynomial[order] / (term.scale * term.rate**order)
            if not abs(jump) <= allowed * max(1.0, abs(below), abs(above)):
                return False
            allowed *= n_powers**2
    return True


def numbers(terms: tuple[PairTerm, ...]) -> Numbers:
    """Return the numbers of a surrogate that `takes` accepts."""
    *others, last = cast("Any", terms)
    constant = sum(b0 for _, b0, _, _, truncated in others if not truncated)
    b0, b1, b2 = (sum(term[k] for term in others if term[-1]) for k in (1, 2, 3))
    return Numbers(last.shift, last.term.rate, last.term.scale, b0 + constant, b1, b2, constant)


@lru_cache(maxsize=64)
def fitted(
    smooth: SmoothTerm, wide: bool, asked: tuple[bool, bool, bool]
) -> tuple[tuple[float, ...], int, bool]:
    """Return the coefficients FITS of `walk`, the number of powers, and whether there are e_k.

    `asked` says which of value, slope and curvature are needed; the others are 0.
    """
    fits = smooth.high if wide else smooth.low
    sides = [side for fit in fits for side in _above_and_below(fit)]
    needed = [side for k, side in enumerate(sides) if asked[k // 2]]
    n_powers = max(len(side) for side in needed)
    flat: list[float] = []
    for k, side in enumerate(sides):
        own = [number for pair in side for number in pair] if asked[k // 2] else []
        flat += own + [0.0] * (2 * n_powers - len(own))
    return tuple(flat), n_powers, any(e for side in needed for _, e in side)


@lru_cache(maxsize=64)
def expansion(terms: tuple[PairTerm, ...]) -> tuple[float, float, float, float] | None:
    """Return the surrogate at d = 0 and its first three derivatives, for float32 scores.

    None if it has factors |d|, if its third derivative jumps there, or if the fourth is larger than
    the first: then blocks that are narrow must not be summed by moments. See `narrow`.
    """
    found, smooth = numbers(terms), cast("SmoothTerm", cast("ShiftedTerm", terms[-1]).term)
    fits = smooth.low
    if any(e for fit in fits for side in _above_and_below(fit) for _, e in side):
        return None
    polynomials = (found.b0, found.b1, 2.0 * found.b2, 0.0), (found.constant, 0.0, 0.0, 0.0)
    sides = []
    for side, (sign, polynomial) in enumerate(zip((-1.0, 1.0), polynomials, strict=True)):
        c = [[c for c, _ in _above_and_below(fit)[side]] for fit in fits]
        sums = [sum(c[0]), sum(c[1]), sum(c[2])]
        sums += [sum((sign * (k + 1)) ** p * a for k, a in enumerate(c[2])) for p in (1, 2)]
        units = [smooth.scale * smooth.rate**order for order in range(5)]
        derivatives = [unit * number for unit, number in zip(units, sums, strict=True)]
        sides.append([a + b for a, b in zip(derivatives, (*polynomial, 0.0), strict=True)])
    f0, f1, f2, f3, f4 = (0.5 * (above + below) for above, below in zip(*sides, strict=True))
    rate, jump = smooth.rate, abs(sides[0][3] - sides[1][3])
    if not (jump <= 1e-3 * abs(f1) * rate**2 and abs(f4) <= abs(f1) * rate**3):
        return None
    return f0, f1, f2, f3


def _above_and_below(fit: Fit) -> tuple[tuple[tuple[float, float], ...], ...]:
    return fit.above, fit.below

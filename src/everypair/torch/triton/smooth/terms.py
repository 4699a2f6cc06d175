"""Which smooth surrogates the kernels take, and their numbers as kernels take them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from everypair.surrogates import Fit, PairTerm, ShiftedTerm, SmoothTerm

# The largest jump at d = 0, relative to the function, that counts as an error of its fit.
_SMALL = 1e-6


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
        shift, _, b1, b2, truncated = term  # type: ignore[misc]
        if shift != last.shift if truncated else b1 or b2:
            return False
    found = numbers(terms)
    if not found.scale:
        return False
    smooth = last.term
    for fits in (smooth.low, smooth.high):
        jumps = (found.b0 - found.constant, found.b1, 2.0 * found.b2)
        for order, fit in enumerate(fits):
            below, above = (sum(c for c, _ in side) for side in (fit.below, fit.above))
            jump = above - below + jumps[order] / (found.scale * found.rate**order)
            rounding = 1e-13 * sum(abs(c) for side in (fit.below, fit.above) for c, _ in side)
            if not abs(jump) <= _SMALL * max(abs(below), abs(above)) + rounding:
                return False
    return True


def numbers(terms: tuple[PairTerm, ...]) -> Numbers:
    """Return the numbers of a surrogate that `takes` accepts."""
    *others, (shift, smooth) = terms
    constant = sum(term[1] for term in others if not term[-1])  # type: ignore[misc]
    b0, b1, b2 = (
        sum(term[k] for term in others if term[-1])  # type: ignore[misc]
        for k in (1, 2, 3)
    )
    return Numbers(shift, smooth.rate, smooth.scale, b0 + constant, b1, b2, constant)


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


def _above_and_below(fit: Fit) -> tuple[tuple[tuple[float, float], ...], ...]:
    return fit.above, fit.below

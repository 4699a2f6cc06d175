"""The terms of a surrogate, also as a list of floats, in which form registered operators take them.

In the list, a `KnotTerm` is its five numbers, the last of which is 0 or 1. Any other term starts
with the five numbers shift, rate, scale, centre and kind: 2 is an exponential term. 3 is a smooth
one, followed by its six fits: the bound, the numbers of powers below and above, and their
coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from everypair import surrogates
from everypair.inputs.pair_options import check_margin
from everypair.surrogates import (
    ExponentialTerm,
    Fit,
    Fits,
    KnotTerm,
    PairTerm,
    ShiftedTerm,
    SmoothTerm,
    Surrogate,
)

_EXPONENTIAL, _SMOOTH = 2.0, 3.0


# Not cached, because `torch.compile` warns about caches in the code that it traces.
def flatten(terms: tuple[PairTerm, ...]) -> tuple[float, ...]:
    """Return the terms as floats."""
    flat: list[float] = []
    for term in terms:
        if type(term) is not ShiftedTerm:
            flat += [float(number) for number in term]  # type: ignore[arg-type]
        elif isinstance(term.term, ExponentialTerm):
            flat += (term.shift, term.term.rate, term.term.scale, 0.0, _EXPONENTIAL)
        else:
            smooth = term.term
            flat += (term.shift, smooth.rate, smooth.scale, smooth.centre, _SMOOTH)
            for fit in (*smooth.low, *smooth.high):
                flat += (fit.bound, float(len(fit.below)), float(len(fit.above)))
                flat += [number for pair in (*fit.below, *fit.above) for number in pair]
    return tuple(flat)


@lru_cache(maxsize=64)
def unflatten(flat: tuple[float, ...]) -> tuple[PairTerm, ...]:
    """Undo `flatten`."""
    numbers, terms = iter(flat), list[PairTerm]()
    for shift in numbers:
        b0, b1, b2, kind = (next(numbers) for _ in range(4))
        if kind == _EXPONENTIAL:
            terms.append(ShiftedTerm(shift, ExponentialTerm(b0, b1)))
        elif kind == _SMOOTH:
            low, high = (Fits(*(_fit(numbers) for _ in range(3))) for _ in range(2))
            terms.append(ShiftedTerm(shift, SmoothTerm(b0, low, high, centre=b2, scale=b1)))
        else:
            terms.append(KnotTerm(shift, b0, b1, b2, bool(kind)))
    return tuple(terms)


def _fit(numbers: Iterator[float]) -> Fit:
    bound, *sizes = (next(numbers) for _ in range(3))
    below, above = (
        tuple((next(numbers), next(numbers)) for _ in range(int(size))) for size in sizes
    )
    return Fit(below, above, bound)


def terms_of(surrogate: str | Surrogate, margin: float | None) -> tuple[PairTerm, ...]:
    """Return the terms of a surrogate at a margin."""
    if torch.compiler.is_compiling():
        if margin is not None:
            # After a change of the margin the compiler makes it a variable; digits are constant.
            margin = float.fromhex(float(margin).hex())
        _expand(surrogate, margin)
    chosen = surrogates.get(surrogate)
    return chosen.at_margin(check_margin(margin, chosen.default_margin))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _expand(surrogate: str | Surrogate, margin: float | None) -> bool:
    """Expand a surrogate while a compiler traces the program, which cannot trace the expansion.

    The compiler then finds the terms in the surrogate's cache.
    """
    chosen = surrogates.get(surrogate)
    return bool(chosen.at_margin(check_margin(margin, chosen.default_margin)))

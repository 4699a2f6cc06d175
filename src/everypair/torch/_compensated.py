"""Numbers made of two floats, for sums that one float of the widest type cannot hold.

A `Number` stands for ``high + low``. Its low part is what rounding took off the high one; it is
None where the work type is much wider than the data, and then all of this is plain arithmetic.
Nothing here reads a value back, so nothing waits for an accelerator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = [
    "Number",
    "cumulated",
    "each",
    "minus",
    "plus",
    "scaled",
    "times",
    "total",
    "two_sum",
]

# Dekker's splitting constants: half of the mantissa's bits, rounded up.
_SPLIT = {torch.float32: 2.0**12 + 1.0, torch.float64: 2.0**27 + 1.0}


class Number(NamedTuple):
    """An array of numbers ``high + low``; `low` is None where one float is enough."""

    high: Tensor
    low: Tensor | None


def each(function: Callable[[Tensor], Tensor], a: Number) -> Number:
    """Apply a rearrangement to both parts."""
    return Number(function(a.high), None if a.low is None else function(a.low))


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum and exactly what the rounding left out (Knuth)."""
    s = a + b
    of_b = s - a
    return s, (a - (s - of_b)) + (b - of_b)


def plus(a: Number, b: Number) -> Number:
    """Return a + b."""
    if a.low is None or b.low is None:
        return Number(a.high + b.high, None)
    high, low = two_sum(a.high, b.high)
    return _normal(high, low + (a.low + b.low))


def minus(a: Number, b: Number) -> Number:
    """Return a - b."""
    return plus(a, each(torch.neg, b))


def times(a: Number, b: Number) -> Number:
    """Return a * b."""
    if a.low is None or b.low is None:
        return Number(a.high * b.high, None)
    high, low = _two_product(a.high, b.high)
    return _normal(high, low + (a.high * b.low + a.low * b.high))


def scaled(a: Number, factor: float) -> Number:
    """Return a * factor."""
    if a.low is None or math.frexp(factor)[0] in (0.5, -0.5):  # a power of two rounds nothing
        return each(lambda part: part * factor, a)
    one = torch.full_like(a.high, factor)
    return times(a, Number(one, torch.zeros_like(one)))


def cumulated(a: Number) -> Number:
    """Return the sums along the last dimension up to each entry, itself included."""
    if a.low is None:
        return Number(_cumsum(a.high), None)
    coarse, fine = _sliced(a.high, a.low)
    return _normal(*two_sum(_cumsum(coarse), _cumsum(fine)))


def total(a: Number) -> Number:
    """Return the sum along the last dimension."""
    if a.low is None:
        return Number(a.high.sum(-1), None)
    coarse, fine = _sliced(a.high, a.low)
    return _normal(*two_sum(coarse.sum(-1), fine.sum(-1)))


def _cumsum(a: Tensor) -> Tensor:
    """Return running sums; the same bits every time, if that is what torch has been told to give.

    Its own operation then raises for CUDA tensors.
    """
    if not (a.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return a.cumsum(-1)
    reach = 1
    while reach < a.shape[-1]:
        a = torch.cat((a[..., :reach], a[..., reach:] + a[..., :-reach]), -1)
        reach *= 2
    return a


def _normal(high: Tensor, low: Tensor) -> Number:
    s = high + low
    return Number(s, low - (s - high))


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded product and exactly what the rounding left out (Dekker)."""
    p = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low
    # Splitting overflows sooner than the product: huge numbers go uncompensated, not undefined.
    return p, torch.where(error.isfinite(), error, 0.0)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    c = _SPLIT[a.dtype] * a
    high = c - (c - a)
    return high, a - high


def _sliced(high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Cut numbers on a grid so coarse that any sum of their coarse parts is exact.

    With t the sum of all absolute values and sigma = 8 t, rounding to the grid of sigma leaves
    multiples of g >= 2^-51 t (2^-22 t in single precision): every partial sum is below 2^51 g, so
    it has no rounding error, in whichever order it is taken. What is cut off is 2^-50 as large.
    """
    sigma = 8.0 * high.abs().sum(-1, keepdim=True)
    coarse = (high + sigma) - sigma
    return coarse, (high - coarse) + low

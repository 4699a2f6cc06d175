"""Double-double arithmetic over the operations of an array library.

A `Number` is an unevaluated sum ``high + low`` of two floats, where `low` is the rounding error of
`high`: 106 bits with float64, 48 bits with float32. Arrays have rows in their last dimension; where
there is one entry per term of a surrogate, terms are in the first dimension.
"""

from __future__ import annotations

import math
from copy import copy
from functools import reduce
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Array = Any
    Runs = Any  # everypair.arrays.rows.Runs, which imports this module


_LOG2 = (0.693359375, 0.00021219444005469058)  # log(2) is the first minus the second


class Number(NamedTuple):
    """An array of numbers ``high + low``; a `low` of None is zero."""

    high: Array
    low: Array = None


def each(function: Callable[[Array], Array], a: Number) -> Number:
    """Apply a function that rounds nothing to both parts."""
    return Number(function(a.high), None if a.low is None else function(a.low))


def twice(a: Number) -> Number:
    """Return 2 a."""
    return each(lambda part: 2.0 * part, a)


def two_sum(a: Array, b: Array) -> Number:
    """Return the rounded sum and its exact rounding error (Knuth)."""
    s = a + b
    of_b = s - a
    return Number(s, (a - (s - of_b)) + (b - of_b))


class Arrays:
    """The operations of one array library, with double-double arithmetic.

    Parameters
    ----------
    compensated : bool
        Whether numbers keep their low part. Without it all arithmetic is that of one float.
    """

    reads_values = False  # whether Python may look at values: no device to wait for, no tracing
    mantissa_bits = 52  # stored bits of a float: 52 for float64, 23 for float32
    float_range = (2.0**-1022, (2.0 - 2.0**-52) * 2.0**1023)  # smallest normal and largest float

    # What each library supplies. Operations work on rows, the last dimension.
    where: Any  # (condition, a, b); a and b may be floats
    isfinite: Any  # (a)
    zeros_like: Any  # (a)
    concatenate: Any  # (arrays): along the first dimension
    stack: Any  # (arrays): along a new first dimension
    broadcast: Any  # (a, shape)
    roll: Any  # (a, by): move rows, the last ones to the beginning
    flip: Any  # (a): reverse the rows
    max: Any  # (a): the maximum, with a last dimension of length 1
    group_max: Any  # (a, start): the maximum over the group of each row, given its first row
    as_uint8: Any  # (a): bytes, which sort faster
    row_numbers: Any  # (a): 0, 1, ...
    order: Any  # (keys): the order of rows by several keys, of which the last counts most
    gather: Any  # (a, index): a[..., index]
    scatter: Any  # (a, index): the array whose gather by this permutation is a
    bounds: Any  # (groups): the first and the last row of the group of each row; groups are sorted
    column: Any  # (factors): a Number with one factor per term, which broadcasts over rows
    keep_bits: Any  # (a, dropped): floats with the lowest bits of the mantissa set to zero
    exponential: Any  # (a): the exponential of each entry
    floor: Any  # (a)
    running_count: Any  # (a): how many entries are true up to each row, itself included
    running_product: Any  # (a): the products up to each row
    exponential_sums: Any = None  # a library's own way to do what the module of this name does
    blocks: Any  # (a, length): rows as (length, ..., blocks); zeros fill up the last block
    constants: Any  # (a): a NumPy array of float64 as a Number
    sum: Any  # (a): the sum over the rows, with a last dimension of length 1
    cumsum: Any  # (a): the running sums over the rows

    def __init__(self, *, compensated: bool) -> None:
        self.compensated = compensated

    def plain(self) -> Arrays:
        """Return the same operations for sums of exponentials: float64 needs no low parts."""
        plain = copy(self)
        plain.compensated = self.mantissa_bits < 52
        return plain

    @property
    def largest_exponent(self) -> float:
        """The smallest number whose exponential overflows; that of its negative is near zero."""
        return 710.0 if self.mantissa_bits == 52 else 89.0

    def normal(self, high: Array, low: Array) -> Number:
        """Return ``high + low`` as a number whose low part is its rounding error."""
        s = high + low
        return Number(s, low - (s - high)) if self.compensated else Number(s)

    def plus(self, a: Number, b: Number) -> Number:
        """Return a + b."""
        if not self.compensated and a.low is None and b.low is None:
            return Number(a.high + b.high)
        high, low = two_sum(a.high, b.high)
        for part in (a.low, b.low):
            if part is not None:
                low = low + part
        return self.normal(high, low)

    def minus(self, a: Number, b: Number) -> Number:
        """Return a - b."""
        return self.plus(a, each(lambda part: -part, b))

    def times(self, a: Number, b: Number) -> Number:
        """Return a * b."""
        if not self.compensated:
            return Number(a.high * b.high)
        high, low = self.two_product(a.high, b.high)
        for part, other in ((a.low, b.high), (b.low, a.high)):
            if part is not None:
                low = low + part * other
        return self.normal(high, low)

    def halves(self, a: Array) -> tuple[Array, Array]:
        """Return two floats of half as many bits with the sum a."""
        high = self.keep_bits(a, (self.mantissa_bits + 2) // 2)
        return high, a - high

    def two_product(self, a: Array, b: Array) -> Number:
        """Return the rounded product and its rounding error (Dekker)."""
        p = a * b
        (a_high, a_low), (b_high, b_low) = self.halves(a), self.halves(b)
        error = ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low
        # A product that overflows stays infinite instead of becoming NaN.
        return Number(p, self.where(self.isfinite(error), error, 0.0))

    def scaled(self, a: Number, factors: Any) -> Number:
        """Return `a` times one factor per term."""
        if all(factor == 1.0 for factor in factors):
            return a
        column = self.column(factors)
        if all(abs(math.frexp(factor)[0]) in (0.0, 0.5) for factor in factors):
            return each(lambda part: part * column.high, a)  # powers of two round nothing
        return self.times(a, column)

    def choose(self, condition: Array, a: Number, b: Number) -> Number:
        """Return `a` where the condition holds and `b` elsewhere."""
        high = self.where(condition, a.high, b.high)
        if a.low is None or b.low is None:
            return Number(high)
        return Number(high, self.where(condition, a.low, b.low))

    def sum_of_terms(self, a: Number) -> Number:
        """Return the sum over the first dimension."""
        return reduce(self.plus, self.unstacked(a))

    def stacked(self, parts: Sequence[Number]) -> Number:
        """Return numbers in one array, along a new first dimension."""
        high = self.stack([part.high for part in parts])
        if all(part.low is None for part in parts):
            return Number(high)
        lows = [self.zeros_like(a.high) if a.low is None else a.low for a in parts]
        return Number(high, self.stack(lows))

    def unstacked(self, a: Number) -> list[Number]:
        """Return the entries of the first dimension."""
        return [each(itemgetter(i), a) for i in range(a.high.shape[0])]

    def total(self, a: Number, *, counts: bool = False) -> Number:
        """Return the sum over the rows, with a last dimension of length 1."""
        return self._added(self.sum, a, counts)

    def prefix(self, a: Number, runs: Runs, *, counts: bool = False) -> Number:
        """Return the sums from the first row of the group to each row, itself included."""
        sums = self._added(self.cumsum, a, counts)
        if runs.start is None:
            return sums
        earlier = each(lambda part: self.where(runs.rows == 0, 0.0, self.roll(part, 1)), sums)
        return self.minus(sums, each(lambda part: self.gather(part, runs.start), earlier))

    def _added(self, add: Callable[[Array], Array], a: Number, counts: bool) -> Number:
        """Split numbers on a grid so coarse that every sum of the coarse parts is exact.

        With t the sum of all absolute values, rounding to the grid of 8 t leaves multiples of
        g >= 2^-51 t (2^-22 t in single precision). Every partial sum is below 2^51 g, so it has no
        rounding error, in whichever order it is taken. The fine parts are 2^-50 as large.
        """
        if not self.compensated or (counts and self.mantissa_bits == 52):
            return Number(add(a.high))
        coarse, fine = self.split(a, Number(8.0 * self.sum(abs(a.high))))
        return self.plus(Number(add(coarse)), Number(add(fine)))

    def split(self, a: Number, sigma: Number) -> Number:
        """Return `a` rounded to the grid of floats near sigma, and the rest."""
        coarse = (a.high + sigma.high) - sigma.high
        fine = a.high - coarse
        return Number(coarse, fine if a.low is None else fine + a.low)

    def repeat(self, n: int, function: Callable[[int, Any], Any], state: Any) -> Any:
        """Apply a function of 0, ..., n - 1 and the state n times."""
        for i in range(n):
            state = function(i, state)
        return state

    def exp(self, a: Number) -> Number:
        """Return the exponential; with low parts, the relative error in float32 is below 1e-8.

        With a = n log(2) + r, it is 2^n exp(r / 16)^16. In terms of p = exp(r / 16) - 1, to square
        the exponential is to replace p by 2 p + p^2.
        """
        if not self.compensated:
            return Number(self.exponential(a.high))
        limit = self.largest_exponent - 2.0
        inside, above = abs(a.high) < limit, a.high > 0.0
        a = each(lambda part: self.where(inside, part, 0.0), a)
        n = self.floor(a.high * (1.0 / math.log(2.0)) + 0.5)
        # The first part of log(2) has so few bits that its product with n is exact.
        excess = self.plus(Number(a.high - n * _LOG2[0]), self.two_product(n, n * 0.0 + _LOG2[1]))
        if a.low is not None:
            excess = self.plus(excess, Number(a.low))
        r = each(lambda part: part / 16.0, excess)
        h = r.high
        p = self.plus(r, Number(h * h * (0.5 + h * (1 / 6 + h * (1 / 24 + h / 120)))))
        for _ in range(4):
            p = self.plus(twice(p), self.times(p, p))
        result = self.plus(Number(n * 0.0 + 1.0), p)
        power = self.keep_bits(self.exponential(n * math.log(2.0)) * 1.001, self.mantissa_bits)
        power = self.where(inside, power, self.where(above, math.inf, 0.0 * power))
        low = None if result.low is None else self.where(inside, result.low * power, 0.0)
        return Number(result.high * power, low)

    def contract(self, factors: Number, a: Number) -> Number:
        """Return the matrix product of factors (..., m, k) and numbers (..., k, n)."""
        if not self.compensated:
            return Number(factors.high @ a.high)
        column = each(lambda part: part[..., None], factors)
        return self._folded(self.times(column, each(lambda part: part[..., None, :, :], a)))

    def _folded(self, a: Number) -> Number:
        """Return the sum over the last but one dimension, by adding its halves."""
        q = a.high.shape[-2]
        if q == 1:
            return each(lambda part: part[..., 0, :], a)
        half = q // 2
        lower = each(lambda part: part[..., :half, :], a)
        upper = each(lambda part: part[..., half : 2 * half, :], a)
        out = self._folded(self.plus(lower, upper))
        return out if q % 2 == 0 else self.plus(out, each(lambda part: part[..., -1, :], a))

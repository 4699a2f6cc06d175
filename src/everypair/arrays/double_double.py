"""Double-double arithmetic over the operations of an array library.

A `Number` is an unevaluated sum ``high + low`` of two floats, where `low` is the rounding error of
`high`: 106 bits with float64, 48 bits with float32. `Arrays` lists the operations that the pair
sums need. Each library supplies the abstract ones; the arithmetic follows from them.

Arrays have rows in their last dimension. Terms of a surrogate are in the first one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from everypair.arrays.runs import Runs

    Array = Any

__all__ = ["Arrays", "Number", "SlicedSums", "each", "two_sum"]


class Number(NamedTuple):
    """An array of numbers ``high + low``; a `low` of None is zero."""

    high: Array
    low: Array = None


def each(function: Callable[[Array], Array], a: Number) -> Number:
    """Apply a function that rounds nothing to both parts."""
    return Number(function(a.high), None if a.low is None else function(a.low))


def two_sum(a: Array, b: Array) -> Number:
    """Return the rounded sum and its exact rounding error (Knuth)."""
    s = a + b
    of_b = s - a
    return Number(s, (a - (s - of_b)) + (b - of_b))


class Arrays(ABC):
    """The operations of one array library, with double-double arithmetic.

    Parameters
    ----------
    compensated : bool
        Whether numbers keep their low part. Without it all arithmetic is that of one float.
    """

    mantissa_bits = 52  # stored bits of a float: 52 for float64, 23 for float32
    float_range = (2.0**-1022, (2.0 - 2.0**-52) * 2.0**1023)

    def __init__(self, *, compensated: bool) -> None:
        self.compensated = compensated

    # Operations that each library supplies

    @abstractmethod
    def where(self, condition: Array, a: Array, b: Array) -> Array:
        """Return `a` where the condition holds and `b` elsewhere; either may be a float."""

    @abstractmethod
    def zeros_like(self, a: Array) -> Array:
        """Return zeros of the same shape and type."""

    @abstractmethod
    def concatenate(self, arrays: Sequence[Array]) -> Array:
        """Join arrays along their first dimension."""

    @abstractmethod
    def as_uint8(self, a: Array) -> Array:
        """Return small whole numbers in one byte each, which sort faster."""

    @abstractmethod
    def column(self, factors: Any) -> Number:
        """Return one factor per term with a first dimension of terms; it broadcasts over rows."""

    @abstractmethod
    def keep_bits(self, a: Array, dropped: int) -> Array:
        """Return floats with the lowest `dropped` bits of their mantissa set to zero."""

    @abstractmethod
    def order(self, keys: Sequence[Array]) -> Array:
        """Return the stable order of rows by several keys; the last key counts most."""

    @abstractmethod
    def gather(self, a: Array, index: Array) -> Array:
        """Return ``a[..., index]``, row by row of the other dimensions."""

    @abstractmethod
    def scatter(self, a: Array, index: Array) -> Array:
        """Return the array whose `gather` with this permutation is `a`."""

    @abstractmethod
    def broadcast(self, a: Array, shape: tuple[int, ...]) -> Array:
        """Repeat an array along new dimensions without a copy."""

    @abstractmethod
    def bounds(self, groups: Array) -> tuple[Array, Array]:
        """Return the first and the last row of the group of each row; groups are sorted."""

    @abstractmethod
    def row_numbers(self, like: Array) -> Array:
        """Return 0, 1, ... for the rows of an array."""

    @abstractmethod
    def roll(self, a: Array, by: int) -> Array:
        """Move rows by some places, the last ones to the beginning."""

    @abstractmethod
    def flip(self, a: Array) -> Array:
        """Reverse the rows."""

    @abstractmethod
    def max(self, a: Array) -> Array:
        """Return the maximum over the rows, which stay as a dimension of length 1."""

    @abstractmethod
    def isfinite(self, a: Array) -> Array:
        """Return which entries are neither infinite nor NaN."""

    # Arithmetic

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

    def two_product(self, a: Array, b: Array) -> Number:
        """Return the rounded product and its rounding error (Dekker)."""
        half = (self.mantissa_bits + 2) // 2
        p = a * b
        a_high, b_high = self.keep_bits(a, half), self.keep_bits(b, half)
        a_low, b_low = a - a_high, b - b_high
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

    def combined(self, *products: tuple[Any, Callable[[], Number]]) -> Number | None:
        """Return the sum of factors times numbers; a factor of None is zero."""
        parts = [self.scaled(number(), b) for b, number in products if b is not None]
        return reduce(self.plus, parts) if parts else None

    def sum_of_terms(self, a: Number) -> Number:
        """Return the sum over the first dimension."""
        return reduce(self.plus, (each(lambda part, k=k: part[k], a) for k in range(len(a.high))))  # type: ignore[misc]

    # Sums over the rows. Those of whole numbers, `counts`, may leave out the low part.

    @abstractmethod
    def total(self, a: Number, *, counts: bool = False) -> Number:
        """Return the sum over the rows, which stay as a dimension of length 1."""

    @abstractmethod
    def prefix(self, a: Number, runs: Runs, *, counts: bool = False) -> Number:
        """Return the sums from the first row of each group up to each row, itself included."""

    def both_ways(
        self, up: Number, down: Number, runs: Runs, *, counts: bool = False
    ) -> tuple[Number, Number]:
        """Return the sums of `up` up to each row, and those of `down` from each row on."""
        over = self.prefix(each(self.flip, down), runs.reversed, counts=counts)
        return self.prefix(up, runs, counts=counts), each(self.flip, over)


class SlicedSums(Arrays):
    """Sums for libraries that run every operation by itself: few passes over the rows."""

    @abstractmethod
    def sum(self, a: Array) -> Array:
        """Return the sum over the rows, which stay as a dimension of length 1."""

    @abstractmethod
    def cumsum(self, a: Array) -> Array:
        """Return the running sums over the rows."""

    def total(self, a: Number, *, counts: bool = False) -> Number:
        """See `Arrays.total`."""
        return self._added(self.sum, a, counts)

    def prefix(self, a: Number, runs: Runs, *, counts: bool = False) -> Number:
        """See `Arrays.prefix`."""
        sums = self._added(self.cumsum, a, counts)
        if runs.start is None:
            return sums
        earlier = each(lambda part: self.where(runs.rows == 0, 0.0, self.roll(part, 1)), sums)
        return self.minus(sums, each(lambda part: self.gather(part, runs.start), earlier))

    def _added(self, add: Callable[[Array], Array], a: Number, counts: bool) -> Number:
        if not self.compensated or (counts and self.mantissa_bits == 52):
            return Number(add(a.high))
        return self.plus(*(Number(add(part)) for part in self._split(a)))

    def _split(self, a: Number) -> tuple[Array, Array]:
        """Split numbers on a grid so coarse that every sum of the coarse parts is exact.

        With t the sum of all absolute values, rounding to the grid of 8 t leaves multiples of
        g >= 2^-51 t (2^-22 t in single precision). Every partial sum is below 2^51 g, so it has no
        rounding error, in whichever order it is taken. The fine parts are 2^-50 as large.
        """
        sigma = 8.0 * self.sum(abs(a.high))
        coarse = (a.high + sigma) - sigma
        fine = a.high - coarse
        return coarse, fine if a.low is None else fine + a.low

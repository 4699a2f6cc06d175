"""Sums and loops for array libraries that run every operation by itself."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from everypair.arrays.double_double import Arrays, Number, each

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = Any
    Runs = Any  # everypair.arrays.rows.Runs


class SlicedSums(Arrays):
    """Sums in few passes over the rows, for libraries that run every operation by itself.

    Sums of whole numbers, `counts`, are exact without a low part.
    """

    sum: Any  # (a): the sum over the rows, with a last dimension of length 1
    cumsum: Any  # (a): the running sums over the rows

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
        sigma = 8.0 * self.sum(abs(a.high))
        coarse = (a.high + sigma) - sigma
        fine = a.high - coarse
        return self.plus(Number(add(coarse)), Number(add(fine if a.low is None else fine + a.low)))

    def steps(self, function: Callable[[Any, Any], Any], state: Any, columns: Any) -> Any:
        """See `Arrays`."""
        outputs = []
        for i in range(_length(columns)):
            state, output = function(state, _mapped(itemgetter(i), columns))
            outputs.append(output)
        return state, _stacked(self, outputs)

    def repeat(self, n: int, function: Callable[[int, Any], Any], state: Any) -> Any:
        """See `Arrays`."""
        for i in range(n):
            state = function(i, state)
        return state


def _mapped(function: Callable[[Array], Array], tree: Any) -> Any:
    """Apply a function to all arrays of nested tuples; None stays None."""
    if tree is None:
        return None
    if isinstance(tree, tuple):
        mapped = [_mapped(function, part) for part in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return function(tree)


def _length(tree: Any) -> int:
    """Return the length of the first dimension of the first array of nested tuples."""
    return _length(tree[0]) if isinstance(tree, tuple) else len(tree)


def _stacked(xp: Arrays, trees: list[Any]) -> Any:
    """Stack the arrays at the same place of nested tuples along a new first dimension."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        stacked = [_stacked(xp, list(parts)) for parts in zip(*trees, strict=True)]
        return type(first)(*stacked) if hasattr(first, "_fields") else tuple(stacked)
    return xp.concatenate([part[None] for part in trees])

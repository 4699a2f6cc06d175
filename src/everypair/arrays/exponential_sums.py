"""Running sums of exponentials of distances, stable at any offset and any spread.

Rows are sorted by position p. With u = rate (p_i - p_j), which is not negative, wanted is

    out_i = sum over rows j up to i, in the group of i, of  w_j f(u)
    f(u)  = sum over k = 1, ..., K of  (c_k + e_k u) exp(-k u)

for several weights and coefficients. It is a contraction of the running sums

    A_k(i) = sum over j of w_j exp(-k u)          B_k(i) = sum over j of w_j u exp(-k u)

Moving on by a distance v multiplies A_k by exp(-k v), and turns B_k into
(B_k + v A_k) exp(-k v).

**Why it is stable.** Every factor is at most one, and for weights of one sign all addends have that
sign: nothing overflows, and nothing cancels before the contraction. Distances are differences of
positions, rounded once, so an offset of all positions cancels first. The factor exp(-k v) has a
relative error of k v times that of a float, and those of consecutive steps add up to k u times it;
beyond k u = 745 the factor is zero. Rounding errors of the sums add up over the number of steps.

**In blocks.** Rows are cut into blocks of 16 to 128. All blocks are stepped through at the same
time, each from zero. The sums at the ends of blocks are then carried from block to block, by the
same method, and each row adds its share: A_k at the end of the block before, times exp(-k u) of the
distance to there. So a sum is the result of some hundred steps, rather than of one step per row.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everypair.arrays.double_double import Number, each

if TYPE_CHECKING:
    from collections.abc import Callable

    from everypair.arrays.double_double import Arrays

    Array = Any


class Line(NamedTuple):
    """Points in order, in the last dimension.

    Attributes
    ----------
    position : Number of shape (..., n)
        Not decreasing inside a group.
    row : (n,) integers
        Increasing numbers of the points.
    start : (..., n) integers or None
        The number of the first point of the group of each point. None: all points are one group.
    """

    position: Number
    row: Any
    start: Any = None

    def at(self, xp: Arrays, index: Any) -> Line:
        """Return the points of these indices."""
        return Line(
            each(lambda part: xp.pick(part, index), self.position),
            xp.pick(self.row, index),
            None if self.start is None else xp.pick(self.start, index),
        )


class State(NamedTuple):
    """The sums A and, if they are needed, B, of shape (weights, powers, ..., points)."""

    a: Number
    b: Number | None

    def mapped(self, function: Callable[[Array], Array]) -> State:
        """Apply a function that rounds nothing to all arrays."""
        return State(each(function, self.a), None if self.b is None else each(function, self.b))


class ExponentialSums:
    """Running sums over the points of a line.

    Parameters
    ----------
    xp : Arrays
        Use one without low parts for float64: plain sums keep 13 digits.
    rate : Number
        Broadcasts against positions.
    c, e : Number of shape (outputs, weights, powers); `e` is None if all its entries are 0
        The coefficients; powers are k = 1, 2, ...

    Examples
    --------
    The sum of exp(-distance) over each row and the rows before it:

    >>> from everypair.arrays.numpy import NumpyArrays
    >>> one = Number(np.ones((1, 1, 1)))
    >>> sums = ExponentialSums(NumpyArrays(compensated=False), Number(np.ones(1)), one, None)
    >>> line = Line(Number(np.log([1.0, 2.0, 4.0])), np.arange(3))
    >>> sums(line, Number(np.ones((1, 3)))).high.round(6)
    array([[1.  , 1.5 , 1.75]])
    """

    def __init__(self, xp: Arrays, rate: Number, c: Number, e: Number | None) -> None:
        self.xp, self._rate, self._c, self._e = xp, rate, c, e
        self._n_powers = c.high.shape[-1]
        self._exponents = xp.constants(-np.arange(1.0, self._n_powers + 1.0))

    def __call__(self, line: Line, weights: Number) -> Number:
        """Return `out`, of shape (outputs, ..., n), for weights of shape (weights, ..., n)."""
        xp, n = self.xp, line.row.shape[-1]
        length = _length(n)
        rows = xp.row_numbers(line.row)
        columns = [xp.blocks(a, length) for a in (self._distance(line, rows - 1), weights)]

        def step(state: State, column: tuple[Number, Number]) -> tuple[State, Number]:
            distance, w = column
            a, b = self._moved(state, distance)
            state = State(xp.plus(a, each(lambda part: part[:, None], w)), b)
            return state, self._contracted(state)

        ends, out = xp.steps(step, self._zeros(columns[1]), tuple(columns))
        out = xp.rows_of(out, n)
        if n <= length:
            return out
        ends_at = xp.row_numbers(ends.a.high) * length + (length - 1)
        carried = self.carried(line.at(xp, ends_at), ends)
        before = carried.mapped(lambda part: _delayed(xp, part))
        distance = self._distance(line, rows // length * length - 1)
        return xp.plus(out, self._share(before, xp.blocks(distance, length), n))

    def carried(self, line: Line, sums: State) -> State:
        """Return the running sums at the points of a line, given what each point adds to them.

        For points that end a block these are the sums of the block alone. Shapes are those of
        `State`.
        """
        xp, n = self.xp, line.row.shape[-1]
        length = _length(n)
        rows = xp.row_numbers(line.row)
        distance = xp.blocks(self._distance(line, rows - 1), length)
        added = sums.mapped(lambda part: xp.cut(part, length))

        def step(state: State, column: tuple[Number, State]) -> tuple[State, State]:
            state = self._added(self._moved(state, column[0]), column[1])
            return state, state

        zero = added.mapped(lambda part: xp.zeros_like(part[0]))
        steps: tuple[State, State] = xp.steps(step, zero, (distance, added))
        ends, inside = steps
        inside = inside.mapped(lambda part: xp.uncut(part, n))
        if n <= length:
            return inside
        ends_at = xp.row_numbers(ends.a.high) * length + (length - 1)
        carried = self.carried(line.at(xp, ends_at), ends)
        before = carried.mapped(lambda part: xp.pick(_delayed(xp, part), rows // length))
        distance = self._distance(line, rows // length * length - 1)
        return self._added(inside, self._moved(before, distance))

    def _distance(self, line: Line, index: Array) -> Number:
        """Return u from the points of earlier indices; so large that exp(-u) is 0 between groups.

        An index of -1 gives a distance of 0, for points with nothing before them.
        """
        xp, earlier = self.xp, line.at(self.xp, index)
        u = xp.times(xp.minus(line.position, earlier.position), self._rate)
        largest = 2.0 * xp.largest_exponent
        is_far = ~(u.high < largest)
        if line.start is not None:
            is_far = is_far | (line.start > earlier.row)
        # Rounding may leave a distance below 0.
        inside = ~is_far & (u.high > 0.0)
        low = None if u.low is None else xp.where(inside, u.low, 0.0)
        return Number(xp.where(is_far, largest, xp.where(inside, u.high, 0.0)), low)

    def _moved(self, state: State, distance: Number) -> State:
        """Return the sums after moving on by a distance."""
        xp = self.xp
        shape = (self._n_powers, *[1] * distance.high.ndim)
        exponents = each(lambda part: part.reshape(shape), self._exponents)
        factors = xp.exp(xp.times(distance, exponents))
        a = xp.times(state.a, factors)
        if state.b is None:
            return State(a, None)
        return State(a, xp.times(xp.plus(state.b, xp.times(state.a, distance)), factors))

    def _added(self, x: State, y: State) -> State:
        b = None if x.b is None or y.b is None else self.xp.plus(x.b, y.b)
        return State(self.xp.plus(x.a, y.a), b)

    def _contracted(self, state: State) -> Number:
        """Return the sums over weights and powers of coefficients times A and B."""
        out = self.xp.contract(self._c, state.a)
        if self._e is None or state.b is None:
            return out
        return self.xp.plus(out, self.xp.contract(self._e, state.b))

    def _share(self, before: State, distance: Number, n: int) -> Number:
        """Return the contraction of `before`, one entry per block, moved on to all rows.

        It is a polynomial in exp(-u) for every output and block, evaluated from the highest power.
        """
        xp = self.xp
        constant, linear = self._of_weights(self._c, before.a), None
        if self._e is not None and before.b is not None:
            constant = xp.plus(constant, self._of_weights(self._e, before.b))
            linear = self._of_weights(self._e, before.a)
        distance = each(lambda part: part[:, None], distance)
        x = xp.exp(each(lambda part: -part, distance))

        def step(sums: Number, factors: tuple[Number, Number | None]) -> tuple[Number, None]:
            # Shapes: `sums` (length, outputs, ..., blocks), factors (outputs, ..., blocks).
            constant, linear = factors
            if linear is not None:
                constant = xp.plus(constant, xp.times(distance, linear))
            return xp.times(xp.plus(sums, constant), x), None

        zero = each(lambda part: xp.zeros_like(part + constant.high[0]), x)
        return xp.rows_of(xp.steps(step, zero, (constant, linear))[0], n)

    def _of_weights(self, factors: Number, a: Number) -> Number:
        """Return the sums over weights of coefficients times sums, highest power first.

        The shapes are (outputs, weights, powers) and (weights, powers, ..., blocks), and that of
        the result is (powers, outputs, ..., blocks).
        """
        xp = self.xp
        shape = (self._n_powers, factors.high.shape[0], *[1] * (a.high.ndim - 2))

        def of_weight(i: int) -> Number:
            column = each(lambda part: xp.flip(part[:, i]).T.reshape(shape), factors)
            return xp.times(column, each(lambda part: xp.reverse(part[i])[:, None], a))

        return reduce(xp.plus, map(of_weight, range(a.high.shape[0])))

    def _zeros(self, weights: Number) -> State:
        """Return sums of zero for blocks of weights of shape (length, weights, ..., blocks)."""
        xp, w = self.xp, weights.high[0]
        shape = (w.shape[0], self._n_powers, *w.shape[1:])
        zero = xp.zeros_like(xp.broadcast(w[:, None], shape))
        number = Number(zero, zero if xp.compensated else None)
        return State(number, None if self._e is None else number)


def _length(n: int) -> int:
    """Return the length of the blocks of n points."""
    return min(n, max(16, min(128, math.isqrt(n))))


def _delayed(xp: Arrays, a: Array) -> Array:
    """Return the entry of the point before; zero for the first point."""
    return xp.where(xp.row_numbers(a) == 0, 0.0, xp.roll(a, 1))

"""Running sums of exponentials of distances, stable at any offset and any spread.

Rows are sorted by position p. With u = rate (p_i - p_j), which is not negative, wanted is

    out_i = sum over rows j up to i, in the group of i, of  w_j sum over k of (c_k + e_k u) exp(-k u)

for k = 1, ..., K and several weights and coefficients. It is a contraction of the running sums

    A_k(i) = sum over j of w_j exp(-k u)          B_k(i) = sum over j of w_j u exp(-k u)

Moving on by a distance v multiplies A_k by x^k, with x = exp(-v), and turns B_k into
(B_k + v A_k) x^k. So one exponential per row serves all powers.

**Why it is stable.** Every factor is at most one, and for weights of one sign all addends have that
sign: nothing overflows, and nothing cancels before the contraction. Distances are differences of
positions, rounded once, so an offset of all positions cancels first. A factor of x^k has the
relative error k v times that of a float, and those of consecutive steps add up to k u times it;
beyond u = 745 the factor is zero. Rounding errors of the sums add up over the number of steps.

**In blocks.** Rows are cut into blocks of 32. All blocks are stepped through at the same time, each
from zero. The sums at the ends of blocks are then carried from block to block, by the same method,
and each row adds its share: A_k at the end of the block before, times exp(-k u) of the distance to
there. So a sum is the result of 32 steps per level, and of one level for every factor of 32 in the
number of rows, rather than of one step per row.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from everypair.arrays.double_double import Number, each

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays

    Array = Any

_LENGTH = 32


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
    """

    def __init__(self, xp: Arrays, rate: Number, c: Number, e: Number | None) -> None:
        self.xp, self._rate, self._c, self._e = xp, rate, c, e
        self._n_powers = c.high.shape[-1]

    def __call__(self, line: Line, weights: Number) -> Number:
        """Return `out`, of shape (outputs, ..., n), for weights of shape (weights, ..., n)."""
        xp, n = self.xp, line.row.shape[-1]
        length = min(_LENGTH, n)
        distance, x = self._decay(line, line.at(xp, xp.row_numbers(line.row) - 1))
        columns = tuple(xp.blocks(part, length) for part in (x, distance, weights))

        def step(state: State, column: tuple[Number, Number, Number]) -> tuple[State, Number]:
            x, distance, w = column
            moved = self._moved(state, x, distance)
            state = State(xp.plus(moved.a, each(lambda part: part[:, None], w)), moved.b)
            return state, self._contracted(state)

        ends, out = xp.steps(step, self._zeros(columns[2]), columns)
        out = xp.rows_of(out, n)
        if n <= length:
            return out
        last = xp.row_numbers(columns[0].high[0]) * length + (length - 1)
        carried = self._carried(line.at(xp, last), ends)
        before = State(*(None if sums is None else _delayed(xp, sums) for sums in carried))
        # The end of the block before each row; for the first block its sums are zero.
        end = xp.row_numbers(line.row) // length * length - 1
        distance, x = self._decay(line, line.at(xp, end))
        return xp.plus(out, self._share(before, x, distance, length, n))

    def _carried(self, line: Line, sums: State) -> State:
        """Return the running sums at the end of each block from the sums of the blocks alone."""
        xp, n = self.xp, line.row.shape[-1]
        length = min(_LENGTH, n)
        distance, x = self._decay(line, line.at(xp, xp.row_numbers(line.row) - 1))
        columns = tuple(None if part is None else xp.blocks(part, length) for part in (x, distance))
        added = State(*(None if part is None else xp.blocks(part, length) for part in sums))

        def step(state: State, column: tuple[Number, Number, State]) -> tuple[State, State]:
            x, distance, new = column
            moved = self._moved(state, x, distance)
            state = self._added(moved, new)
            return state, state

        zero = State(*(None if part is None else _zero(xp, part) for part in added))
        ends, inside = xp.steps(step, zero, (*columns, added))
        inside = State(*(None if part is None else xp.rows_of(part, n) for part in inside))
        if n <= length:
            return inside
        last = xp.row_numbers(columns[0].high[0]) * length + (length - 1)
        carried = self._carried(line.at(xp, last), ends)
        block = xp.row_numbers(line.row) // length
        before = State(
            *(
                None
                if part is None
                else each(lambda p: xp.pick(p, block), _delayed(xp, part))
                for part in carried
            )
        )
        distance, x = self._decay(line, line.at(xp, block * length - 1))
        return self._added(inside, self._moved(before, x, distance))

    def _decay(self, line: Line, earlier: Line) -> tuple[Number, Number]:
        """Return u, and x = exp(-u), of each point to an earlier one; x is 0 between groups."""
        xp = self.xp
        u = xp.times(xp.minus(line.position, earlier.position), self._rate)
        # The exponential of less is zero. Points that are not earlier are the ones of index -1.
        most = 2.0 * xp.largest_exponent
        high = xp.where(u.high > 0.0, xp.where(u.high < most, u.high, most), 0.0)
        low = None
        if u.low is not None:
            low = xp.where((u.high > 0.0) & (u.high < most), u.low, 0.0)
        u = Number(high, low)
        x = xp.exp(each(lambda part: -part, u))
        if line.start is not None:
            x = each(lambda part: xp.where(line.start > earlier.row, 0.0, part), x)
        return u, x

    def _powers(self, x: Number) -> Number:
        """Return x^k for k = 1, 2, ..., in a new first dimension."""
        xp, powers = self.xp, each(lambda part: part[None], x)
        while (known := powers.high.shape[0]) < self._n_powers:
            more = min(known, self._n_powers - known)
            top = each(lambda part: part[known - 1 :], powers)
            products = xp.times(each(lambda part: part[:more], powers), top)
            powers = xp.joined(powers, products)
        return powers

    def _moved(self, state: State, x: Number, distance: Number) -> State:
        """Return the sums after moving on by a distance."""
        xp, powers = self.xp, self._powers(x)
        a = xp.times(state.a, powers)
        if state.b is None:
            return State(a, None)
        return State(a, xp.times(xp.plus(state.b, xp.times(state.a, distance)), powers))

    def _added(self, x: State, y: State) -> State:
        b = None if x.b is None or y.b is None else self.xp.plus(x.b, y.b)
        return State(self.xp.plus(x.a, y.a), b)

    def _contracted(self, state: State) -> Number:
        """Return the sums over weights and powers of coefficients times A and B."""
        out = self.xp.contract(self._c, state.a)
        if self._e is None or state.b is None:
            return out
        return self.xp.plus(out, self.xp.contract(self._e, state.b))

    def _share(self, before: State, x: Number, distance: Number, length: int, n: int) -> Number:
        """Return the contraction of `before`, one entry per block, moved on to all rows.

        It is a polynomial in x for every output and block, evaluated from the highest power on.
        """
        xp = self.xp
        constant = self._of_weights(self._c, before.a)
        linear = None
        if self._e is not None and before.b is not None:
            constant = xp.plus(constant, self._of_weights(self._e, before.b))
            linear = self._of_weights(self._e, before.a)
        x, distance = xp.blocks(x, length), xp.blocks(distance, length)

        def step(sums: Number, factors: tuple[Number, Number | None]) -> tuple[Number, None]:
            # Shapes: `sums` (length, outputs, ..., blocks), factors (outputs, ..., blocks).
            of_power, of_linear = factors
            if of_linear is not None:
                raised = xp.times(each(lambda part: part[:, None], distance), of_linear)
                of_power = xp.plus(of_power, raised)
            return xp.times(xp.plus(sums, of_power), each(lambda part: part[:, None], x)), None

        columns = (constant, linear)
        zero = each(lambda part: xp.zeros_like(part[:, None] + constant.high[0]), x)
        sums, _ = xp.steps(step, zero, columns)
        return xp.rows_of(sums, n)

    def _of_weights(self, factors: Number, a: Number) -> Number:
        """Return the sums over weights of coefficients times sums, powers first, highest first."""
        xp = self.xp
        n_free = a.high.ndim - 2

        def of_weight(i: int) -> Number:
            column = each(
                lambda part: xp.flip(part[:, i]).T.reshape(
                    (self._n_powers, part.shape[0], *[1] * n_free)
                ),
                factors,
            )
            return xp.times(column, each(lambda part: xp.reverse(part[i])[:, None], a))

        return reduce(xp.plus, map(of_weight, range(a.high.shape[0])))

    def _zeros(self, weights: Number) -> State:
        """Return sums of zero for blocks of weights of shape (length, weights, ..., blocks)."""
        xp, w = self.xp, weights.high[0]
        shape = (w.shape[0], self._n_powers, *w.shape[1:])
        zero = xp.zeros_like(xp.broadcast(w[:, None], shape))
        number = Number(zero, zero if xp.compensated else None)
        return State(number, None if self._e is None else number)


def _zero(xp: Arrays, columns: Number) -> Number:
    return each(lambda part: xp.zeros_like(part[0]), columns)


def _delayed(xp: Arrays, a: Number) -> Number:
    """Return the entry of the point before; zero for the first point."""
    first = xp.row_numbers(a.high) == 0
    return each(lambda part: xp.where(first, 0.0, xp.roll(part, 1)), a)

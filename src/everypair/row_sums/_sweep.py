r"""Sums over all pairs of a row and another row, for each row and for each other row.

For rows x_i, other rows y_j and the terms of a surrogate f at a margin, wanted are

    r_i = sum over j of w_j f(d_ij)    and    q_j = sum over i of v_i f(d_ij),    d_ij = y_j - x_i

or the same with the first or second derivative of f, for weights of any sign. The second sum is the
transpose of the first. The derivatives of each are sums of these two kinds.

**Algorithm.** For each shift of the terms (`Piece`), other rows move to y_j + shift, so that f is
one polynomial in |d| and in exp(-rate |d|) for d > 0, and another one for d <= 0. Of rows and other
rows, the fewer are sorted; they are the *knots*, and the others are the *points*. Each point finds
its two neighbours among the knots by binary search. To sum over the knots for every point, the sums

    M_k = sum of w |d|^k     and     A_k = sum of w exp(-k rate |d|)

over the knots up to each knot, and over those from it on, run along the knots (`Knots`). A point
multiplies those of its two neighbours by powers of its distance from them. To sum over the points
for every knot, the same steps are taken in reverse: a point adds to the sums of its two neighbours,
and then the sums run along the knots.

It takes O(n log n + m log n) time for n knots and m points, and O(n + m) memory. A point costs one
search, two exponentials and some twenty multiplications.

**Error.** The side of a pair is decided exactly for the real numbers that the floats represent. For
weights of one sign no running sum cancels, as explained in `arrays.exponential_sums`. So the error
is that of the fits (`surrogates`) and 1e-13 by rounding, relative to the sum over the pairs of the
absolute values of all terms.
"""

from __future__ import annotations

from functools import reduce
from math import comb
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

from everypair.arrays.double_double import Number, each, two_sum
from everypair.arrays.rows import Runs
from everypair.row_sums._knots import Knots
from everypair.row_sums._product import ProductSums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from everypair.arrays.eager import SlicedSums
    from everypair.row_sums._pieces import Exponential, Part, Piece, Side

    Array = Any
    Groups = tuple[Array, Array] | None


class RowSums:
    """The sums of all terms of a surrogate.

    Parameters
    ----------
    xp : SlicedSums
    x, y : (n,) and (m,) float64
        Scores of the rows and of the other rows.
    groups : tuple of (n,) and (m,) integers, or None
        Numbers of groups, from 0. Only pairs inside a group count.
    terms
        What `pieces_of` returns.
    sweep : callable, with the arguments of `Sweep`
    """

    def __init__(
        self,
        xp: SlicedSums,
        x: Array,
        y: Array,
        groups: Groups,
        terms: tuple[tuple[Piece, ...], tuple[Exponential, ...]],
        sweep: Callable[..., Part] | None = None,
    ) -> None:
        pieces, exponential = terms
        self._parts: list[Part] = [(sweep or Sweep)(xp, x, y, groups, p) for p in pieces]
        self._parts += [ProductSums(xp, x, y, groups, term) for term in exponential]

    def sums(
        self, weights: Array, orders: Sequence[int], *, per_other: bool = False
    ) -> list[Array]:
        """Return the sums of derivatives of the surrogate with respect to the shortfall.

        Parameters
        ----------
        weights : (m,) or (n,) float64
            Those of the other rows, or of the rows with `per_other`.
        orders : sequence of 0, 1 and 2
            The value, the slope or the curvature. Several orders share most of the work.
        per_other : bool
            Return q, of shape (m,), instead of r, of shape (n,).
        """
        parts = (part.sums(weights, orders, per_other) for part in self._parts)
        return [reduce(add, of_order) for of_order in zip(*parts, strict=True)]


class _Neighbours(NamedTuple):
    """The nearest knots of all points on one side.

    Attributes
    ----------
    below : bool
        Whether the knots are those below the points.
    side : int
        0 if the pairs of points and knots on this side have d <= 0, and 1 if they have d > 0.
    index : (m,) integers
        The number of the knot, from 0; below the points, from 1. The remaining number, n or 0, is
        that of points without such a knot.
    distance : (m,) float64
        Not negative.
    """

    below: bool
    side: int
    index: Array
    distance: Array


class Sweep:
    """The sums of one piece of a surrogate."""

    def __init__(self, xp: SlicedSums, x: Array, y: Array, groups: Groups, piece: Piece) -> None:
        self._xp, self._piece = xp, piece
        self._rows_are_knots = x.shape[-1] <= y.shape[-1]
        moved = two_sum(y, piece.shift) if piece.shift else Number(y)
        # d > 0 if and only if the row is not larger than this float.
        bound = xp.next_below(moved.high)
        if moved.low is not None:
            bound = xp.where(moved.low > 0.0, moved.high, bound)
        sets = [(Number(x), x), (moved, bound)]
        groups = (None, None) if groups is None else groups
        if not self._rows_are_knots:
            sets, groups = sets[::-1], groups[::-1]
        (position, key), (points, point_keys) = sets
        rank = () if groups[0] is None else (xp.as_uint8(key != key),)
        self._order = xp.order([*rank, key, *(groups[:1] if rank else ())])

        def in_order(a: Array) -> Array:
            return xp.pick(a, self._order)

        codes = None if groups[0] is None else in_order(groups[0])
        runs = Runs(xp, xp.row_numbers(key), *(() if codes is None else xp.bounds(codes)))
        self._knots = Knots(xp, each(in_order, position), runs)
        groups = codes, groups[1]
        index = self._places(in_order(key), point_keys, groups)
        self._neighbours = [self._nearest(points, index, groups, b) for b in (True, False)]

    def sums(self, weights: Array, orders: Sequence[int], per_other: bool) -> list[Array]:
        """See `RowSums`."""
        xp, order = self._xp, self._order
        if per_other == self._rows_are_knots:
            return [self._over_knots(xp.pick(weights, order), k) for k in orders]
        return [xp.scatter(sums, order) for sums in self._over_points(weights, orders)]

    def _places(self, knots: Array, points: Array, groups: Any) -> Array:
        """Return the number of knots below each point, those of earlier groups included."""
        xp, right, (of_knots, of_points) = self._xp, self._rows_are_knots, groups
        if of_knots is None:
            return xp.insertion(knots, points, right)
        is_knot = xp.concatenate([of_knots == of_knots, of_points != of_points])
        rank = xp.as_uint8(~is_knot if right else is_knot)
        order = xp.order([rank, *(xp.concatenate(pair) for pair in ([knots, points], groups))])
        n_knots = xp.cumsum(xp.where(xp.pick(is_knot, order), 1, 0))
        return xp.scatter(n_knots, order)[of_knots.shape[-1] :]

    def _nearest(self, points: Number, index: Array, groups: Any, below: bool) -> _Neighbours:
        """Return the nearest knots below the points or above them."""
        xp, (of_knots, of_points) = self._xp, groups
        number = index - 1 if below else index
        if of_knots is not None:
            n = of_knots.shape[-1]
            inside = (number >= 0) & (number < n) & (xp.pick(of_knots, number) == of_points)
            index = xp.where(inside, index, 0 if below else n)
        nearest = each(lambda part: xp.pick(part, number), self._knots.position)
        distance = points.high - nearest.high
        for part, sign in ((points.low, 1.0), (nearest.low, -1.0)):
            if part is not None:
                distance = distance + sign * part
        distance = distance if below else -distance
        # Rounding, and points without a knot on this side, may leave a distance below 0.
        distance = xp.where(distance > 0.0, distance, 0.0)
        return _Neighbours(below, int(below == self._rows_are_knots), index, distance)

    def _over_knots(self, weights: Array, order: int) -> Array:
        """Return the sum over the sorted knots for every point."""
        xp = self._xp
        sides = self._piece.sides[order]
        tables = [self._tables(weights, near, sides[near.side]) for near in self._neighbours]
        out = []
        for rows in xp.slices(self._neighbours[0].index.shape[-1], 0):
            total: Any = 0.0
            for near, (polynomial, powers, linear) in zip(self._neighbours, tables, strict=True):
                index, distance = near.index[rows], near.distance[rows]
                total = total + self._horner(polynomial, index, distance)
                if powers:
                    u = self._exponent(distance)
                    x = xp.exponential(-u)
                    total = total + self._horner(powers, index, x)
                    total = total + (u * self._horner(linear, index, x) if linear else 0.0)
            out.append(total)
        return out[0] if len(out) == 1 else xp.concatenate(out)

    def _tables(self, weights: Array, near: _Neighbours, side: Side) -> list[list[Array]]:
        """Return the coefficients, at each knot, of polynomials in |d|, in x and of u times x.

        Here d is the distance of a point from the knot, u = rate |d| and x = exp(-u).
        """
        p, c, e = side
        zero = weights * 0.0
        added = [weights, zero, zero][: p.size]
        moments = self._knots.moments(added, upwards=near.below)
        polynomial = [
            sum(p[r] * comb(r, s) * moments[r - s] for r in range(s, p.size)) for s in range(p.size)
        ]
        powers, linear = [], []
        if c.size:
            a = self._xp.broadcast(weights, (c.size, *weights.shape))
            a, b = self._knots.exponentials(
                a, None if e is None else a * 0.0, self._piece.rate, upwards=near.below
            )
            powers = [zero, *(c_k * a_k for c_k, a_k in zip(c.tolist(), a, strict=True))]
            if e is not None:
                powers[1:] = [
                    q + e_k * b_k for q, e_k, b_k in zip(powers[1:], e.tolist(), b, strict=True)
                ]
                linear = [zero, *(e_k * a_k for e_k, a_k in zip(e.tolist(), a, strict=True))]
        # The entry of points without a knot is zero.
        none = zero[:1]

        def padded(table: Array) -> Array:
            return self._xp.concatenate([none, table] if near.below else [table, none])

        return [[padded(table) for table in tables] for tables in (polynomial, powers, linear)]

    def _over_points(self, weights: Array, orders: Sequence[int]) -> list[Array]:
        """Return the sums over the points for every sorted knot."""
        totals = [self._xp.zeros_like(self._knots.position.high) for _ in orders]
        for near in self._neighbours:
            sides = [self._piece.sides[order][near.side] for order in orders]
            n_moments, n_powers = (
                max(map(len, parts)) for parts in list(zip(*sides, strict=True))[:2]
            )
            linear = any(side.e is not None for side in sides)
            upwards = not near.below
            moments, a, b = self._added(weights, near, n_moments, n_powers, linear)
            moments = self._knots.moments(moments, upwards=upwards)
            if n_powers:
                a, b = self._knots.exponentials(a, b, self._piece.rate, upwards=upwards)
            for i, (p, c, e) in enumerate(sides):
                for factors, sums in ((p, moments), (c, a), (e, b)):
                    if factors is not None and factors.size:
                        parts = zip(factors.tolist(), sums, strict=False)
                        totals[i] = totals[i] + sum(factor * part for factor, part in parts)
        return totals

    def _added(
        self, weights: Array, near: _Neighbours, n_moments: int, n_powers: int, linear: bool
    ) -> tuple[list[Array], Array, Array]:
        """Return the sums of w |d|^k, of w x^k and of w u x^k over the points next to each knot."""
        xp, n = self._xp, self._order.shape[-1]
        found: list[list[Any]] = [
            [weights[:1] * 0.0] * size for size in (n_moments, n_powers, n_powers * linear)
        ]
        for rows in xp.slices(weights.shape[-1], n):
            index, distance, w = near.index[rows], near.distance[rows], weights[rows]
            power = w
            for k in range(n_moments):
                found[0][k] = found[0][k] + xp.segment_sums(power, index, n + 1)
                power = power * distance
            if n_powers:
                u = self._exponent(distance)
                x, power = xp.exponential(-u), w
                for k in range(n_powers):
                    power = power * x
                    found[1][k] = found[1][k] + xp.segment_sums(power, index, n + 1)
                    if linear:
                        found[2][k] = found[2][k] + xp.segment_sums(power * u, index, n + 1)
        own = slice(1, None) if near.below else slice(None, -1)
        moments, *powers = ([sums[own] for sums in sums_] for sums_ in found)
        a, b = (
            xp.concatenate([sums[None] for sums in sums_]) if sums_ else None for sums_ in powers
        )
        return moments, a, b

    def _exponent(self, distance: Array) -> Array:
        """Return rate |d|, or a number so large that its exponential is 0."""
        u, largest = distance * self._piece.rate, 2.0 * self._xp.largest_exponent
        return self._xp.where(u < largest, u, largest)

    def _horner(self, tables: list[Array], index: Array, x: Array) -> Array:
        """Evaluate a polynomial in x, whose coefficients are the entries `index` of tables."""
        if not tables:
            return 0.0 * x
        total = self._xp.pick(tables[-1], index)
        for table in tables[-2::-1]:
            total *= x
            total += self._xp.pick(table, index)
        return total

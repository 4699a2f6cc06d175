"""Sums over all pairs of the smooth and of the exponential terms of a surrogate.

**Smooth terms** are polynomials in exp(-rate |d|) on either side of d = 0, with
d = s_neg + shift - s_pos. Rows are sorted as for truncated terms, with the same decision about
pairs at d = 0: a row then finds the pairs with d > 0 on one side of itself and those with d <= 0 on
the other, as running sums of exponentials in the two directions (`exponential_sums`).

The error: a polynomial deviates from the function by a relative error that `surrogates` proves, for
every pair. Where all pairs have slopes of one sign, as for every increasing surrogate, a sum of
them has no larger relative error. So the bound holds for the loss and for each entry of the
gradient; rounding adds less than 1e-12 in float64.

**Exponential terms** scale * exp(rate d) are products of a factor of the positive and one of the
negative. With M the largest score of the negatives of a group and m the smallest of its positives,

    sum over j of w_j exp(rate (s_j + shift - s_i))
        = exp(rate (M + shift - s_i)) * sum over j of w_j exp(rate (s_j - M))

for a positive i, and the same for a negative with m. The sum has no term larger than its weight, so
only results that are themselves too large for a float overflow.
"""

from __future__ import annotations

from functools import reduce
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from everypair.arrays.double_double import Number, each, two_sum
from everypair.arrays.exponential_sums import ExponentialSums, Line
from everypair.arrays.results import PairSums
from everypair.arrays.sorted_moments import positions

if TYPE_CHECKING:
    from everypair.arrays.double_double import Arrays
    from everypair.arrays.rows import Rows
    from everypair.arrays.terms import Exponential, Smooth

    Array = Any


def smooth_sums(xp: Arrays, rows: Rows, term: Smooth, asked: PairSums) -> PairSums:
    """Return the sums of a smooth term over all pairs, in the order of the rows."""
    wide, xp = xp, xp.for_smooth_terms()
    one_way = not (asked.grad or asked.hess or asked.hvp)
    position, rank = positions(xp, rows, xp.column(term.shift))
    groups = () if rows.groups is None else (xp.broadcast(rows.groups, rank.shape),)
    order = xp.order([rank, position.high, *groups])

    def in_order(a: Array) -> Array:
        return xp.gather(xp.broadcast(a, order.shape), order)

    def directions(up: Number, down: Number) -> Number:
        """Return what sums upwards take and, where they are needed, what sums downwards do."""
        up = each(lambda part: part[None], up)
        return up if one_way else xp.joined(up, each(lambda part: xp.flip(part)[None], down))

    position, is_neg = each(in_order, position), in_order(~rows.positive)
    w = Number(xp.zeros_like(position.high) + 1.0 if rows.w is None else in_order(rows.w))
    z = None if rows.z is None else each(in_order, rows.z)
    line = Line(
        directions(position, each(lambda part: -part, position)),
        rows.runs.rows,
        None if groups == () else directions(*_starts(xp, rows, order)).high,
    )
    # Of each weight, first that of the rows that form pairs with d > 0, then that of the others.
    sources = []
    for weight in [w] if z is None else [w, xp.times(w, z)]:
        of_pos = each(lambda part: xp.where(is_neg, 0.0, part), weight)
        of_neg = each(lambda part: xp.where(is_neg, part, 0.0), weight)
        sources += [directions(of_pos, of_neg), directions(of_neg, of_pos)]
    stacked = reduce(xp.joined, (each(lambda part: part[None], source) for source in sources))
    outputs = [(order_, 0) for order_, wanted in enumerate(asked_orders(asked)) if wanted]
    if z is not None:
        outputs += [(2, 0), (2, 1)] if (2, 0) not in outputs else [(2, 1)]
    c, e = term.powers.coefficients(tuple(outputs), len(sources))
    scan = ExponentialSums(
        xp,
        xp.constants(np.array([term.powers.rate])),
        xp.constants(c),
        None if e is None else xp.constants(e),
    )
    out = scan(line, stacked)
    reads_first = directions(Number(is_neg), Number(~is_neg)).high

    def row_sums(output: tuple[int, int]) -> Number:
        i = 2 * outputs.index(output)
        return each(lambda part: xp.where(reads_first, part[i], part[i + 1]), out)

    def per_row(sums: Number) -> Number:
        """Return both directions together."""
        up, down = (each(itemgetter(i), sums) for i in (0, 1))
        return xp.plus(up, each(xp.flip, down))

    def in_batch(a: Number) -> Number:
        return xp.sum_of_terms(each(lambda part: xp.scatter(part, order), xp.times(w, a)))

    value = grad = hess = hvp = None
    if asked.value:  # every pair is found once by the sums upwards
        up = each(lambda part: part[0], row_sums((0, 0)))
        value = wide.sum_of_terms(wide.total(wide.times(w, up)))
    if asked.grad:
        slope = per_row(row_sums((1, 0)))
        grad = in_batch(each(lambda part: xp.where(is_neg, part, -part), slope))
    if asked.hess or z is not None:
        curvature = per_row(row_sums((2, 0)))
        hess = in_batch(curvature) if asked.hess else None
        if z is not None:
            others = per_row(row_sums((2, 1)))
            hvp = in_batch(xp.minus(xp.times(z, curvature), others))
    return PairSums(value, None, grad, hess, hvp)


def asked_orders(asked: PairSums) -> tuple[bool, bool, bool]:
    """Return whether the value, the slope and the curvature of pairs are needed."""
    return bool(asked.value), bool(asked.grad), bool(asked.hess)


def _starts(xp: Arrays, rows: Rows, order: Array) -> tuple[Number, Number]:
    """Return the first row of the group of each row, in both directions."""
    runs = rows.runs
    last = runs.rows.shape[-1] - 1
    shape = order.shape
    # `directions` reverses the second one.
    return (
        Number(xp.broadcast(runs.start, shape)),
        Number(xp.broadcast(last - runs.stop, shape)),
    )


def exponential_sums(xp: Arrays, rows: Rows, term: Exponential, asked: PairSums) -> PairSums:
    """Return the sums of an exponential term over all pairs, in the order of the rows."""
    wide, xp = xp, xp.for_smooth_terms()
    shift, rate = xp.column(term.shift), xp.constants(np.array([term.factors.rate]))
    x, positive = rows.x[None], rows.positive[None]
    top, bottom = _extremes(xp, rows)

    # Each row relative to the extreme row of its class, and the extreme row of the other class
    # relative to each row.
    near = two_sum(xp.where(positive, bottom, x), -xp.where(positive, x, top))
    far = xp.plus(two_sum(xp.where(positive, top, x), -xp.where(positive, x, bottom)), shift)
    own = xp.exp(xp.times(near, rate))
    exponent = xp.times(far, rate)
    factor = xp.exp(exponent)
    w = Number(xp.zeros_like(x) + 1.0 if rows.w is None else rows.w[None])

    def of_others(a: Number) -> Number:
        """Return the sums over the other class of its rows relative to its extreme row."""
        totals = rows.runs.class_totals(wide.times(w, a), rows.positive)
        return wide.choose(positive, totals[1], totals[0])

    sums = of_others(own)
    alive = (w.high > 0.0) & (sums.high > 0.0)

    def per_row(a: Number) -> Number:
        """Return the share of each row, zero for rows that are in no pair."""
        scaled = xp.times(xp.times(w, a), factor)
        return each(lambda part: xp.where(alive & (a.high != 0.0), part, 0.0), scaled)

    def scaled(a: Number, order: int) -> Number:
        number = xp.constants(np.array([term.factors.scale * term.factors.rate**order]))
        return xp.sum_of_terms(xp.times(a, number))

    value = grad = hess = hvp = None
    if asked.value:
        # Relative to the largest factor, because sums with low parts must be finite.
        counted = alive & ~positive
        largest = xp.max(xp.where(counted, exponent.high, -float("inf")))
        largest = Number(xp.where(xp.isfinite(largest), largest, 0.0))
        relative = xp.times(xp.times(w, sums), xp.exp(xp.minus(exponent, largest)))
        total = wide.total(each(lambda part: xp.where(counted, part, 0.0), relative))
        value = scaled(xp.times(total, xp.exp(largest)), 0)
    if asked.grad:
        signed = each(lambda part: xp.where(positive, -part, part), per_row(sums))
        grad = scaled(signed, 1)
    if asked.hess:
        hess = scaled(per_row(sums), 2)
    if rows.z is not None:
        z = each(lambda part: part[None], rows.z)
        others = of_others(wide.times(own, z))
        hvp = scaled(per_row(wide.minus(wide.times(z, sums), others)), 2)
    return PairSums(value, None, grad, hess, hvp)


def _extremes(xp: Arrays, rows: Rows) -> tuple[Array, Array]:
    """Return the largest score of the negatives and the smallest of the positives of each group."""
    x, positive = rows.x, rows.positive
    alive = positive | ~positive if rows.w is None else rows.w > 0.0
    if rows.groups is None:
        least = -float("inf")
        top = xp.max(xp.where(alive & ~positive, x, least))
        bottom = -xp.max(xp.where(alive & positive, -x, least))
        # Without one of the classes there is no pair.
        return tuple(xp.where(xp.isfinite(a), a, 0.0)[None] for a in (top, bottom))
    # Within a group: positives, rows without weight, negatives. Each class in the order of scores.
    rank = xp.as_uint8(xp.where(alive, xp.where(positive, 0, 2), 1))
    by_rank = xp.gather(x, xp.order([x, rank, rows.groups]))
    return xp.gather(by_rank, rows.runs.stop)[None], xp.gather(by_rank, rows.runs.start)[None]

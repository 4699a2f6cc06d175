"""Ordered pairs by array operations: grouped binary pairs, one level for each bit of the rank.

The mathematics is that of `everypair.inputs.ranked`. The number of levels is the caller's, because
no value is read back here; levels without pairs add nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from everypair.arrays import pair_sums
from everypair.arrays.rows import PairSums, over_unit, times_powers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everypair.arrays.double_double import Arrays
    from everypair.arrays.terms import Kinds

    Array = Any


class Ranks(NamedTuple):
    """The rows in the order of their groups and targets; the other arrays are in that order.

    Attributes
    ----------
    order, ranks : (..., n) whole numbers
        Ranks are dense inside each group, from 0.
    is_head : (..., n) bool
        Whether a row is the first of its group.
    """

    order: Array
    ranks: Array
    is_head: Array


def ranks_of(xp: Arrays, keys: Sequence[Array], groups: Array) -> Ranks:
    """Sort rows by group and by keys, of which the last counts most; a higher rank is to win."""
    order = xp.order([*keys] if groups is None else [*keys, groups])
    rows = xp.row_numbers(keys[0])
    is_head = xp.broadcast(rows == 0, order.shape)
    if groups is not None:
        is_head = is_head | _changes(xp, xp.gather(groups, order))
    is_new = is_head
    for key in keys:
        is_new = is_new | _changes(xp, xp.gather(key, order))
    numbers = xp.running_count(is_new)
    start, _ = xp.bounds(xp.running_count(is_head))
    return Ranks(order, numbers - xp.gather(numbers, start), is_head)


def evaluate(
    xp: Arrays,
    scores: Array,
    rows: Ranks,
    winner: Array,
    loser: Array,
    vector: Array,
    terms: Kinds,
    n_bits: Any,
    *,
    mean: Any,
    grad: bool,
    hess: bool,
) -> PairSums:
    """Return the sum of the terms over all pairs of different ranks, and its derivatives.

    Parameters
    ----------
    xp, scores, vector, terms, mean, grad, hess
        Those of `pair_sums.evaluate`.
    rows : Ranks
    winner, loser : (..., n) or None
        The weight of a row where it has the higher rank, and where it has the lower one. Either
        both are None or none.
    n_bits : int or array
        The number of bits of the highest rank, or more; at least 1.
    """
    order, ranks, is_head = rows
    x = xp.gather(scores, order)
    z, of_vector = None, None
    if vector is not None:
        z, of_vector = over_unit(xp, xp.gather(vector, order))
    # Powers of two change no digit: the largest weights become 1, and all pairs together at most 1.
    unit = xp.zeros_like(x[..., :1]) + 1.0
    size = 2.0 ** x.shape[-1].bit_length()
    weighted = winner is not None
    weights, scales = [], [unit, unit]
    smallest, largest_float = xp.float_range
    if weighted:
        largest = [xp.max(w) for w in (winner, loser)]
        scales = [  # a denormal number would have no bits left
            xp.keep_bits(xp.where(top > smallest, top, smallest) * unit, xp.mantissa_bits)
            for top in largest
        ]
        weights = [
            xp.gather(w, order) / scale for w, scale in zip((winner, loser), scales, strict=True)
        ]

    def clamped(part: Array) -> Array:
        """Return finite numbers: a row may win infinitely at one level and lose so at another."""
        if not terms.exponential:
            return part
        part = xp.where(part > largest_float, largest_float, part)
        return xp.where(part < -largest_float, -largest_float, part)

    def add_level(bit: Any, sums: PairSums) -> PairSums:
        positive = ((ranks >> bit) & 1) == 1
        groups = xp.running_count(is_head | _changes(xp, ranks >> (bit + 1)))
        result = pair_sums.evaluate(
            xp, x, positive, xp.where(positive, *weights) if weighted else None, groups, z, terms,
            mean=True, grad=grad, hess=hess,
        )  # fmt: skip
        share = result.pair_weight / size / size
        arrays = (
            None if total is None else total + share[..., None] * clamped(part)
            for total, part in zip(sums[2:], result[2:], strict=True)
        )
        value, pair_weight = sums.value + share * result.value, sums.pair_weight + share
        return PairSums(value, pair_weight, *arrays)

    zero, zeros = xp.zeros_like(x[..., 0]), xp.zeros_like(x)
    requested = (grad, hess, vector is not None)
    start = PairSums(zero, zero, *(zeros if is_requested else None for is_requested in requested))
    total = xp.repeat(n_bits, add_level, start)
    pair_weight = total.pair_weight
    averaged = (pair_weight > 0.0) & mean
    divisor = xp.where(averaged, pair_weight, 1.0)
    factors = [xp.where(averaged, 1.0, scale[..., 0] * size) for scale in scales]

    def finished(part: Array, unit: Array) -> Array:
        out = part / divisor[..., None]
        out = times_powers(xp, out, factors[0][..., None], factors[1][..., None], unit)
        return xp.scatter(xp.where(out == 0.0, 0.0, out), order)

    true = pair_weight * size * scales[0][..., 0] * size * scales[1][..., 0]
    true = xp.where(true > largest_float, largest_float, xp.where(true < smallest, smallest, true))
    return PairSums(
        total.value / divisor * factors[0] * factors[1],
        xp.where(pair_weight > 0.0, true, pair_weight),
        *(
            None if part is None else finished(part, power)
            for part, power in zip(total[2:], (unit, unit, of_vector), strict=True)
        ),
    )


def _changes(xp: Arrays, a: Array) -> Array:
    """Return whether each entry differs from the one before; of the first it is not defined."""
    return a != xp.roll(a, 1)

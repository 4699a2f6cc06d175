"""Ordered targets, and their pairs as binary pairs: one level for each bit of the rank.

Every row is to score higher than every row of its group with a lower target.

Two different ranks differ first, from the highest bit down, at exactly one bit b. So the pairs of
rows with different ranks are the disjoint union, over b, of the (positive, negative) pairs with::

    label = bit b of the rank,    group = (group of the row, rank >> (b + 1))

Rows are sorted once, by group and rank. At each level the groups are then contiguous, and the sum
over all ordered pairs is the sum of at most ``ceil(log2(n_ranks))`` grouped binary sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import convert
from everypair.inputs.groups import stable_order

Floats = NDArray[np.float64]

_OTHER_GROUP = 1 << 62  # larger than every difference of ranks
_NO_WEIGHT = -10_000  # the exponent of zero
_WIDEST = 900  # products of weights over as many powers of two do not underflow


def target_from(values: ArrayLike, name: str = "labels") -> NDArray[Any]:
    """Convert grades or real targets to an (n,) array, and check that all of them are finite."""
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "biuf":
        column: NDArray[Any] = values
    else:
        column = convert.to_column(convert.to_real(values, name), name)
    if column.dtype.kind == "f":
        finite = np.isfinite(column)
        if not finite.all():
            i = int(np.argmin(finite))
            raise ValueError(
                f"{name} must be finite numbers; got {column[i].item()!r} (first at index {i}). "
                "Drop the rows whose target is not known."
            )
    return column


class SortedRows(NamedTuple):
    """Rows sorted by group and rank, with a weight for each of their two roles in a pair.

    Weights are over a power of two, and None stands for 1. The product of the largest weights of
    both roles, or the weight of the heaviest pair, is near 1.
    """

    order: NDArray[np.intp]  # the rows; all other arrays are in this order
    ranks: NDArray[np.int64]  # dense ranks inside each group, from 0
    offsets: NDArray[np.int64]  # the first row of each group, then n
    winner: Floats | None
    loser: Floats | None
    exponent: int  # the weight of a pair is 2**exponent times that of these weights


@dataclass(eq=False)
class RankedRows:
    """Rows with ordered targets, which are sorted when `rows` is read.

    In a pair the row of the higher target is the winner: it is to score higher. With events,
    targets are times of at least 0, and the row of the earlier event wins. The weight of a pair is
    the weight of its winner times the weight of its loser. None stands for weights of 1; for
    winners of survival times it stands for 1 for an event and 0 for a censored row. The compiled
    kernel does not need the sorted rows for every call.
    """

    targets: NDArray[Any]
    events: NDArray[np.bool_] | None
    groups: NDArray[np.int64] | None  # numbers
    winner: Floats | None
    loser: Floats | None

    @cached_property
    def rows(self) -> SortedRows:
        """The sorted rows."""
        keys, winner = self.targets, self.winner
        if self.events is not None:
            keys = survival_keys(keys, self.events)
            winner = self.events.astype(np.float64) if winner is None else winner
        order, ranks, offsets = _sorted(keys, self.groups)
        weights = [None if w is None else w[order] for w in (winner, self.loser)]
        return SortedRows(order, ranks, offsets, *_scaled(weights, ranks, offsets))


def survival_keys(times: Floats, events: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return targets that are higher for rows that are to score higher.

    The bits of floats that are not negative, read as integers, have the order of the floats.
    Doubled, plus 1 for censored rows, they order times, and at one time the events first.
    """
    bits = (times + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return ~(bits << np.uint64(1) | ~events)


def _sorted(
    keys: NDArray[Any], groups: NDArray[np.int64] | None
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
    """Return the order by group and key, the dense ranks inside each group, and the offsets."""
    order, n = np.argsort(keys), keys.shape[0]
    if groups is not None:
        order = order[stable_order(groups[order])]
    keys, is_new = keys[order], np.zeros(n, bool)
    np.not_equal(keys[1:], keys[:-1], out=is_new[1:])
    if groups is None:
        return order, np.cumsum(is_new, dtype=np.int64), np.array([0, n], np.int64)
    groups = groups[order]
    other_group = groups[1:] != groups[:-1]
    is_new[1:] |= other_group
    heads = np.append(0, np.flatnonzero(other_group) + 1)
    ranks, offsets = np.cumsum(is_new, dtype=np.int64), np.append(heads, n)
    return order, ranks - np.repeat(ranks[heads], np.diff(offsets)), offsets


def levels(
    ranks: NDArray[np.int64], offsets: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64]]]:
    """Yield the levels that have pairs, from the highest bit down, for rows as in `SortedRows`.

    A level has the rows that are positive (n,), and the offsets of its groups as in a `Batch`.
    """
    differences = ranks[1:] ^ ranks[:-1]
    differences[offsets[1:-1] - 1] = _OTHER_GROUP
    inside = differences[differences < _OTHER_GROUP]
    for bit in reversed(range(int(inside.max(initial=0)).bit_length())):
        if ((inside >> bit) == 1).any():
            starts = np.flatnonzero(differences >> (bit + 1)) + 1
            starts = np.concatenate(([0], starts, [ranks.shape[0]])).astype(np.int64)
            yield (ranks >> bit & 1).astype(bool), starts


def _scaled(
    weights: list[Floats | None], ranks: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[Floats | None, Floats | None, int]:
    """Divide the weights of winners and losers by powers of two; return also their exponent.

    If they differ so much that products could underflow, rows without a pair get the weight 0, and
    the weight of the heaviest pair becomes near 1.
    """
    largest, smallest = np.transpose([_sizes(w) for w in weights])
    if (largest - smallest).sum() > _WIDEST:
        role_weights = np.array([np.ones(ranks.shape[0]) if w is None else w for w in weights])
        sizes = np.where(role_weights > 0.0, np.frexp(role_weights)[1].astype(np.int64), _NO_WEIGHT)
        in_pairs, heaviest = np.zeros(sizes.shape, bool), 2 * _NO_WEIGHT
        for positive, starts in levels(ranks, offsets):
            of_role = np.where([positive, ~positive], sizes, _NO_WEIGHT)
            tops = np.maximum.reduceat(of_role, starts[:-1], axis=1)
            has_pairs = (tops > _NO_WEIGHT).all(0)
            heaviest = max(heaviest, int(tops.sum(0)[has_pairs].max(initial=2 * _NO_WEIGHT)))
            in_pairs |= (of_role > _NO_WEIGHT) & np.repeat(has_pairs, np.diff(starts))
        weights, largest = [*np.where(in_pairs, role_weights, 0.0)], np.zeros(2, np.int64)
        if in_pairs.any():
            largest = np.where(in_pairs, sizes, _NO_WEIGHT).max(1)
            largest = largest - (int(largest.sum()) - heaviest) // 2
    winner, loser = (
        None if w is None else np.ldexp(w, -exponent)
        for w, exponent in zip(weights, largest, strict=True)
    )
    return winner, loser, int(largest.sum())


def _sizes(weights: Floats | None) -> tuple[int, int]:
    """Return the exponents of the largest weight and of the smallest one above 0."""
    if weights is None:
        return 0, 0
    largest = weights.max()
    smallest = weights.min(where=weights > 0.0, initial=largest)
    return math.frexp(largest)[1], math.frexp(smallest)[1]

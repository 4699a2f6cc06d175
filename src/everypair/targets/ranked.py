"""Ordered pairs as binary pairs: one level for each bit of the rank of a target.

Two different ranks differ first, from the highest bit down, at exactly one bit b. So the pairs of
rows with different ranks are the disjoint union, over b, of the (positive, negative) pairs with::

    label = bit b of the rank,    group = (group of the row, rank >> (b + 1))

Rows are sorted once, by group and rank. At each level the groups are then contiguous, and the sum
over all ordered pairs is the sum of at most ``ceil(log2(n_ranks))`` grouped binary sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everypair.targets.groups import stable_order

Floats = NDArray[np.float64]

_OTHER_GROUP = 1 << 62  # larger than every difference of ranks


class Level(NamedTuple):
    """The pairs of one bit, as binary pairs of the sorted rows.

    Attributes
    ----------
    positive : (n,) bool
    weights : (n,) float64 or None
    offsets : (n_groups + 1,) int64
        First row of each group, then n.
    """

    positive: NDArray[np.bool_]
    weights: Floats | None
    offsets: NDArray[np.int64]


class RankedRows:
    """Rows sorted by group and rank, with a weight for each of their two roles in a pair.

    In a pair the row of the higher rank is the winner: it is to score higher. The weight of a pair
    is the weight of its winner times the weight of its loser.

    Parameters
    ----------
    target : (n,) real
        The row of the higher target wins. Rows with equal targets are no pair.
    groups : (n,) int64 or None
    winner, loser : (n,) float64 or None
        The weight of a row in each role; None is 1.

    Attributes
    ----------
    order : (n,) intp
        The rows, sorted by group and by rank. All other arrays are in this order.
    ranks : (n,) int64
        Dense ranks inside each group, from 0.
    offsets : (n_groups + 1,) int64
        First row of each group, then n.
    winner, loser : (n,) float64 or None
        The weights, divided by powers of two so that the largest ones are near 1.
    exponent : int
        The weight of a pair is ``2**exponent`` times that of these weights.
    """

    __slots__ = ("exponent", "loser", "offsets", "order", "ranks", "winner")

    def __init__(
        self,
        target: NDArray[Any],
        groups: NDArray[np.int64] | None,
        winner: Floats | None,
        loser: Floats | None,
    ) -> None:
        self.order = order = _order(target, groups)
        sorted_target = target[order]
        is_new = np.zeros(order.shape[0], bool)
        np.not_equal(sorted_target[1:], sorted_target[:-1], out=is_new[1:])
        heads = np.zeros(1, np.int64)
        if groups is not None:
            sorted_groups = groups[order]
            other_group = sorted_groups[1:] != sorted_groups[:-1]
            is_new[1:] |= other_group
            heads = np.concatenate((heads, np.flatnonzero(other_group) + 1))
        self.offsets = np.append(heads, order.shape[0])
        self.ranks = np.cumsum(is_new, dtype=np.int64)
        if groups is not None:
            self.ranks -= np.repeat(self.ranks[heads], np.diff(self.offsets))
        self.winner, e_winner = _scaled(winner, order)
        self.loser, e_loser = _scaled(loser, order)
        self.exponent = e_winner + e_loser

    def arrays(self) -> tuple[NDArray[Any] | None, ...]:
        """Return the arrays as the compiled kernel takes them."""
        return self.order, self.ranks, self.offsets, self.winner, self.loser

    def levels(self) -> Iterator[Level]:
        """Yield the levels that have pairs, from the highest bit down."""
        differs = self.ranks[1:] ^ self.ranks[:-1]
        differs[self.offsets[1:-1] - 1] = _OTHER_GROUP
        inside = differs[differs < _OTHER_GROUP]
        n = self.order.shape[0]
        for bit in reversed(range(int(inside.max(initial=0)).bit_length())):
            if not ((inside >> bit) == 1).any():
                continue
            starts = np.flatnonzero(differs >> (bit + 1)) + 1
            offsets = np.concatenate(([0], starts, [n])).astype(np.int64)
            positive = (self.ranks >> bit & 1).astype(bool)
            yield Level(positive, self._weights(positive), offsets)

    def _weights(self, positive: NDArray[np.bool_]) -> Floats | None:
        if self.winner is None and self.loser is None:
            return None
        winner, loser = (1.0 if w is None else w for w in (self.winner, self.loser))
        return np.where(positive, winner, loser)


def _order(target: NDArray[Any], groups: NDArray[np.int64] | None) -> NDArray[np.intp]:
    order = np.argsort(target)
    return order if groups is None else order[stable_order(groups[order])]


def _scaled(weights: Floats | None, order: NDArray[np.intp]) -> tuple[Floats | None, int]:
    """Return ``weights[order] / 2**exponent``, the largest near 1, and the exponent."""
    if weights is None:
        return None, 0
    exponent = int(np.frexp(weights.max())[1])
    return np.ldexp(weights[order], -exponent), exponent

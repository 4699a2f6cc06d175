"""Ordered pairs as binary pairs: one level for each bit of the rank of a target.

Two different ranks differ first, from the highest bit down, at exactly one bit b. So the pairs of
rows with different ranks are the disjoint union, over b, of the (positive, negative) pairs with::

    label = bit b of the rank,    group = (group of the row, rank >> (b + 1))

Rows are sorted once, by group and rank. At each level the groups are then contiguous, and the sum
over all ordered pairs is the sum of at most ``ceil(log2(n_ranks))`` grouped binary sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everypair.inputs.binary import LABEL_DTYPES
from everypair.inputs.groups import stable_order
from everypair.inputs.survival import Survival

Floats = NDArray[np.float64]

_OTHER_GROUP = 1 << 62  # larger than every difference of ranks
_NO_WEIGHT = -10_000  # the exponent of zero
_WIDEST = 900  # products of weights over as many powers of two do not underflow


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
    is the weight of its winner times the weight of its loser. Rows are sorted when the first of
    `order`, `ranks` and `offsets` is read: the compiled kernel does not need them for every call.

    Parameters
    ----------
    target : (n,) real, or Survival
        The row of the higher target wins, or that of the earlier event. Rows with equal targets are
        no pair.
    groups : (n,) int64 or None
    winner, loser : (n,) float64 or None
        The weight of a row in each role. None is 1; for a winner of survival times it is 1 for an
        event and 0 for a censored row.
    """

    def __init__(
        self,
        target: NDArray[Any] | Survival,
        groups: NDArray[np.int64] | None,
        winner: Floats | None,
        loser: Floats | None,
    ) -> None:
        self._target, self._groups, self._given = target, groups, (winner, loser)

    @cached_property
    def _keys(self) -> NDArray[Any]:
        target = self._target
        return target.targets() if isinstance(target, Survival) else target

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The (n,) rows, sorted by group and by rank. All other arrays are in this order."""
        order = np.argsort(self._keys)
        return order if self._groups is None else order[stable_order(self._groups[order])]

    @cached_property
    def _runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ranks and the offsets."""
        sorted_keys = self._keys[self.order]
        n = sorted_keys.shape[0]
        is_new = np.zeros(n, bool)
        np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=is_new[1:])
        if self._groups is None:
            return np.cumsum(is_new, dtype=np.int64), np.array([0, n], np.int64)
        sorted_groups = self._groups[self.order]
        other_group = sorted_groups[1:] != sorted_groups[:-1]
        is_new[1:] |= other_group
        heads = np.append(0, np.flatnonzero(other_group) + 1)
        offsets = np.append(heads, n)
        ranks = np.cumsum(is_new, dtype=np.int64)
        return ranks - np.repeat(ranks[heads], np.diff(offsets)), offsets

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Dense ranks (n,) inside each group, from 0."""
        return self._runs[0]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """First row of each group, then n: (n_groups + 1,)."""
        return self._runs[1]

    @cached_property
    def _scaled(self) -> tuple[Floats | None, Floats | None, int]:
        """Return the weights of winners and of losers, and the exponent."""
        winner, loser = self._given
        if winner is None and isinstance(self._target, Survival):
            winner = self._target.events.astype(np.float64)
        weights = [None if w is None else w[self.order] for w in (winner, loser)]
        sizes = np.array([_sizes(w) for w in weights])
        exponents = sizes[:, 0]
        if (sizes[:, 0] - sizes[:, 1]).sum() > _WIDEST:
            weights, exponents = self._of_pairs(weights)
        first, second = (
            None if w is None else np.ldexp(w, -exponent)
            for w, exponent in zip(weights, exponents, strict=True)
        )
        return first, second, int(exponents.sum())

    def _of_pairs(
        self, weights: list[Floats | None]
    ) -> tuple[list[Floats | None], NDArray[np.int64]]:
        """Set the weights of rows without a pair to 0; return also the exponents of both roles.

        Over these powers of two, the weight of the heaviest pair is near 1.
        """
        both = np.array([np.ones(self.order.shape[0]) if w is None else w for w in weights])
        sizes = np.where(both > 0.0, np.frexp(both)[1].astype(np.int64), _NO_WEIGHT)
        in_pairs, heaviest = np.zeros(sizes.shape, bool), 2 * _NO_WEIGHT
        for positive, offsets in self._divisions():
            of_role = np.where([positive, ~positive], sizes, _NO_WEIGHT)
            largest = np.maximum.reduceat(of_role, offsets[:-1], axis=1)
            meet = (largest > _NO_WEIGHT).all(0)
            heaviest = max(heaviest, int(largest.sum(0)[meet].max(initial=2 * _NO_WEIGHT)))
            in_pairs |= (of_role > _NO_WEIGHT) & np.repeat(meet, np.diff(offsets))
        if not in_pairs.any():
            return [*np.zeros_like(both)], np.zeros(2, np.int64)
        largest = np.where(in_pairs, sizes, _NO_WEIGHT).max(1)
        return [*np.where(in_pairs, both, 0.0)], largest - (int(largest.sum()) - heaviest) // 2

    def without_scale(self) -> RankedRows:
        """Return rows of the same pairs with the scaled weights, whose exponent is 0."""
        rows = copy(self)
        rows.__dict__["_scaled"] = (*self._scaled[:2], 0)
        return rows

    @property
    def winner(self) -> Floats | None:
        """Weights (n,) of winners, over a power of two; None is 1.

        The product of the largest weights of both roles, or the weight of the heaviest pair, is
        near 1.
        """
        return self._scaled[0]

    @property
    def loser(self) -> Floats | None:
        """Weights (n,) of losers, over a power of two; None is 1."""
        return self._scaled[1]

    @property
    def exponent(self) -> int:
        """The weight of a pair is ``2**exponent`` times that of these weights."""
        return self._scaled[2]

    def plain(self) -> tuple[NDArray[Any], NDArray[np.bool_] | None] | None:
        """Return targets, or times and events, in the order of the caller.

        None if there are weights or groups, or if the kernel cannot read the targets as they are.
        """
        winner, loser = self._given
        if not (self._groups is None and winner is None and loser is None):
            return None
        target = self._target
        values, events = target if isinstance(target, Survival) else (target, None)
        readable = values.dtype in LABEL_DTYPES and values.flags.c_contiguous
        return (values, events) if readable and values.flags.aligned else None

    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays and the exponent as the compiled kernel takes them beside `offsets`."""
        return self.order, self.ranks, self.winner, self.loser, self.exponent

    def levels(self) -> Iterator[Level]:
        """Yield the levels that have pairs, from the highest bit down."""
        for positive, offsets in self._divisions():
            yield Level(positive, self._weights(positive), offsets)

    def _divisions(self) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64]]]:
        """Yield which rows are positive at a level, and its offsets."""
        differs = self.ranks[1:] ^ self.ranks[:-1]
        differs[self.offsets[1:-1] - 1] = _OTHER_GROUP
        inside = differs[differs < _OTHER_GROUP]
        n = self.order.shape[0]
        for bit in reversed(range(int(inside.max(initial=0)).bit_length())):
            if not ((inside >> bit) == 1).any():
                continue
            starts = np.flatnonzero(differs >> (bit + 1)) + 1
            offsets = np.concatenate(([0], starts, [n])).astype(np.int64)
            yield (self.ranks >> bit & 1).astype(bool), offsets

    def _weights(self, positive: NDArray[np.bool_]) -> Floats | None:
        if self.winner is None and self.loser is None:
            return None
        winner, loser = (1.0 if w is None else w for w in (self.winner, self.loser))
        return np.where(positive, winner, loser)


def _sizes(weights: Floats | None) -> tuple[int, int]:
    """Return the exponents of the largest weight and of the smallest one above 0."""
    if weights is None:
        return 0, 0
    largest = weights.max()
    smallest = weights.min(where=weights > 0.0, initial=largest)
    return math.frexp(largest)[1], math.frexp(smallest)[1]

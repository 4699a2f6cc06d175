"""How many batches an epoch has, and how many rows of each class every batch has.

This module computes numbers of rows only; the sampler chooses the rows.

>>> plan = plan_epoch(3, 97, batch_size=10, min_per_class=1)
>>> plan.n_batches, plan.n_small, plan.n_large  # the three rare rows are used eleven times
(11, 11, 97)
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch over all ranks.

    Attributes
    ----------
    n_batches : int
    n_small, n_large : int
        The number of places in all batches for rows of the smaller and of the larger class. With
        more places than rows, rows are repeated; with fewer, some are left out.
    fixed_share : bool
        Whether the same batches get one more row of both classes, so that the ratio is kept.
    """

    n_batches: int
    n_small: int
    n_large: int
    fixed_share: bool = False

    def small(self, i: int) -> tuple[int, int]:
        """Return the first place of the smaller class in batch `i`, and the first after it."""
        return self._before(self.n_small, i), self._before(self.n_small, i + 1)

    def large(self, i: int) -> tuple[int, int]:
        """Return the first place of the larger class in batch `i`, and the first after it."""
        if self.fixed_share:
            return self._before(self.n_large, i), self._before(self.n_large, i + 1)
        # Counted from the last batch. Rows that do not divide evenly go to the first batches in one
        # class and to the last ones in the other: a batch gets two such rows only if there are more
        # of them than batches, so no batch is larger than the mean size rounded up.
        i = self.n_batches - i
        begin = self.n_large - self._before(self.n_large, i)
        return begin, self.n_large - self._before(self.n_large, i - 1)

    def _before(self, n: int, i: int) -> int:
        """Return how many of `n` places are in the batches before `i`.

        Places that do not divide evenly go to the first batches.
        """
        each, left = divmod(n, self.n_batches)
        return i * each + min(i, left)


def plan_epoch(
    n_small: int,
    n_large: int,
    *,
    batch_size: int,
    min_per_class: int,
    quota: int | None = None,
    drop_last: bool = False,
    world_size: int = 1,
) -> EpochPlan:
    """Plan an epoch that uses each row of the larger class once, and the others as often as needed.

    Parameters
    ----------
    n_small, n_large : int
        The number of rows of the smaller and of the larger class.
    batch_size, min_per_class : int
        The largest size of a batch, and the smallest number of rows of a class in it; at most half
        of the former.
    quota : int, optional
        The fixed number of rows of the smaller class in a full batch. The larger class is then the
        one whose rows need more batches.
    drop_last : bool
        Use only full batches.
    world_size : int
        The number of batches is a multiple of it.

    Returns
    -------
    EpochPlan
        With no batches if there are too few rows for a full one.
    """

    def rounded(batches: float) -> int:
        rounds = batches / world_size
        return world_size * (math.floor(rounds) if drop_last else math.ceil(rounds))

    fixed_share = quota is not None
    if quota is None:
        n_batches = rounded((n_small + n_large) / batch_size)
        if n_small >= min_per_class * n_batches:
            return _each_row_once(n_small, n_large, n_batches, batch_size if drop_last else None)
        quota = min_per_class
        # Enough batches for every row of the smaller class.
        n_batches = rounded(max(n_large / (batch_size - quota), n_small / quota))
        wanted = quota * n_batches
    else:
        n_batches = rounded(n_large / (batch_size - quota))
        wanted = math.ceil(n_large * quota / (batch_size - quota))
    if drop_last:
        return EpochPlan(n_batches, quota * n_batches, (batch_size - quota) * n_batches)
    fewest = min_per_class * n_batches
    return EpochPlan(n_batches, max(wanted, fewest), max(n_large, fewest), fixed_share)


def _each_row_once(n_small: int, n_large: int, n_batches: int, full_size: int | None) -> EpochPlan:
    if full_size is None:
        return EpochPlan(n_batches, n_small, n_large)
    # Rows that do not fill a batch are left out of the larger class until both classes have the
    # same size, then out of both.
    left_out = n_small + n_large - n_batches * full_size
    of_large_alone = min(left_out, n_large - n_small)
    of_both = left_out - of_large_alone
    return EpochPlan(
        n_batches, n_small - of_both // 2, n_large - of_large_alone - (of_both + 1) // 2
    )

"""How many batches an epoch has, and how many rows of each class every batch has.

This module computes numbers of rows only; the sampler chooses the rows.

>>> small, large = plan_epoch(3, 97, batch_size=10, min_per_class=1)
>>> small.tolist()  # eleven batches, in which the three rare rows are used eleven times
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
>>> int(large[-1])
97
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def plan_epoch(
    n_small: int,
    n_large: int,
    *,
    batch_size: int,
    min_per_class: int,
    quota: int | None = None,
    drop_last: bool = False,
    world_size: int = 1,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
    small, large : (n_batches + 1,)
        Batch i takes the places from ``small[i]`` up to ``small[i + 1]`` of the smaller class, and
        those of `large` of the larger class. With more places than rows, rows are repeated; with
        fewer, some are left out. There are no batches if there are too few rows for a full one.
    """

    def rounded(batches: float) -> int:
        rounds = batches / world_size
        return world_size * (math.floor(rounds) if drop_last else math.ceil(rounds))

    fixed_share = quota is not None
    if quota is not None:
        n_batches = rounded(n_large / (batch_size - quota))
        wanted = math.ceil(n_large * quota / (batch_size - quota))
    else:
        n_batches = rounded((n_small + n_large) / batch_size)
        if n_small >= min_per_class * n_batches:
            if drop_last:
                # Rows that do not fill a batch are left out of the larger class until both classes
                # have the same size, then out of both.
                left_out = n_small + n_large - n_batches * batch_size
                of_both = max(0, left_out - (n_large - n_small))
                n_small -= of_both // 2
                n_large = n_batches * batch_size - n_small
            return _bounds(n_small, n_large, n_batches)
        quota = min_per_class
        # Enough batches for every row of the smaller class.
        n_batches = rounded(max(n_large / (batch_size - quota), n_small / quota))
        wanted = quota * n_batches
    if drop_last:
        return _bounds(quota * n_batches, (batch_size - quota) * n_batches, n_batches)
    fewest = min_per_class * n_batches
    return _bounds(max(wanted, fewest), max(n_large, fewest), n_batches, fixed_share)


def _bounds(
    n_small: int, n_large: int, n_batches: int, fixed_share: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the places of both classes among the batches, as evenly as possible.

    Places that do not divide evenly go to the first batches for the smaller class. For the larger
    class they go to the last batches, so that no batch is larger than the mean size rounded up. If
    the share is fixed, they go to the first batches for both, so that the ratio is kept.
    """
    i = np.arange(n_batches + 1)
    small, large = (
        i * (n // max(n_batches, 1)) + np.minimum(i, n % max(n_batches, 1))
        for n in (n_small, n_large)
    )
    return small, large if fixed_share else n_large - large[::-1]

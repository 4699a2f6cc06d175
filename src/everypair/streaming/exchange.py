"""The exchange between workers that each hold some of the rows, over any library's sum of arrays.

Only the rows of the smaller class travel. Each pair is then evaluated on the worker that has its
row of the larger class, and sums over these rows are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Workers:
    """The workers of a computation. All of them must call the same methods in the same order.

    Parameters
    ----------
    rank, size : int
        The number of this worker, from 0, and the number of workers.
    allreduce : callable
        Maps an array of numbers to the element-wise sum over all workers.

    Examples
    --------
    >>> alone = Workers(0, 1, lambda array: array)
    >>> alone.facts(3, 4)
    array([[3],
           [4]])
    >>> alone.smaller_class(
    ...     np.array([[0.5, 0.0, 1.0]]), np.array([True, False, False]), alone.facts(1, 2)
    ... )
    (True, array([[0.5]]))
    """

    def __init__(
        self, rank: int, size: int, allreduce: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> None:
        self.rank, self.size, self._allreduce = rank, size, allreduce

    def sum(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of an array, which has the same shape on all workers."""
        return self._allreduce(array) if array.size else array

    def gather(self, rows: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows (k, sizes[rank]) of all workers, joined: (k, sum(sizes))."""
        columns = np.zeros((rows.shape[0], int(sizes.sum())), rows.dtype)
        columns[:, self.own(sizes)] = rows
        return self.sum(columns)  # exact, because all other addends are zeros

    def own(self, sizes: NDArray[np.int64]) -> slice:
        """Return where the rows of this worker are among those of all workers."""
        start = int(sizes[: self.rank].sum())
        return slice(start, start + int(sizes[self.rank]))

    def facts(self, *numbers: int) -> NDArray[np.int64]:
        """Return k numbers of each worker, (k, workers)."""
        return self.gather(np.array(numbers, np.int64)[:, None], np.ones(self.size, np.int64))

    def smaller_class(
        self, rows: NDArray[Any], positive: NDArray[np.bool_], sizes: NDArray[np.int64]
    ) -> tuple[bool, NDArray[Any]]:
        """Return whether the positives are the smaller class, and its rows on all workers.

        `rows` (k, n) are those of this worker, of which some are `positive`; `sizes` (2, workers)
        are the numbers of positives and negatives of each worker.
        """
        n_pos, n_neg = sizes.sum(axis=1).tolist()
        is_positive = n_pos <= n_neg
        small = rows[:, positive == is_positive]
        return is_positive, self.gather(small, sizes[0 if is_positive else 1])

"""Recognise rows that a model was fitted on.

A model keeps the smallest hashes of its encoded rows (a bottom-k sketch). The rows of another table
with hashes in the same range are a random sample of it, and the share of them that the sketch holds
estimates the share of its rows that the model has seen, in any order and from any kind of file.

>>> X = np.arange(6.0).reshape(3, 2)
>>> SeenRows.of(X).share(np.append(X[::-1], [[9.0, 9.0]], axis=0))
0.75
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_HASHES = 512
_MOST_REPEATED = 0.1  # of the rows; tables with more have rows that are the same by chance
_LARGEST = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class SeenRows:
    """The smallest hashes of the rows that a model was fitted on, in ascending order."""

    hashes: tuple[int, ...] = ()

    @classmethod
    def of(cls, X: NDArray[Any]) -> SeenRows:
        """Return the sketch of encoded rows, (n, d); an empty one if many rows are the same."""
        found = np.unique(_hashes(X))
        few_differ = found.size < (1.0 - _MOST_REPEATED) * len(X)
        return cls() if few_differ else cls(tuple(found[:_MOST_HASHES].tolist()))

    def share(self, X: NDArray[Any]) -> float:
        """Estimate the share of the encoded rows, (n, d), that are among the seen ones."""
        if not self.hashes:
            return 0.0
        known, found = np.array(self.hashes, np.uint64), _hashes(X)
        limit = known[-1] if known.size == _MOST_HASHES else _LARGEST
        sample = found[found <= limit]
        return float(np.isin(sample, known).mean()) if sample.size else 0.0


def _hashes(X: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a hash for each row of an array, (n,): multiply and shift, as in SplitMix64."""
    words = (np.asarray(X, np.float32) + np.float32(0.0)).view(np.uint32)  # -0.0 becomes 0.0
    found = np.zeros(len(words), np.uint64)
    for column in words.T:
        found += column + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found

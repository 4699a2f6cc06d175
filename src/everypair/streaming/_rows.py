"""The rows of a stream: columns that grow, and their sorted form."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches, messages
from everypair.inputs.groups import group_runs, group_values
from everypair.kernel import choose, threads

GroupKey: TypeAlias = int | str

_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 << 10, 1 << 22  # rows
_PARALLEL_FROM = 1 << 22  # rows from which two threads are used


class Column:
    """Numbers that are appended in blocks, so that growing copies nothing.

    The dtype becomes that of the widest values. The unused end of a block is memory that was never
    written, so that the operating system does not provide it.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.size = 0
        self._blocks: list[NDArray[Any]] = []
        self._free = 0  # rows of the last block that hold no value yet

    def extend(self, values: NDArray[Any]) -> None:
        """Append values."""
        if values.dtype.itemsize > self.dtype.itemsize:
            self.dtype = values.dtype
            self._blocks = [block.astype(self.dtype) for block in self.blocks()]
            self._free = 0
        self.space(values.shape[0])[:] = values
        self.keep(values.shape[0])

    def space(self, n: int) -> NDArray[Any]:
        """Return memory for n more values. They count once `keep` is called."""
        if self._free < n:
            self._blocks = list(self.blocks())
            self._free = max(n, min(max(_SMALLEST_BLOCK, self.size), _LARGEST_BLOCK))
            self._blocks.append(np.empty(self._free, self.dtype))
        if n == 0:
            return np.empty(0, self.dtype)
        start = self._blocks[-1].shape[0] - self._free
        return self._blocks[-1][start : start + n]

    def keep(self, n: int) -> None:
        """Append the first n values of `space`."""
        self.size += n
        self._free -= n

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Return the values, block after block."""
        yield from self._blocks[:-1]
        if self._blocks:
            yield self._blocks[-1][: self._blocks[-1].shape[0] - self._free]

    def move_to(self, out: NDArray[Any]) -> None:
        """Copy all values to `out`, freeing each block at once, and keep them there."""
        blocks, start = list(self.blocks()), 0
        self._blocks, self._free = [], 0
        blocks.reverse()
        while blocks:
            block = blocks.pop()
            out[start : start + block.shape[0]] = block
            start += block.shape[0]
        if self.size:
            self._blocks = [out]


@dataclass(frozen=True)
class SortedRows:
    """All rows: positives first, each class by group, score and weight. `groups` are numbers."""

    scores: NDArray[Any]
    n_pos: int
    weights: NDArray[np.float64] | None = None
    groups: NDArray[np.int64] | None = None

    @property
    def labels(self) -> NDArray[np.bool_]:
        """Which rows are positive."""
        labels = np.zeros(self.scores.shape[0], bool)
        labels[: self.n_pos] = True
        return labels


class Rows:
    """The rows of both classes, unsorted or sorted."""

    def __init__(self, *, weighted: bool = False, grouped: bool = False) -> None:
        self.weighted, self.grouped = weighted, grouped
        self.group_keys: dict[GroupKey, int] = {}
        # Of the negatives, then of the positives.
        self.classes = [self._columns(), self._columns()]
        self._sorted: SortedRows | None = None
        self._buffer = np.empty(0, np.float32)

    def _columns(self) -> dict[str, Column]:
        columns = {"scores": Column(np.float32)}
        if self.weighted:
            columns["weights"] = Column(np.float64)
        if self.grouped:
            columns["groups"] = Column(np.int32)
        return columns

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of positives and negatives."""
        return self.classes[1]["scores"].size, self.classes[0]["scores"].size

    def add(self, positive: bool, **columns: NDArray[Any]) -> None:
        """Append rows of one class; groups are the numbers in `group_keys`."""
        self._sorted = None
        for name, column in self.classes[positive].items():
            column.extend(columns[name])

    def add_batch(self, batch: batches.Batch) -> None:
        """Check the values of a batch and append its rows, which have scores and labels only.

        The kernel writes rows of the larger class straight to their column. It needs room for the
        whole batch in both classes, so that those of the smaller class are copied from a buffer.
        """
        n_pos, n_neg = self.sizes
        pos_is_large = n_pos > n_neg
        large, n = self.classes[pos_is_large]["scores"], batch.scores.shape[0]
        if large.dtype != batch.scores.dtype:
            for positive, chosen in zip((True, False), choose.split_classes(batch), strict=True):
                self.add(positive, scores=chosen)
            return
        if self._buffer.shape[0] < n or self._buffer.dtype != batch.scores.dtype:
            self._buffer = np.empty_like(batch.scores)
        space, buffer = large.space(n), self._buffer[:n]
        out = (space, buffer) if pos_is_large else (buffer, space)
        pos, neg = choose.split_classes(batch, out)
        large.keep((pos if pos_is_large else neg).shape[0])
        self.add(not pos_is_large, scores=neg if pos_is_large else pos)

    def numbers_of(self, groups: ArrayLike, n: int) -> NDArray[np.int32]:
        """Check the groups of a part of n rows, and return their numbers among all rows, (n,)."""
        values = group_values(groups)
        if values.shape[0] != n:
            messages.raise_length("groups", values.shape[0], n)
        order, offsets = group_runs(values)
        order = np.arange(n) if order is None else order
        first = order[offsets[:-1]]
        keys = values[first].tolist()
        for i, key in zip(first.tolist(), keys, strict=True):
            if type(key) not in (int, str):
                raise ValueError(
                    f"groups must be integers or strings in a stream; got {key!r} at index {i}. "
                    "Convert them to strings."
                )
        numbers = np.empty(n, np.int32)
        numbers[order] = np.repeat(self.number_groups(keys), np.diff(offsets))
        return numbers

    def number_groups(self, keys: list[GroupKey]) -> NDArray[np.int32]:
        """Return the numbers of groups, new ones for those not seen before."""
        known = self.group_keys
        return np.array([known.setdefault(key, len(known)) for key in keys], np.int32)

    def merge(self, other: Rows) -> None:
        """Append all rows of another object with the same columns."""
        self._sorted = None
        numbers = self.number_groups(list(other.group_keys))
        for mine, theirs in zip(self.classes, other.classes, strict=True):
            for name, column in theirs.items():
                for block in column.blocks():
                    mine[name].extend(numbers[block] if name == "groups" else block)

    def swap_classes(self) -> None:
        """Exchange the positives and the negatives."""
        self._sorted = None
        self.classes.reverse()

    def sorted(self) -> SortedRows:
        """Sort the rows of each class in place and return all rows.

        Equal rows in any order give equal arrays, because the order is that of the values.
        """
        if self._sorted is None:
            self._renumber_groups()
            n_pos, n_neg = self.sizes
            columns = {}
            for name, dtype in self._dtypes().items():
                columns[name] = np.empty(n_pos + n_neg, dtype)
                self.classes[1][name].move_to(columns[name][:n_pos])
                self.classes[0][name].move_to(columns[name][n_pos:])
            for part in (slice(0, n_pos), slice(n_pos, None)):
                _sort({name: column[part] for name, column in columns.items()})
            groups = columns.get("groups")
            self._sorted = SortedRows(
                columns["scores"], n_pos, columns.get("weights"),
                None if groups is None else groups.astype(np.int64),
            )  # fmt: skip
        return self._sorted

    def _dtypes(self) -> dict[str, np.dtype[Any]]:
        negatives, positives = self.classes
        return {name: np.promote_types(positives[name].dtype, negatives[name].dtype)
                for name in negatives}  # fmt: skip

    def _renumber_groups(self) -> None:
        """Give groups numbers by their keys instead of by their first rows."""
        if not self.grouped:
            return
        keys = sorted(self.group_keys, key=lambda key: (isinstance(key, str), key))
        numbers = np.empty(len(keys), np.int32)
        numbers[[self.group_keys[key] for key in keys]] = np.arange(len(keys))
        self.group_keys = {key: i for i, key in enumerate(keys)}
        for columns in self.classes:
            for block in columns["groups"].blocks():
                block[:] = numbers[block]


def is_parallel(n: int) -> bool:
    """Return whether two threads are worth starting for this many rows."""
    return n >= _PARALLEL_FROM and threads.get_num_threads() > 1


def _sort(columns: dict[str, NDArray[Any]]) -> None:
    """Sort rows in place by group, score and weight."""
    scores = columns["scores"]
    if len(columns) > 1:
        keys = [columns[name] for name in ("weights", "scores", "groups") if name in columns]
        order = np.lexsort(keys)
        for column in columns.values():
            column[:] = column[order]
    elif not is_parallel(scores.shape[0]):
        scores.sort()
    else:
        middle = scores.shape[0] // 2
        scores.partition(middle)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(np.ndarray.sort, (scores[:middle], scores[middle:])))

"""The rows of a stream: columns that grow, and their sorted form."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches, convert, messages, pair_options, ranked, survival
from everypair.inputs.groups import group_runs, group_values, stable_order
from everypair.kernel import choose, threads

GroupKey: TypeAlias = int | str
DTYPES: dict[str, type] = {
    "scores": np.float32, "targets": np.float64, "weights": np.float64, "groups": np.int32
}  # fmt: skip
"""The columns of a stream. Scores become float64 if some of them are."""

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
            if self._blocks and self._free > self._blocks[-1].shape[0]:
                self._blocks[-1] = self._blocks[-1].copy()
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

    def values(self) -> NDArray[Any]:
        """Return a copy of all values."""
        return np.concatenate([np.empty(0, self.dtype), *self.blocks()])

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
    """All rows: positives first, each class by group, score and weight.

    Attributes
    ----------
    scores : (n,) float32 or float64
    n_pos : int
        Positive rows; 0 with `targets`, which have no classes.
    weights : (n,) float64 or None
    groups : (n,) int64 or None
        Numbers of groups.
    targets : (n,) float64 or None
        Ordered targets, or survival times, which are negative where they are censored.
    pairs, censoring : str
        Those of `pair_loss`.
    """

    scores: NDArray[Any]
    n_pos: int
    weights: NDArray[np.float64] | None = None
    groups: NDArray[np.int64] | None = None
    targets: NDArray[np.float64] | None = None
    pairs: str = "binary"
    censoring: str = "harrell"

    @property
    def labels(self) -> NDArray[Any]:
        """The labels that `pair_loss` takes: which rows are positive, or the targets."""
        if self.targets is not None:
            return self.targets
        return np.arange(self.scores.shape[0]) < self.n_pos

    @property
    def options(self) -> dict[str, Any]:
        """The weights, groups and kind of pairs, as arguments of `pair_loss` and `auc`."""
        return {"weights": self.weights, "groups": self.groups} | {
            "pairs": self.pairs, "censoring": self.censoring
        }  # fmt: skip

    @property
    def has_pairs(self) -> bool:
        """Whether there is a pair of positive weight."""
        if self.pairs == "binary" and self.groups is None:
            labels = self.labels if self.weights is None else self.labels[self.weights > 0.0]
            return bool(0 < np.count_nonzero(labels) < labels.shape[0])
        batch = batches.batch_from(self.scores, self.labels, **self.options)
        return choose.concordance(batch)[1] > 0.0

    def parts(self, groups: NDArray[np.int64], n_groups: int) -> Iterator[SortedRows]:
        """Yield the rows of each group; `groups` are those of the rows, numbered from 0."""
        order = np.argsort(groups, kind="stable")  # the positives of a group stay first
        ends = np.searchsorted(groups[order], np.arange(n_groups), side="right")
        for rows in np.split(order, ends[:-1]):
            yield SortedRows(
                self.scores[rows], int(np.searchsorted(rows, self.n_pos)),
                None if self.weights is None else self.weights[rows], None,
                None if self.targets is None else self.targets[rows], self.pairs, self.censoring,
            )  # fmt: skip


class Rows:
    """The rows of a stream, unsorted or sorted: a table of columns for each class.

    The tables are those of the negatives and of the positives. Ordered targets and survival times
    have no classes: their rows are in one table, with a column "targets". The first rows decide
    whether there are weights and groups; before them there is no table.
    """

    def __init__(self, pairs: str = "binary", censoring: str = "harrell") -> None:
        pair_options.check_pairs(pairs, censoring)
        self.pairs, self.censoring = pairs, censoring
        self.tables: list[dict[str, Column]] = []
        self.group_keys: dict[GroupKey, int] = {}
        self._sorted: SortedRows | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of positives and negatives; without classes, 0 and the number of rows."""
        sizes = [table["scores"].size for table in self.tables] or [0]
        return (0 if len(sizes) == 1 else sizes[1]), sizes[0]

    def add(
        self,
        scores: ArrayLike,
        labels: Any,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> None:
        """Check rows and append them."""
        columns: dict[str, NDArray[Any]] = {}
        if self.pairs == "ordered":
            labels = columns["targets"] = convert.to_float64(ranked.target_from(labels), "labels")
        elif self.pairs == "survival":
            times, events = survival.survival_from(labels)
            labels = columns["targets"] = np.copysign(times, np.where(events, 1.0, -1.0))
        batch = batches.batch_from(scores, labels, weights)
        if not columns and weights is None and groups is None:
            self._add_scores(batch)
            return
        if columns:
            batches.check_values(batch)
            classes = [np.ones(batch.scores.shape, bool)]
        else:
            positive = batches.positives(batch)
            classes = [~positive, positive]
        tables = self.tables_with(weights is not None, groups is not None)
        columns["scores"] = batch.scores
        if batch.weights is not None:
            columns["weights"] = batch.weights
        if groups is not None:
            columns["groups"] = self._numbers_of(groups, batch.scores.shape[0])
        for table, chosen in zip(tables, classes, strict=True):
            for name, column in table.items():
                column.extend(columns[name][chosen])

    def tables_with(self, weighted: bool, grouped: bool) -> list[dict[str, Column]]:
        """Return the tables to append to. All rows must have the same columns as the first ones."""
        optional = {"targets": self.pairs != "binary", "weights": weighted, "groups": grouped}
        names = [name for name in DTYPES if optional.get(name, True)]
        if not self.tables:
            n_tables = 2 if self.pairs == "binary" else 1
            self.tables = [{name: Column(DTYPES[name]) for name in names} for _ in range(n_tables)]
        for name in ("weights", "groups"):
            if (name in names) != (name in self.tables[0]):
                raise ValueError(
                    f"{name} must be given for all parts or for none; this part has "
                    f"{name if name in names else f'no {name}'}, unlike those before it. Give all "
                    f"rows a {'weight of 1' if name == 'weights' else 'group'}, or leave {name} "
                    "out."
                )
        self._sorted = None
        return self.tables

    def _add_scores(self, batch: batches.Batch) -> None:
        """Check the values of a batch and append its rows, which have scores and labels only.

        The kernel writes them straight to their columns, each with room for the whole batch.
        """
        tables = self.tables_with(False, False)[::-1]
        columns, dtype, n = [t["scores"] for t in tables], batch.scores.dtype, batch.scores.shape[0]
        if any(column.dtype != dtype for column in columns):
            for column, scores in zip(columns, choose.split_classes(batch), strict=True):
                column.extend(scores)
            return
        parts = choose.split_classes(batch, (columns[0].space(n), columns[1].space(n)))
        for column, scores in zip(columns, parts, strict=True):
            column.keep(scores.shape[0])

    def _numbers_of(self, groups: ArrayLike, n: int) -> NDArray[np.int32]:
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
        numbers = self.group_keys
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32)

    def merge(self, other: Rows) -> None:
        """Append all rows of another object."""
        kinds = [(rows.pairs, rows.censoring) for rows in (self, other)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"pairs and censoring must be equal to be merged; got {kinds[0]} and {kinds[1]}. "
                "Make both accumulators with the same arguments."
            )
        if not other.tables:
            return
        names = other.tables[0]
        tables = self.tables_with("weights" in names, "groups" in names)
        numbers = self.number_groups(list(other.group_keys))
        for table, other_table in zip(tables, other.tables, strict=True):
            for name, column in other_table.items():
                for block in column.blocks():
                    table[name].extend(numbers[block] if name == "groups" else block)

    def swap_classes(self) -> None:
        """Exchange the positives and the negatives."""
        self._sorted = None
        self.tables.reverse()

    def sorted(self) -> SortedRows:
        """Sort the rows of each class in place and return all rows.

        Equal rows in any order give equal arrays, because the order is that of the values.
        """
        if not self.tables:
            raise ValueError("there must be rows of both classes; none was added. Call add first.")
        if self._sorted is None:
            self._renumber_groups()
            n_pos, n_neg = self.sizes
            columns = {}
            for name in self.tables[0]:
                dtype = np.result_type(*(table[name].dtype for table in self.tables))
                columns[name] = np.empty(n_pos + n_neg, dtype)
                self.tables[0][name].move_to(columns[name][n_pos:])
                if n_pos:
                    self.tables[1][name].move_to(columns[name][:n_pos])
            for part in (slice(0, n_pos), slice(n_pos, None)):
                _sort({name: column[part] for name, column in columns.items()})
            groups = columns.get("groups")
            self._sorted = SortedRows(
                columns["scores"], n_pos, columns.get("weights"),
                None if groups is None else groups.astype(np.int64), columns.get("targets"),
                self.pairs, self.censoring,
            )  # fmt: skip
        return self._sorted

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return all rows, as values that JSON can hold and arrays."""
        plain: dict[str, Any] = {}
        if self.pairs != "binary":
            plain |= {"pairs": self.pairs, "censoring": self.censoring}
        if self.tables:
            names, keys = self.tables[0], list(self.group_keys)
            plain |= {"weighted": "weights" in names, "grouped": "groups" in names, "keys": keys}
        return plain, {
            f"{name}_{i}": column.values()
            for i, table in enumerate(self.tables)
            for name, column in table.items()
        }

    def restore(self, plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Append what `state` returned."""
        if not arrays:
            return
        self.number_groups(plain["keys"])
        for i, table in enumerate(self.tables_with(plain["weighted"], plain["grouped"])):
            for name, column in table.items():
                column.extend(arrays[f"{name}_{i}"])

    def _renumber_groups(self) -> None:
        """Give groups numbers by their keys instead of by their first rows."""
        if not self.group_keys:
            return
        keys = sorted(self.group_keys, key=lambda key: (isinstance(key, str), key))
        numbers = np.empty(len(keys), np.int32)
        numbers[[self.group_keys[key] for key in keys]] = np.arange(len(keys))
        self.group_keys = {key: i for i, key in enumerate(keys)}
        for table in self.tables:
            for block in table["groups"].blocks():
                block[:] = numbers[block]


def is_parallel(n: int) -> bool:
    """Return whether two threads are worth starting for this many rows."""
    return n >= _PARALLEL_FROM and threads.get_num_threads() > 1


def _sort(columns: dict[str, NDArray[Any]]) -> None:
    """Sort rows in place by group, score, target and weight."""
    scores = columns["scores"]
    if len(columns) > 1:
        keys = dict(columns)
        if "targets" in keys:
            keys["targets"] = keys["targets"].view(np.int64)  # tells -0.0 from 0.0
        order = np.argsort(scores)
        if "groups" in keys and order.size:
            order = order[stable_order(keys["groups"][order])]
        # Sorting by all keys is slow, and only rows of equal scores need it.
        tied = np.zeros(order.shape[0] + 1, bool)
        tied[1:-1] = scores[order[1:]] == scores[order[:-1]]
        places = np.flatnonzero(tied[1:] | tied[:-1])
        rows = order[places]
        names = ("weights", "targets", "scores", "groups")
        order[places] = rows[np.lexsort([keys[name][rows] for name in names if name in keys])]
        for column in columns.values():
            column[:] = column[order]
    elif not is_parallel(scores.shape[0]):
        scores.sort()
    else:
        middle = scores.shape[0] // 2
        scores.partition(middle)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(np.ndarray.sort, (scores[:middle], scores[middle:])))

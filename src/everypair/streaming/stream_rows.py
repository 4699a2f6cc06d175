"""The rows of a stream: columns that grow, and their sorted form."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair.inputs import batches, convert, messages, pair_options, ranked, survival
from everypair.inputs.groups import group_runs, group_values, stable_order
from everypair.kernel import choose, threads
from everypair.streaming import checkpoint

GroupKey: TypeAlias = int | str
Blocks: TypeAlias = dict[str, list[NDArray[Any]]]  # of each column
DTYPES: dict[str, type] = {
    "scores": np.float32, "targets": np.float64, "weights": np.float64, "groups": np.int32
}  # fmt: skip
"""The columns of a stream. Scores become float64 if some of them are."""

_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 << 10, 1 << 22  # rows
_PARALLEL_FROM = 1 << 22  # rows from which two threads are used


class Column:
    """Numbers that are appended in blocks, so that growing copies nothing.

    The unused end of the last block is memory that was never written, so that the operating system
    does not provide it.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.size = np.dtype(dtype), 0
        self._full: list[NDArray[Any]] = []
        self._last, self._used = np.empty(0, dtype), 0  # the block that has space, and its rows

    def widen(self, dtype: np.dtype[Any]) -> None:
        """Convert the values if this type is wider."""
        if dtype.itemsize > self.dtype.itemsize:
            self.dtype, self._full = dtype, [block.astype(dtype) for block in self.blocks()]
            self._last, self._used = np.empty(0, dtype), 0

    def extend(self, values: NDArray[Any]) -> None:
        """Append values."""
        if values.dtype is not self.dtype:
            self.widen(values.dtype)
        self.space(values.shape[0])[:] = values
        self.keep(values.shape[0])

    def space(self, n: int) -> NDArray[Any]:
        """Return memory for n more values. They count once `keep` is called."""
        if self._last.shape[0] - self._used < n:
            if self._used:
                block, is_small = self._last[: self._used], 2 * self._used < self._last.shape[0]
                self._full.append(block.copy() if is_small else block)
            size = max(n, min(max(_SMALLEST_BLOCK, self.size), _LARGEST_BLOCK))
            self._last, self._used = np.empty(size, self.dtype), 0
        return self._last[self._used : self._used + n]

    def keep(self, n: int) -> None:
        """Append the first n values of `space`."""
        self.size += n
        self._used += n

    def blocks(self) -> list[NDArray[Any]]:
        """Return the values, block after block."""
        return [*self._full, self._last[: self._used]]

    def values(self) -> NDArray[Any]:
        """Return a copy of all values."""
        return np.concatenate(self.blocks())

    def move_to(self, out: NDArray[Any]) -> None:
        """Copy all values to `out`, freeing each block at once, and keep them there."""
        blocks, start = self.blocks()[::-1], 0
        self._full, self._last, self._used = [out], np.empty(0, out.dtype), 0
        while blocks:
            block = blocks.pop()
            out[start : start + block.shape[0]] = block
            start += block.shape[0]


@dataclass(frozen=True)
class SortedRows:
    """All rows: positives first, each class by group, score and weight.

    Attributes
    ----------
    scores : (n,) float32 or float64
    n_pos : int
        Positive rows; 0 with `targets`, which have no classes.
    weights : (n,) float64 or None
    groups : (n,) int32 or None
        Numbers of groups.
    targets : (n,) float64 or None
        Ordered targets, or survival times, which are negative where they are censored.
    pairs, censoring : str
        Those of `pair_loss`.
    """

    scores: NDArray[Any]
    n_pos: int
    weights: NDArray[np.float64] | None = None
    groups: NDArray[np.int32] | None = None
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
        names = ("weights", "groups", "pairs", "censoring")
        return {name: getattr(self, name) for name in names}

    @property
    def has_pairs(self) -> bool:
        """Whether there is a pair of positive weight."""
        if self.pairs == "binary" and self.groups is None:
            labels = self.labels if self.weights is None else self.labels[self.weights > 0.0]
            return bool(0 < np.count_nonzero(labels) < labels.shape[0])
        batch = batches.batch_from(self.scores, self.labels, **self.options)
        return choose.concordance(batch)[1] > 0.0

    def by_group(self, groups: NDArray[np.int32], n_groups: int) -> Iterator[SortedRows]:
        """Yield the rows of each group; `groups` are those of the rows, numbered from 0."""
        order = np.argsort(groups, kind="stable")  # the positives of a group stay first
        ends = np.searchsorted(groups[order], np.arange(n_groups), side="right")
        for rows in np.split(order, ends[:-1]):
            weights, targets = (
                None if column is None else column[rows] for column in (self.weights, self.targets)
            )
            yield replace(
                self, scores=self.scores[rows], n_pos=int(np.searchsorted(rows, self.n_pos)),
                weights=weights, groups=None, targets=targets,
            )  # fmt: skip


class Rows:
    """The rows of a stream, unsorted or sorted: a table of columns for each class.

    The tables are those of the negatives and of the positives. Ordered targets and survival times
    have no classes: their rows are in one table, with a column "targets". The first rows decide
    whether there are weights and groups.
    """

    def __init__(self, pairs: str = "binary", censoring: str = "harrell") -> None:
        pair_options.check_pairs(pairs, censoring)
        self.pairs, self.censoring = pairs, censoring
        names, n_tables = (["scores"], 2) if pairs == "binary" else (["scores", "targets"], 1)
        self.tables = [{name: Column(DTYPES[name]) for name in names} for _ in range(n_tables)]
        self.group_keys: dict[GroupKey, int] = {}
        self._sorted: SortedRows | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of positives and negatives; without classes, 0 and the number of rows."""
        n_neg, *n_pos = (table["scores"].size for table in self.tables)
        return sum(n_pos), n_neg

    def add(self, scores: ArrayLike, labels: Any, weights: Any, groups: Any) -> None:
        """Check rows and append them."""
        columns: dict[str, NDArray[Any]] = {}
        keys: list[GroupKey] = []
        if self.pairs == "ordered":
            labels = columns["targets"] = convert.to_float64(ranked.target_from(labels), "labels")
        elif self.pairs == "survival":
            times, events = survival.survival_from(labels)
            labels = columns["targets"] = np.copysign(times, np.where(events, 1.0, -1.0))
        batch = batches.batch_from(scores, labels, weights)
        if not columns and weights is None and groups is None:
            self._add_scores(batch)
            return
        classes: list[Any] = [slice(None)]
        if columns:
            batches.check_values(batch)
        else:
            positive = batches.positives(batch)
            classes = [~positive, positive]
        columns["scores"] = batch.scores
        if batch.weights is not None:
            columns["weights"] = batch.weights
        if groups is not None:
            keys, columns["groups"] = _numbered(groups, batch.scores.shape[0])
        self._append([{name: [x[rows]] for name, x in columns.items()} for rows in classes], keys)

    def _add_scores(self, batch: batches.Batch) -> None:
        """Check the values of a batch and append its rows, which have scores and labels only.

        The kernel writes them straight to their columns, each with room for the whole batch.
        """
        neg, pos = (table["scores"] for table in self._tables_with(["scores"]))
        neg.widen(batch.scores.dtype)
        pos.widen(batch.scores.dtype)
        batch.scores, n = batch.scores.astype(pos.dtype, copy=False), batch.scores.shape[0]
        of_pos, of_neg = choose.split_classes(batch, (pos.space(n), neg.space(n)))
        pos.keep(of_pos.shape[0])
        neg.keep(of_neg.shape[0])

    def _append(self, parts: list[Blocks], keys: Sequence[GroupKey]) -> None:
        """Append checked blocks to each table; their groups are numbers of these keys."""
        tables, group_keys = self._tables_with(parts[0]), self.group_keys
        numbers = np.array([group_keys.setdefault(key, len(group_keys)) for key in keys], np.int32)
        for table, part in zip(tables, parts, strict=True):
            for name, blocks in part.items():
                for block in blocks:
                    table[name].extend(numbers[block] if name == "groups" else block)

    def _tables_with(self, names: Collection[str]) -> list[dict[str, Column]]:
        """Return the tables to append to. All rows must have the same columns as the first ones."""
        if self.tables[0].keys() != set(names):
            for name in ("weights", "groups"):
                if any(self.sizes) and (name in names) != (name in self.tables[0]):
                    raise ValueError(
                        f"{name} must be given for all parts or for none; this part has "
                        f"{name if name in names else f'no {name}'}, unlike those before it. Give "
                        f"all rows a {'weight of 1' if name == 'weights' else 'group'}, or leave "
                        f"{name} out."
                    )
            dtypes = {name: dtype for name, dtype in DTYPES.items() if name in names}
            self.tables = [{x: Column(dtype) for x, dtype in dtypes.items()} for _ in self.tables]
        self._sorted = None
        return self.tables

    def merge(self, other: Rows) -> None:
        """Append all rows of another object."""
        kinds = [(rows.pairs, rows.censoring) for rows in (self, other)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"pairs and censoring must be equal to be merged; got {kinds[0]} and {kinds[1]}. "
                "Make both accumulators with the same arguments."
            )
        if any(other.sizes):
            parts = [{name: x.blocks() for name, x in table.items()} for table in other.tables]
            self._append(parts, list(other.group_keys))

    def swap_classes(self) -> None:
        """Exchange the positives and the negatives."""
        self._sorted = None
        self.tables.reverse()

    def sorted(self) -> SortedRows:
        """Sort the rows of each class in place and return all rows.

        Equal rows in any order give equal arrays, because the order is that of the values.
        """
        if self._sorted is None:
            n_pos, n_neg = self.sizes
            columns = {
                name: np.empty(n_pos + n_neg, column.dtype)
                for name, column in self.tables[0].items()
            }
            parts = [
                {name: x[rows] for name, x in columns.items()}
                for rows in (slice(n_pos, None), slice(n_pos))
            ]
            for table, part in zip(self.tables, parts, strict=False):
                for name, column in part.items():
                    table[name].move_to(column)
            if "groups" in columns:  # number them by their keys instead of by their first rows
                keys = sorted(self.group_keys, key=lambda key: (isinstance(key, str), key))
                order = np.array([self.group_keys[key] for key in keys])
                columns["groups"][:] = np.argsort(order)[columns["groups"]]
                self.group_keys = {key: i for i, key in enumerate(keys)}
            for part in parts:
                _sort(part)
            self._sorted = SortedRows(
                n_pos=n_pos, pairs=self.pairs, censoring=self.censoring, **columns
            )
        return self._sorted

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return all rows, as values that JSON can hold and arrays."""
        keys = list(self.group_keys)
        plain = {"pairs": self.pairs, "censoring": self.censoring, "keys": keys}
        return plain, {
            f"{name}_{i}": column.values()
            for i, table in enumerate(self.tables)
            for name, column in table.items()
        }

    def restore(self, plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Check and append what `state` returned."""
        keys, names = plain["keys"], [name for name in DTYPES if f"{name}_0" in arrays]
        if len(set(keys)) < len(keys) or not {type(key) for key in keys} <= {int, str}:
            raise ValueError("its groups are not different integers or strings")
        n_tables = len(self.tables)
        parts = [{name: [arrays[f"{name}_{i}"]] for name in names} for i in range(n_tables)]
        if len(arrays) > len(names) * n_tables or ("targets" in names) != (n_tables == 1):
            raise ValueError(f"its arrays are {', '.join(arrays)}")
        ranges = {"weights": (0.0,), "groups": (0, len(keys) - 1)}
        for part in parts:
            for name, (column,) in part.items():
                shape, dtypes = (part["scores"][0].size,), (DTYPES[name], np.float64)
                checkpoint.require(name, column, dtypes, shape, *ranges.get(name, ()))
        self._append(parts, keys if "groups" in names else [])


def _numbered(groups: ArrayLike, n: int) -> tuple[list[GroupKey], NDArray[np.int64]]:
    """Check the groups of n rows; return the different ones and the number of each row's, (n,)."""
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
    numbers = np.empty(n, np.int64)
    numbers[order] = np.repeat(np.arange(len(keys)), np.diff(offsets))
    return keys, numbers


def is_parallel(n: int) -> bool:
    """Return whether two threads are worth starting for this many rows."""
    return n >= _PARALLEL_FROM and threads.get_num_threads() > 1


def _sort(columns: dict[str, NDArray[Any]]) -> None:
    """Sort rows in place by group, score, target and weight."""
    scores = columns["scores"]
    if len(columns) > 1:
        names = [name for name in ("weights", "targets", "scores", "groups") if name in columns]
        # The bits of targets tell -0.0, a censored time, from 0.0.
        keys = [columns[x].view(np.int64) if x == "targets" else columns[x] for x in names]
        order = np.argsort(scores)
        if "groups" in names and order.size:
            order = order[stable_order(columns["groups"][order])]
        # Sorting by all keys is slow, and only rows of equal scores need it.
        tied = np.zeros(order.shape[0] + 1, bool)
        tied[1:-1] = scores[order[1:]] == scores[order[:-1]]
        places = np.flatnonzero(tied[1:] | tied[:-1])
        rows = order[places]
        order[places] = rows[np.lexsort([key[rows] for key in keys])]
        for column in columns.values():
            column[:] = column[order]
    elif is_parallel(scores.shape[0]):
        middle = scores.shape[0] // 2
        scores.partition(middle)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(np.ndarray.sort, (scores[:middle], scores[middle:])))
    else:
        scores.sort()

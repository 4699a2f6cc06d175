"""Losses and metrics of Dask collections, on any Dask cluster.

Accumulators and counts of partitions are combined in trees. Tasks return new objects and change
none of their inputs. If a worker is lost, Dask computes its tasks again, and the result is the
same.

>>> import dask.array as da
>>> from everypair.dask import evaluate
>>> scores = da.from_array([0.5, 2.0, 0.0, 1.0], chunks=2)
>>> labels = da.from_array([1, 1, 0, 0], chunks=2)
>>> evaluate(scores, labels).auc
0.75
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal

try:
    from dask.base import compute
    from dask.delayed import delayed
except ImportError as error:
    raise ImportError(
        "everypair.dask needs Dask. Install it with: pip install '.[dask]'"
    ) from error

import numpy as np
from numpy.typing import NDArray

from everypair.streaming import MajorityCounts, PairAccumulator, StreamResult, Totals
from everypair.streaming.two_passes import split_chunk

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from everypair.streaming.results import ResultOptions

__all__ = ["accumulate", "evaluate"]


def accumulate(
    scores: Any,
    labels: Any,
    *,
    weights: Any = None,
    groups: Any = None,
    mode: Literal["exact", "bounded"] = "exact",
    bits: int = 18,
    split_every: int = 8,
) -> Any:
    """Collect the rows of a Dask collection in one `PairAccumulator`.

    Parameters
    ----------
    scores, labels, weights, groups
        Dask Arrays of shape (n,) or (n, 1), or Series of one Dask DataFrame, for the arguments of
        `PairAccumulator.add`.
    mode, bits
        Those of `PairAccumulator`. With "exact" the rows of all partitions go to one worker: 4
        bytes a row. With "bounded" each step sends a table of buckets.
    split_every : int
        How many accumulators one task merges.

    Returns
    -------
    dask.delayed.Delayed
        Its ``compute()`` returns the accumulator.
    """

    def merged(parts: list[Any]) -> PairAccumulator:
        rows = PairAccumulator(mode=mode, bits=bits)
        for part in parts:
            if isinstance(part, PairAccumulator):
                rows.merge(part)
            else:
                rows.add(**_columns(part))
        return rows

    parts = _partitions(scores, labels, weights, groups)
    return _tree([delayed(merged, pure=False)([part]) for part in parts], merged, split_every)


def evaluate(
    scores: Any,
    labels: Any,
    *,
    mode: Literal["exact", "bounded"] = "exact",
    bits: int = 18,
    rare: Literal["positive", "negative"] = "positive",
    split_every: int = 8,
    **options: Unpack[ResultOptions],
) -> StreamResult:
    """Compute the losses and metrics of all rows of a Dask collection.

    With "exact", only one class travels: its scores are gathered and sent to all workers, which
    count the rows of the other class between them; the counts are added in a tree. With "bounded"
    a table of buckets is added in a tree. For weights and groups, use `accumulate`.

    Parameters
    ----------
    scores, labels
        Dask Arrays of shape (n,) or (n, 1), or Series of one Dask DataFrame.
    mode, bits
        Those of `PairAccumulator`.
    rare : {"positive", "negative"}
        The class that travels, with "exact". The result does not depend on it.
    split_every : int
        How many partial results one task adds.
    **options
        Those of `PairAccumulator.result`: `surrogates`, `margin`, `max_fpr`, `min_tpr` and
        `confidence`.

    Returns
    -------
    StreamResult

    Raises
    ------
    ValueError
        If a class has no rows, or an argument is not as described.
    """
    if mode == "bounded":
        table = accumulate(scores, labels, mode=mode, bits=bits, split_every=split_every).compute()
        bounded: StreamResult = table.result(**options)
        return bounded
    if mode != "exact" or rare not in ("positive", "negative"):
        raise ValueError(
            "mode must be 'exact' or 'bounded', and rare 'positive' or 'negative'; got "
            f"{mode!r} and {rare!r}."
        )
    is_positive = rare == "positive"

    def rare_scores(part: Any) -> NDArray[Any]:
        return np.sort(split_chunk(**_columns(part), positive=is_positive)[0])

    def joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
        return np.sort(np.concatenate(parts))

    def counted(part: Any, minority: NDArray[Any]) -> Totals:
        counts = MajorityCounts(minority, positive=is_positive, **options)
        counts.add(split_chunk(**_columns(part), positive=is_positive)[1])
        return counts.totals()

    parts = _partitions(scores, labels)
    collect, count = delayed(rare_scores, pure=False), delayed(counted, pure=False)
    minority = _tree([collect(part) for part in parts], joined, split_every)
    totals = _tree([count(part, minority) for part in parts], partial(reduce, add), split_every)
    smaller, total = compute(minority, totals)  # type: ignore[no-untyped-call]
    counts = MajorityCounts(smaller, positive=is_positive, **options)
    counts.sums = total
    return counts.result()


def _partitions(scores: Any, labels: Any, weights: Any = None, groups: Any = None) -> list[Any]:
    """Return one delayed table of columns for each partition."""
    arguments = {"scores": scores, "labels": labels, "weights": weights, "groups": groups}
    columns = {name: column for name, column in arguments.items() if column is not None}
    if hasattr(scores, "chunks"):
        whole = [_rechunked(column, scores) for column in columns.values()]
        parts = [column.to_delayed().ravel() for column in whole]
        if len({len(part) for part in parts}) > 1:
            raise ValueError(
                "scores, labels, weights and groups must have the same chunks. Compute the lengths "
                "of unknown chunks first: labels.compute_chunk_sizes()."
            )
        return [dict(zip(columns, part, strict=True)) for part in zip(*parts, strict=True)]
    if not hasattr(scores, "to_delayed"):
        raise ValueError(
            f"scores must be a Dask Array or Series; got {type(scores).__name__}. Use "
            "PairAccumulator for arrays in memory."
        )
    # One frame, so that columns of one source are read together.
    frame = columns.pop("scores").to_frame(name="scores")
    return list(frame.assign(**columns).to_delayed())


def _rechunked(column: Any, like: Any) -> Any:
    rows = like.chunks[0]
    is_known = not any(size != size for size in (*rows, *column.chunks[0]))
    return column.rechunk({0: rows}) if is_known and column.chunks[0] != rows else column


def _columns(part: Any) -> dict[str, Any]:
    """Return the columns of a partition as arrays."""
    return part if isinstance(part, dict) else {name: part[name].to_numpy() for name in part}


def _tree(parts: list[Any], combine: Callable[[list[Any]], Any], split_every: int) -> Any:
    """Combine delayed values, at most `split_every` at a time."""
    if split_every < 2:
        raise ValueError(f"split_every must be at least 2; got {split_every!r}. 8 is usual.")
    task = delayed(combine, pure=False)
    while len(parts) > 1:
        parts = [task(parts[i : i + split_every]) for i in range(0, len(parts), split_every)]
    return parts[0]

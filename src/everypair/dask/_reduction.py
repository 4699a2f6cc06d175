"""Tree reductions of accumulators over the partitions of Dask collections.

Tasks return new objects and change none of their inputs. If a worker is lost, Dask computes its
tasks again, and the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import NDArray

from everypair.inputs import batches, binary
from everypair.streaming import MajorityCounts, PairAccumulator, StreamResult, Totals
from everypair.streaming._result import Surrogates

_T = TypeVar("_T")


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
    add = delayed(_accumulated, pure=False)
    parts = [add(part, mode, bits) for part in _partitions(scores, labels, weights, groups)]
    return _tree(parts, _merged, split_every)


def evaluate(
    scores: Any,
    labels: Any,
    *,
    mode: Literal["exact", "bounded"] = "exact",
    bits: int = 18,
    rare: Literal["positive", "negative"] = "positive",
    surrogates: Surrogates = "squared_hinge",
    margin: float | None = None,
    max_fpr: float | None = None,
    min_tpr: float | None = None,
    confidence: float = 0.95,
    split_every: int = 8,
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
    surrogates, margin, max_fpr, min_tpr, confidence
        Those of `PairAccumulator.result`.
    split_every : int
        How many partial results one task adds.

    Returns
    -------
    StreamResult

    Raises
    ------
    ValueError
        If a class has no rows, or an argument is not as described.
    """
    rates: dict[str, Any] = {"max_fpr": max_fpr, "min_tpr": min_tpr, "confidence": confidence}
    if mode == "bounded":
        table = accumulate(
            scores, labels, mode="bounded", bits=bits, split_every=split_every
        ).compute()
        found: StreamResult = table.result(surrogates, margin=margin, **rates)
        return found
    if mode != "exact" or rare not in ("positive", "negative"):
        raise ValueError(
            "mode must be 'exact' or 'bounded', and rare 'positive' or 'negative'; got "
            f"{mode!r} and {rare!r}."
        )
    is_positive = rare == "positive"
    parts = _partitions(scores, labels)
    of_class = delayed(_scores_of, pure=False)
    minority = _tree([of_class(part, is_positive) for part in parts], _joined, split_every)
    count = delayed(_counted, pure=False)
    totals = _tree(
        [count(part, minority, is_positive, surrogates, margin) for part in parts],
        _added,
        split_every,
    )
    smaller, total = compute(minority, totals)  # type: ignore[no-untyped-call]
    if smaller.shape[0] == 0:
        binary.raise_no_pairs(np.full(total.n_rows, not is_positive), None, "evaluate")
    counts = MajorityCounts(smaller, positive=is_positive, surrogates=surrogates, margin=margin)
    counts.add_totals(total)
    return counts.result(**rates)


def _partitions(scores: Any, labels: Any, weights: Any = None, groups: Any = None) -> list[Any]:
    """Return one delayed tuple of arrays for each partition."""
    given = {"scores": scores, "labels": labels, "weights": weights, "groups": groups}
    columns = {name: column for name, column in given.items() if column is not None}
    if hasattr(scores, "chunks"):
        whole = {name: _rechunked(column, scores) for name, column in columns.items()}
        parts = [column.to_delayed().ravel() for column in whole.values()]
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
    first, *others = columns.items()
    frame = first[1].to_frame(name=first[0])
    frame = frame.assign(**dict(others))
    return list(frame.to_delayed())


def _rechunked(column: Any, like: Any) -> Any:
    rows = like.chunks[0]
    is_known = not any(size != size for size in (*rows, *column.chunks[0]))
    return column.rechunk({0: rows}) if is_known and column.chunks[0] != rows else column


def _columns(part: Any) -> dict[str, Any]:
    """Return the columns of a partition as arrays."""
    if isinstance(part, dict):
        return part
    return {name: part[name].to_numpy() for name in part.columns}


def _accumulated(part: Any, mode: Literal["exact", "bounded"], bits: int) -> PairAccumulator:
    found = PairAccumulator(mode=mode, bits=bits)
    found.add(**_columns(part))
    return found


def _merged(parts: list[PairAccumulator]) -> PairAccumulator:
    plain, _ = parts[0].state()
    found = PairAccumulator(mode=parts[0].mode, bits=plain.get("bits", 18))
    for part in parts:
        found.merge(part)
    return found


def _scores_of(part: Any, positive: bool) -> NDArray[Any]:
    """Return the scores of one class, sorted."""
    scores, is_positive = _checked(part)
    return np.sort(scores[is_positive == positive])


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.sort(np.concatenate(parts))


def _counted(
    part: Any, minority: NDArray[Any], positive: bool, surrogates: Surrogates, margin: float | None
) -> Totals:
    """Return the counts and sums of the other class of a partition."""
    scores, is_positive = _checked(part)
    # Without a smaller class, the caller raises an error, which needs the number of rows alone.
    known = minority if minority.shape[0] else np.zeros(1)
    counts = MajorityCounts(known, positive=positive, surrogates=surrogates, margin=margin)
    counts.add(scores[is_positive != positive])
    return counts.totals()


def _added(parts: list[Totals]) -> Totals:
    return sum(parts[1:], parts[0])


def _checked(part: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    columns = _columns(part)
    if np.size(columns["scores"]) == 0:
        return np.empty(0, np.float32), np.empty(0, bool)
    batch = batches.batch_from(columns["scores"], columns["labels"])
    return batch.scores, batches.positives(batch)


def _tree(parts: Sequence[Any], combine: Callable[[list[_T]], _T], split_every: int) -> Any:
    """Combine delayed values, at most `split_every` at a time."""
    if split_every < 2:
        raise ValueError(f"split_every must be at least 2; got {split_every!r}. 8 is usual.")
    task = delayed(combine, pure=False)
    parts = list(parts)
    while len(parts) > 1:
        parts = [task(parts[i : i + split_every]) for i in range(0, len(parts), split_every)]
    return parts[0]

"""Read Parquet, CSV and Arrow files of any size in chunks."""

from __future__ import annotations

import glob
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from everypair.experiments.data import _files
from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

_ROWS = 1 << 20  # of a chunk
_CELLS = 1 << 26  # of a chunk of a CSV file, all of whose columns are parsed
_T = TypeVar("_T")


class Chunk(NamedTuple):
    """Rows of a file, the number of rows before them, and the share of the file read so far."""

    path: Path
    frame: pd.DataFrame
    start: int
    share: float


def files_of(patterns: Sequence[str | Path]) -> list[Path]:
    """Return the files that names and patterns such as 'part-*.parquet' stand for."""
    found: list[Path] = []
    for pattern in map(str, patterns):
        matches = (
            [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
        )
        if not matches and glob.has_magic(pattern):
            raise UserError(f"{pattern}: no file matches this pattern in {Path.cwd()}")
        found += map(Path, matches or [pattern])
    return found


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a file."""
    with _files.explained_errors(path):
        kind = _files.file_kind(path)
        if kind == "parquet":
            import pyarrow.parquet as pq  # type: ignore[import-untyped]

            names = pq.read_schema(path).names
        elif kind == "arrow":
            with _files.arrow_reader(path) as reader:
                names = reader.schema.names
        elif kind == "csv":
            return list(_files.csv_format(path).names)
        else:
            return list(_files.read(path).columns)
    _files.check_names(path, names)
    return list(names)


def chunks(path: Path, columns: Sequence[str]) -> Iterator[Chunk]:
    """Return these columns of a file, chunk after chunk; the next one is read in the background."""
    start = 0
    with _files.explained_errors(path):
        for frame, share in _ahead(_frames(path, list(dict.fromkeys(columns)))):
            yield Chunk(path, frame, start, share)
            start += len(frame)
    if start == 0:
        _files.refuse_empty(path)


def _frames(path: Path, columns: list[str]) -> Iterator[tuple[pd.DataFrame, float]]:
    kind = _files.file_kind(path)
    if kind == "parquet":
        yield from _parquet_frames(path, columns)
    elif kind == "excel":
        yield _files.read(path)[columns], 1.0
    elif kind == "arrow":
        with _files.arrow_reader(path) as reader:
            # The number of rows is not known before all are read: count batches where possible.
            total = getattr(reader, "num_record_batches", 0)
            batches = map(reader.get_batch, range(total)) if total else iter(reader)
            for i, batch in enumerate(batches):
                yield (
                    batch.select(columns).to_pandas(ignore_metadata=True),
                    (i + 1) / (total or i + 1),
                )
    else:
        yield from _csv_frames(path, columns)


def _parquet_frames(path: Path, columns: list[str]) -> Iterator[tuple[pd.DataFrame, float]]:
    """Read row groups, or parts of large ones, two at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        total, done = file.metadata.num_rows, 0
        largest = max(
            (file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)), default=0
        )
        if largest > 4 * _ROWS:
            batches = file.iter_batches(_ROWS, columns=columns)
        else:
            read = partial(_row_group, path, columns)
            batches = _mapped(read, range(file.num_row_groups))
        for batch in batches:
            done += batch.num_rows
            if batch.num_rows:
                yield (
                    batch.to_pandas(split_blocks=True, ignore_metadata=True)[columns],
                    done / total,
                )


def _row_group(path: Path, columns: list[str], i: int) -> Any:
    import pyarrow.parquet as pq

    # A reader of its own for each thread.
    with pq.ParquetFile(path) as file:
        return file.read_row_group(i, columns=columns, use_threads=False)


def _mapped(function: Callable[[int], _T], items: Sequence[int]) -> Iterator[_T]:
    """Apply a function in two threads, in order, at most three results ahead of the caller."""
    with ThreadPoolExecutor(2) as pool:
        waiting = deque(pool.submit(function, i) for i in items[:3])
        for i in range(len(items)):
            result = waiting.popleft().result()
            if i + 3 < len(items):
                waiting.append(pool.submit(function, items[i + 3]))
            yield result


def _csv_frames(path: Path, columns: list[str]) -> Iterator[tuple[pd.DataFrame, float]]:
    import warnings

    import pandas as pd

    how, size = _files.csv_format(path), path.stat().st_size
    rows = min(_ROWS, max(1, _CELLS // len(how.names)))
    with warnings.catch_warnings(), _files.unpacked(path) as file:
        # pandas only warns when it cuts off rows that are longer than the header. All columns are
        # parsed, because it does not count the fields of a row if some columns are left out.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        with pd.read_csv(file, low_memory=False, chunksize=rows, **how.options()) as reader:
            for frame in reader:
                yield frame[columns], min(file.tell() / size, 1.0)  # at most 1 if unpacked


def _ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Compute the next item in a thread while the caller uses the one before."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, items, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, items, end)
            yield item  # type: ignore[misc]

"""Tidy rows, each with a measurement and the machine, and the CSV files that hold them."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "benchmarks" / "rows"
SCRATCH = ROOT / "build" / "benchmarks"
# The files of a folder that hold rows; other CSV files have other columns.
FILES = ("*.csv", "linear/*.csv", "boosting/round.csv")


@dataclass(frozen=True)
class Row:
    """One measurement: the cell (suite to surrogate), the numbers, and the environment.

    ``bce_ratio`` is the median relative to that of torch's BCE in the same cell, ``bce_ratio_p20``
    that of the 20th percentiles: the time of BCE has two modes, with and without new memory pages.
    """

    suite: str
    n: int
    positives: float
    threads: int
    dtype: str
    input: str
    backend: str
    surrogate: str
    quantity: str
    median: float
    p20: float
    p80: float
    repeats: int
    bce_ratio: float | None
    bce_ratio_p20: float | None
    machine: str
    cores: int
    isa: str
    python: str
    numpy: str
    torch: str
    libauc: str
    everypair: str
    commit: str
    date: str

    @property
    def file(self) -> str:
        return f"{self.suite}.csv"


@dataclass(frozen=True)
class KernelRow:
    """The time of one question to the compiled kernel, and that of torch's BCE in the same cell.

    Times are seconds of one call: the 25th percentile of the samples. ``ratio`` divides the two,
    ``ratio_of_medians`` divides the medians. One thread, one instruction set (``isa``);
    ``torch_capability`` is the instruction set of torch.
    """

    question: str
    n: int
    positives: float
    isa: str
    torch_capability: str
    seconds: float
    bce_seconds: float
    ratio: float
    ratio_of_medians: float
    samples: int
    machine: str
    cores: int
    python: str
    numpy: str
    torch: str
    everypair: str
    commit: str
    date: str

    @property
    def file(self) -> str:
        return f"kernel/{self.isa}.csv"


AnyRow = TypeVar("AnyRow", Row, KernelRow)


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def isa() -> str:
    try:
        from everypair import _native
    except ImportError:
        return "none"
    return _native.isa()


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    # Changes of rows, plots and tables do not count: the benchmarks write them.
    changed = git("status", "--porcelain", "--", "src", "CMakeLists.txt", "benchmarks/*.py")
    return (git("rev-parse", "--short", "HEAD") or "none") + ("+changes" if changed else "")


@lru_cache(maxsize=1)
def environment() -> dict[str, str | int]:
    """Return the machine and the versions, which are the same for all rows of a run."""
    return {
        "machine": cpu_model(),
        "cores": os.cpu_count() or 1,
        "isa": isa(),
        "python": platform.python_version(),
        "numpy": installed("numpy"),
        "torch": installed("torch"),
        "everypair": installed("everypair"),
        "commit": commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def row(**measured: object) -> Row:
    """Make a row from a measurement, the environment, and defaults for the other axes."""
    blank = {
        "n": 0,
        "positives": 0.5,
        "threads": 1,
        "dtype": "float32",
        "input": "normal",
        "surrogate": "squared_hinge",
        "repeats": 1,
        "bce_ratio": None,
        "bce_ratio_p20": None,
        "libauc": installed("libauc"),
    }
    return Row(**{**blank, **environment(), **measured})


def constant(value: float) -> dict[str, float]:
    """Return the three quantiles of a quantity that does not vary."""
    return {"median": value, "p20": value, "p80": value}


def quantiles(samples: Sequence[float]) -> dict[str, float]:
    """Return median, 20th and 80th percentile of samples."""
    values = np.quantile(samples, [0.5, 0.2, 0.8]).tolist()
    return dict(zip(("median", "p20", "p80"), values, strict=True))


def write_csv(
    records: Sequence[Mapping[str, object]], path: Path, columns: Sequence[str] | None = None
) -> None:
    """Write records as a CSV file; the columns are the keys of the first one by default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns or list(records[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(records)


def write(rows: Sequence[Row], path: Path) -> None:
    """Write rows; the file has a header even if there are none."""
    records = [{k: format_cell(v) for k, v in asdict(each).items()} for each in rows]
    write_csv(records, path, [f.name for f in fields(rows[0] if rows else Row)])


def write_as_they_come(rows: Iterable[Row | KernelRow], folder: Path) -> dict[Path, int]:
    """Write each row to its file at once; return how many rows each file has.

    The first row of a file replaces the file. A run that is killed keeps what it has measured.
    """
    count: dict[Path, int] = {}
    for each in rows:
        path = folder / each.file
        record = {k: format_cell(v) for k, v in asdict(each).items()}
        if path not in count:
            write_csv([record], path)
        else:
            with path.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(record.values())
        count[path] = count.get(path, 0) + 1
    return count


def format_cell(value: object) -> object:
    return f"{value:.5g}" if isinstance(value, float) else value


def read(folder: Path = ROWS) -> list[Row]:
    """Read all rows of a folder, without the columns that only some suites have."""
    return [row for pattern in FILES for row in read_as(Row, folder, pattern)]


def read_kernel(folder: Path = ROWS) -> list[KernelRow]:
    """Read the rows of the kernel suite, the oldest instruction set first."""
    rows = read_as(KernelRow, folder, "kernel/*.csv")
    return sorted(rows, key=lambda r: (r.isa != "baseline", r.isa))  # avx2 comes before avx512


def read_as(kind: type[AnyRow], folder: Path, pattern: str) -> list[AnyRow]:
    parsers = {
        "int": int,
        "float": float,
        "str": str,
        "float | None": lambda text: float(text) if text else None,
    }
    types = {f.name: parsers[str(f.type)] for f in fields(kind)}
    rows = []
    for path in sorted(folder.glob(pattern)):
        with path.open(newline="") as file:
            rows += [kind(**{k: t(r[k]) for k, t in types.items()}) for r in csv.DictReader(file)]
    return rows

"""Bytes over the network, a cost model for many machines, and times of streaming a file.

    python -m benchmarks.scale bytes     # count bytes: 64 simulated workers, and tasks of Dask
    python -m benchmarks.scale model     # 10^9 to 10^11 rows on 64 machines
    python -m benchmarks.scale stream --rows 100000000     # Parquet (460 MB), beside pyarrow alone
    python -m benchmarks.scale profile   # nanoseconds a row of each step, in memory

Each prints a table of docs/scale.md and writes its rows to benchmarks/rows/scale.
"""

from __future__ import annotations

import argparse
import csv
import pickle
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import everypair as ep
from everypair.streaming import MajorityCounts, evaluate_across

FOLDER = Path(__file__).parent / "rows" / "scale"
WORKERS = 64
GIGABIT = 1e9 / 8.0  # bytes a second
BITS = 18
SURROGATES = ("squared_hinge",)


def rows_of(n: int, share: float, seed: int = 0) -> tuple[Any, Any]:
    """Return float32 scores and labels; no two scores of the smaller class need be equal."""
    random = np.random.default_rng(seed)
    labels = random.random(n) < share
    return random.standard_normal(n, dtype=np.float32) + labels.astype(np.float32), labels


# Bytes that one worker gives to and gets from a sum over all workers. A ring sends 2 (w - 1) / w of
# the array, which is what libraries do for large arrays (NCCL, gloo, XGBoost).


def ring(size: float, workers: int = WORKERS) -> float:
    return 2.0 * (workers - 1) / workers * size


def modelled(n: float, share: float, workers: int = WORKERS) -> dict[str, float]:
    """Return the bytes that one machine sends, by engine; for merging and gathering, receives."""
    smaller = n * min(share, 1.0 - share)
    return {
        "exact, evaluate_across": ring(8 * smaller + 16 * smaller, workers),
        f"bounded, {BITS} bits": ring(48 * 2.0**BITS, workers),
        "merge accumulators on one machine": 4 * n * (workers - 1) / workers,
    }


def counted(n: int, share: float, mode: str, workers: int = WORKERS) -> float:
    """Evaluate on simulated workers, and return the bytes that each of them sends in rings."""
    scores, labels = rows_of(n, share)
    parts = np.array_split(np.arange(n), workers)
    slots: list[Any] = [None] * workers
    sent, total = [0.0] * workers, [np.zeros(0)]

    def add_up() -> None:
        total[0] = slots[0].copy()
        for array in slots[1:]:
            total[0] += array

    # The last worker to arrive adds up the arrays, and all of them share the sum.
    arrived, left = threading.Barrier(workers, add_up), threading.Barrier(workers)

    def run(rank: int) -> ep.StreamResult:
        def allreduce(array: Any) -> Any:
            slots[rank] = array
            sent[rank] += ring(array.nbytes, workers)
            arrived.wait()
            found = total[0]
            left.wait()
            return found

        mine = ep.PairAccumulator(mode=mode, bits=BITS)
        mine.add(scores[parts[rank]], labels[parts[rank]])
        return evaluate_across(
            mine, allreduce, rank=rank, world_size=workers, surrogates=SURROGATES
        )

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(run, range(workers)))
    assert all(result.auc == found[0].auc for result in found)
    assert abs(found[0].auc - ep.auc(scores, labels)) <= found[0].auc_bound
    return max(sent)


def count_bytes() -> list[dict[str, Any]]:
    found = []
    for n, share in ((640_000, 0.001), (640_000, 0.01), (640_000, 0.5)):
        for mode, name in (
            ("exact", "exact, evaluate_across"),
            ("bounded", f"bounded, {BITS} bits"),
        ):
            found.append(
                {"engine": name, "rows": n, "positives": share, "workers": WORKERS,
                 "bytes": counted(n, share, mode), "modelled": modelled(n, share)[name]}
            )  # fmt: skip
        # Dask sends results of tasks from worker to worker, pickled.
        scores, labels = rows_of(n // WORKERS, share)
        part = ep.PairAccumulator()
        part.add(scores, labels)
        minority = rows_of(n, share)[0][rows_of(n, share)[1]]
        counts = MajorityCounts(minority, positive=True)
        counts.add(scores[~labels])
        for name, value in (
            ("Dask, partition of accumulate", part),
            ("Dask, the smaller class", np.sort(minority)),
            ("Dask, counts of one partition", counts.totals()),
        ):
            size = len(pickle.dumps(value, protocol=5))
            found.append({"engine": name, "rows": n, "positives": share, "workers": WORKERS,
                          "bytes": size, "modelled": ""})  # fmt: skip
    return found


def model() -> list[dict[str, Any]]:
    found = []
    for n in (1e9, 1e10, 1e11):
        for share in (0.001, 0.01, 0.5):
            for engine, size in modelled(n, share).items():
                found.append(
                    {"engine": engine, "rows": n, "positives": share, "workers": WORKERS,
                     "bytes": size, "seconds_at_10_gigabit": size / (10 * GIGABIT)}
                )  # fmt: skip
    return found


_READ = "pq.read_table(path, columns=['score', 'label'])"
_PROGRAMS = {
    "pyarrow": _READ,
    "exact, AUC and interval": "run('exact', ())",
    "exact, and squared hinge": "run('exact', ('squared_hinge',))",
    "bounded, and squared hinge": "run('bounded', ('squared_hinge',))",
}
_SETUP = """
import sys, time, resource
from pathlib import Path
path, n = sys.argv[1], int(sys.argv[2])
import pandas, pyarrow.dataset  # which are loaded at first use otherwise
import pyarrow.parquet as pq
import everypair as ep
from everypair.experiments.data import _chunks

def run(mode, surrogates):
    rows = ep.PairAccumulator(mode=mode)
    for chunk in _chunks.chunks(Path(path), ["score", "label"]):
        rows.add(chunk.frame["score"].to_numpy(), chunk.frame["label"].to_numpy())
    assert rows.n_rows == n
    return rows.result(surrogates)

start, cpu = time.perf_counter(), time.process_time()
{program}
print(time.perf_counter() - start, time.process_time() - cpu,
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def stream(n: int, folder: str, repeats: int, prefix: str) -> list[dict[str, Any]]:
    """Time programs in processes of their own, in turns; the first round warms the file cache."""
    command = [*prefix.split(), sys.executable, "-c"]
    path = Path(tempfile.mkdtemp(dir=folder)) / "rows.parquet"
    write_parquet(path, n)
    times: dict[str, list[list[float]]] = {name: [] for name in _PROGRAMS}
    for _ in range(repeats + 1):
        for name, program in _PROGRAMS.items():
            code = _SETUP.format(program=program)
            ran = subprocess.run(
                [*command, code, str(path), str(n)], check=True, capture_output=True, text=True
            )
            times[name].append([float(word) for word in ran.stdout.split()])
    path.unlink()
    path.parent.rmdir()
    alone = np.median([t[0] for t in times["pyarrow"][1:]])
    return [
        {"program": name, "rows": n, "seconds": float(np.median([t[0] for t in found[1:]])),
         "cpu_seconds": float(np.median([t[1] for t in found[1:]])),
         "ratio": float(np.median([t[0] for t in found[1:]]) / alone),
         "peak_mb": max(t[2] for t in found), "machine": platform.processor() or platform.machine()}
        for name, found in times.items()
    ]  # fmt: skip


def profile(n: int, folder: str, repeats: int) -> list[dict[str, Any]]:
    """Time the steps of a stream, each in memory that the process has used before."""
    import pyarrow.parquet as pq

    from everypair.streaming import results

    path = Path(tempfile.mkdtemp(dir=folder)) / "rows.parquet"
    write_parquet(path, n)
    table = pq.read_table(path)
    scores, labels = (table[name].to_numpy() for name in ("score", "label"))
    times: dict[str, list[tuple[float, float]]] = {}

    def timed(name: str, function: Any) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        found = function()
        seconds = time.perf_counter() - start, time.process_time() - cpu
        times.setdefault(name, []).append(seconds)
        return found

    for _ in range(repeats + 1):
        timed("pyarrow reads the columns", lambda: pq.read_table(path, columns=["score", "label"]))
        rows = ep.PairAccumulator()

        def add(rows: ep.PairAccumulator = rows) -> None:
            for start in range(0, n, 1 << 20):
                rows.add(scores[start : start + (1 << 20)], labels[start : start + (1 << 20)])

        timed("add: check, and divide by class", add)
        held = timed("sort", rows.rows)
        timed("numpy.sort alone, in one thread", partial(np.sort, scores))
        timed("ranks: AUC and interval", partial(results.of_rows, held, results.Options(())))
        timed("squared hinge", partial(ep.pair_loss, held.scores, held.labels))
    path.unlink()
    path.parent.rmdir()
    return [
        {"step": name, "rows": n,
         "ns_a_row": float(np.median([t[0] for t in found[1:]])) / n * 1e9,
         "cpu_ns_a_row": float(np.median([t[1] for t in found[1:]])) / n * 1e9}
        for name, found in times.items()
    ]  # fmt: skip


def write_parquet(path: Path, n: int, share: float = 0.01) -> None:
    """Write float32 scores and int8 labels, a million rows to a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("score", pa.float32()), ("label", pa.int8())])
    with pq.ParquetWriter(path, schema) as writer:
        for seed, start in enumerate(range(0, n, 1 << 20)):
            scores, labels = rows_of(min(1 << 20, n - start), share, seed)
            writer.write_table(pa.table([scores, labels.astype(np.int8)], schema=schema))


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table and write them to a CSV file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"| {' | '.join(rows[0])} |")
    print("|" + " --- |" * len(rows[0]))
    for row in rows:
        cells = [f"{x:,.4g}" if isinstance(x, float) else str(x) for x in row.values()]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.scale")
    parser.add_argument("part", choices=["bytes", "model", "stream", "profile"])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prefix", default="", help="such as 'chrt -f 50', for stream")
    options = parser.parse_args()
    start = time.perf_counter()
    found = {
        "bytes": count_bytes,
        "model": model,
        "stream": lambda: stream(options.rows, options.folder, options.repeats, options.prefix),
        "profile": lambda: profile(options.rows, options.folder, options.repeats),
    }[options.part]()
    show(options.part, found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{time.perf_counter() - start:.0f} s, {peak:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Kill workers at random moments and compare the results with those of all rows.

python -m benchmarks.kill_workers [--moments 20] [--seed 0] [--only checkpoint|dask]

Two parts. A Dask cluster of three processes evaluates a collection, and one worker is killed at a
random moment of each evaluation. A process adds chunks and saves a checkpoint after each; it is
killed at a random moment and continues from its checkpoint. A result that differs from that of all
rows in a single bit is an error: a row was lost or counted twice.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import everypair as ep

CHUNKS, ROWS = 24, 2000
PAUSE = 0.02  # seconds that a chunk takes, so that kills find work under way

_STREAM = """
import sys
from pathlib import Path
import everypair as ep
from benchmarks.kill_workers import CHUNKS, ROWS, chunk
path = Path(sys.argv[1])
rows = ep.PairAccumulator.load(path) if path.exists() else ep.PairAccumulator()
for i in range(rows.n_rows // ROWS, CHUNKS):
    rows.add(*chunk(i).T)
    rows.save(path)
"""


def chunk(i: int) -> np.ndarray:
    """Return rows (score, label) of chunk i, the same each time."""
    time.sleep(PAUSE)
    random = np.random.default_rng(i)
    labels = random.random(ROWS) < 0.05
    return np.column_stack([np.round(random.normal(size=ROWS) + labels, 3), labels])


def expected() -> ep.PairAccumulator:
    """Return an accumulator with all rows."""
    rows = ep.PairAccumulator()
    for i in range(CHUNKS):
        rows.add(*chunk(i).T)
    return rows


def killed_dask_workers(moments: int, random: np.random.Generator) -> Iterator[dict]:
    """Kill one of three workers during each evaluation."""
    import dask
    from distributed import Client, LocalCluster

    whole, table = expected(), ep.PairAccumulator(mode="bounded")
    table.add(whole.rows().scores, whole.rows().labels)
    true = {"exact": whole.result(), "merged": whole.result(), "bounded": table.result()}
    # A task may be on a worker that is killed, several times over.
    dask.config.set({"distributed.scheduler.allowed-failures": 20})
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for i in range(moments):
            client.wait_for_workers(3)
            _evaluated("exact")  # imports
            began = time.perf_counter()
            _evaluated("exact")
            usual = time.perf_counter() - began
            mode = ("exact", "merged", "bounded")[i % 3]
            wait = float(random.uniform(0.0, usual))
            victim = int(random.choice(_processes(cluster)))
            command = ["sh", "-c", f"sleep {wait}; kill -9 {victim}"]
            killer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            result = _evaluated(mode)
            killed = killer.wait() == 0
            same = (result.auc, result.variance, result.n_rows) == (
                true[mode].auc, true[mode].variance, true[mode].n_rows
            )  # fmt: skip
            loss, known = (r.losses["squared_hinge"] for r in (result, true[mode]))
            good = bool(same and abs(loss - known) <= 1e-12 * known)
            times = {"after_s": round(wait, 3), "of_s": round(usual, 3)}
            yield {"part": f"dask {mode}", **times, "killed": killed, "same": good}
            while killed and victim in _processes(
                cluster
            ):  # until its nanny has started another one
                time.sleep(0.05)


def _processes(cluster: Any) -> list[int]:
    """Return the process ids of the workers of a cluster."""
    return [nanny.pid for nanny in cluster.workers.values() if nanny.pid]


def _evaluated(mode: str) -> ep.StreamResult:
    """Evaluate all chunks on the cluster, by new tasks: no result is taken from a cache."""
    import dask
    import dask.array as da

    from everypair.dask import accumulate, evaluate

    load = dask.delayed(chunk, pure=False)
    parts = [da.from_delayed(load(i), (ROWS, 2), dtype=float) for i in range(CHUNKS)]
    rows = da.concatenate(parts)
    if mode == "merged":
        return accumulate(rows[:, 0], rows[:, 1]).compute().result()
    return evaluate(rows[:, 0], rows[:, 1], mode=mode)


def killed_streams(moments: int, random: np.random.Generator) -> Iterator[dict]:
    """Kill a process that saves checkpoints, and continue until the stream ends."""
    true = expected().result()
    for _ in range(moments):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.npz"
            kills, waited = 0, []
            while True:
                process = subprocess.Popen([sys.executable, "-c", _STREAM, str(path)])
                wait = float(random.uniform(0.2, 1.5 + CHUNKS * PAUSE)) if kills < 3 else None
                try:
                    process.wait(wait)
                    break
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    kills += 1
                    waited.append(round(wait or 0.0, 3))
            good = process.returncode == 0 and ep.PairAccumulator.load(path).result() == true
            yield {"part": "checkpoint", "after_s": waited, "killed": kills > 0, "same": good}


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.kill_workers")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["checkpoint", "dask"])
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    rows = []
    parts = {"checkpoint": killed_streams, "dask": killed_dask_workers}
    for name, part in parts.items():
        if options.only not in (None, name):
            continue
        for row in part(options.moments, random):
            print(json.dumps(row), flush=True)
            rows.append(row)
    wrong = sum(not row["same"] for row in rows)
    print(json.dumps({"moments": len(rows), "wrong": wrong}))
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())

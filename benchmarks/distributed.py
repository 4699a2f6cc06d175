"""Bytes and seconds of the loss over the pairs of several ranks.

    python -m benchmarks.distributed measure    # 4 Gloo processes; rows to rows/distributed
    python -m benchmarks.distributed table      # the measured rows as a table
    python -m benchmarks.distributed model      # bytes and seconds on 64 machines

Each prints the rows of a table of docs/torch/distributed.md.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.rows import ROWS, environment
from everypair.torch import pair_loss
from everypair.torch.distributed import global_pair_loss

FILE = ROWS / "distributed" / "loss.csv"
RANKS = 4
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
SHARES = (0.5, 0.01, 0.001)
GIGABIT = 1e9 / 8


def bytes_sent(n_small: int, ranks: int, score_bytes: int = 4, gradient_bytes: int = 4) -> float:
    """Return the bytes that a rank sends for one loss with its gradient, to all others together.

    The agreement has 8 numbers and the sums have 2. A rank sends the scores of its rows of the
    smaller class to all others, and to each of them the gradient of its rows. These rows are spread
    evenly over the ranks.
    """
    own = n_small / ranks
    return (ranks - 1) * (64 + 16 + own * (score_bytes + gradient_bytes))


def bytes_of_all_scores(n: int, ranks: int) -> float:
    """Return the bytes that a rank sends to gather the scores of all rows, without their labels."""
    return (ranks - 1) * n / ranks * 4


def _times(step: Callable[[], object], repeats: int) -> tuple[list[float], list[float]]:
    """Return wall and CPU seconds of this rank for a step that all ranks take together.

    The CPU time includes that of Gloo's threads. The first two steps are left out.
    """
    wall, cpu = [], []
    for _ in range(repeats + 2):
        dist.barrier()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        step()
        cpu.append(time.process_time() - begin_cpu)
        dist.barrier()
        wall.append(time.perf_counter() - begin)
    return wall[2:], cpu[2:]


def _measure(rank: int, store: str, repeats: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    sent = _counted_bytes()
    found = []
    for n in SIZES:
        for share in SHARES:
            generator = torch.Generator().manual_seed(rank)
            labels = torch.arange(n // RANKS) < round(share * n / RANKS)
            scores = torch.randn(n // RANKS, generator=generator, requires_grad=True)

            def ours(scores: Any = scores, labels: Any = labels) -> None:
                global_pair_loss(scores, labels).backward()

            def all_rows(scores: Any = scores, labels: Any = labels) -> None:
                parts = [torch.empty_like(scores) for _ in range(RANKS)]
                targets = [torch.empty_like(labels) for _ in range(RANKS)]
                dist.all_gather(parts, scores.detach())
                dist.all_gather(targets, labels)
                parts[rank] = scores
                pair_loss(torch.cat(parts), torch.cat(targets)).backward()

            def own_rows(scores: Any = scores, labels: Any = labels) -> None:
                pair_loss(scores, labels).backward()

            for name, step in (("smaller class", ours), ("all rows", all_rows), ("own", own_rows)):
                sent.clear()
                step()
                moved = sum(sent)
                wall, cpu = _times(step, repeats)
                low, _, _, high = statistics.quantiles(wall, n=5)
                found.append(
                    {
                        "exchange": name, "ranks": RANKS, "n": n, "positives": share,
                        "bytes_sent": moved, "cpu": f"{statistics.median(cpu):.6f}",
                        "median": f"{statistics.median(wall):.6f}",
                        "p20": f"{low:.6f}", "p80": f"{high:.6f}", "repeats": repeats,
                        **environment(),
                    }
                )  # fmt: skip
    if rank == 0:
        FILE.parent.mkdir(exist_ok=True)
        with FILE.open("w", newline="") as file:
            writer = csv.DictWriter(file, found[0])
            writer.writeheader()
            writer.writerows(found)
    dist.barrier()


def _counted_bytes() -> list[int]:
    """Return a list to which every collective from now on adds the bytes that it sends."""
    sent: list[int] = []
    gather, exchange = dist.all_gather, dist.all_to_all_single

    def counted_gather(tensors: Any, tensor: Any, **options: Any) -> Any:
        sent.append((RANKS - 1) * tensor.nbytes)
        return gather(tensors, tensor, **options)

    def counted_exchange(received: Any, tensor: Any, *splits: Any, **options: Any) -> Any:
        sent.append(tensor.nbytes)
        return exchange(received, tensor, *splits, **options)

    dist.all_gather, dist.all_to_all_single = counted_gather, counted_exchange
    return sent


def measure(repeats: int = 15) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_measure, (str(Path(folder) / "store"), repeats), RANKS)
    table()


def table() -> None:
    with FILE.open() as file:
        rows = list(csv.DictReader(file))
    cells = {(row["exchange"], int(row["n"]), float(row["positives"])): row for row in rows}
    for n in (SIZES[0], SIZES[2], SIZES[4]):
        for share in SHARES:
            ours, whole, own = (
                cells[name, n, share] for name in ("smaller class", "all rows", "own")
            )
            moved = int(ours["bytes_sent"])
            # Rows that do not divide evenly, and messages of whole words of 8 bytes.
            assert abs(moved - bytes_sent(round(n * share), RANKS)) <= 16 * (RANKS - 1)
            kilobytes, part = moved / 1e3, moved / bytes_of_all_scores(n, RANKS)
            times = " | ".join(f"{1e3 * float(row['cpu']):.1f}" for row in (ours, whole, own))
            print(f"| {n:,} | {share:.1%} | {kilobytes:,.1f} | {part:.2%} | {times} |")


def model(ranks: int = 64) -> None:
    for n in (10**6, 10**8, 10**9):
        for share in (0.5, 0.01, 0.001):
            ours, whole = bytes_sent(round(n * share), ranks), bytes_of_all_scores(n, ranks)
            seconds = [f"{b / (10 * GIGABIT):.2g}" for b in (ours, whole)]
            print(f"| {n:,} | {share:.1%} | {ours / 1e6:,.2f} | {' | '.join(seconds)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("measure", "table", "model"))
    {"measure": measure, "table": table, "model": model}[parser.parse_args().what]()

"""Time the pairwise logistic loss relative to torch's BCE, by spread of the scores.

    python -m benchmarks.smooth time        # AVX2, one thread; benchmarks/rows/smooth/time.csv
    python -m benchmarks.smooth time --sizes 1000 10000 --out build/smooth.csv      # a short run
    python -m benchmarks.smooth report      # the table of docs/performance.md, from the rows
    python -m benchmarks.smooth check       # compare the rows with the limits

Times are those of loss and gradient. The spread is the standard deviation of the scores, in
temperatures. BCE has float32 scores of spread 1: it is up to three times slower with spread 100,
where it computes denormal numbers. All calls of a size alternate in one process, in which torch and
NumPy are limited to AVX2 as well. For real-time priority use ``chrt --rr 50``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence

import everypair as ep
from benchmarks import pages
from benchmarks.contenders import Call, bce
from benchmarks.harness import Timed, interleave, num_threads
from benchmarks.inputs import Batch, batch
from benchmarks.instruction_sets import command_line
from benchmarks.kernel import MOST_BATCHES, ROWS_OF_ALL_BATCHES, in_turn
from benchmarks.rows import ROOT, ROWS, environment, quantiles
from benchmarks.tables import markdown, share

ISA = "avx2"
FILE = ROWS / "smooth" / "time.csv"
SIZES = (1_000, 10_000, 120_000, 1_000_000, 10_000_000)
SHARES = (0.5, 0.01)
SPREADS = (1, 100, 10_000, 1_000_000)
DTYPES = ("float32", "float64")


def limit(n: int, dtype: str, spread: int) -> float:
    """Return the limit of the time relative to BCE."""
    if dtype == "float64":
        return 15.0
    if spread > 100:
        return 12.0
    return 1.5 if n < 10_000 else 2.0


def logistic(b: Batch) -> Call:
    return lambda: ep.pair_loss_and_grad(b.scores, b.labels, surrogate="logistic")


def calls(n: int, positives: float) -> dict[tuple[str, int], Call]:
    """Return the calls to be timed, by dtype and spread; that of BCE is ("BCE", 1)."""
    number = min(max(ROWS_OF_ALL_BATCHES // n, 1), MOST_BATCHES)
    batches = [batch(n, positives, seed=seed) for seed in range(number)]
    found = {("BCE", 1): in_turn([bce(b) for b in batches])}
    for dtype, spread in itertools.product(DTYPES, SPREADS):
        wide = [b._replace(scores=(spread * b.scores).astype(dtype)) for b in batches]
        found[dtype, spread] = in_turn([logistic(b) for b in wide])
    return found


def measure(isa: str, sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    """Yield the times of this process on one thread."""
    for n, positives in itertools.product(sizes, SHARES):
        print(f"{isa}, {n:,} rows, {share(positives)} positives", file=sys.stderr, flush=True)
        with num_threads(1):
            timed = {key: Timed(call) for key, call in calls(n, positives).items()}
            interleave(list(timed.values()), 31, seconds=0.3, fewest=5)
        times = {key: quantiles(each.samples) for key, each in timed.items()}
        for (dtype, spread), found in times.items():
            ratio = found["median"] / times["BCE", 1]["median"]
            cell = {"n": n, "positives": positives, "dtype": dtype, "spread": spread}
            yield {**cell, **found, "bce_ratio": ratio, **environment()}


def ratios() -> dict[tuple[str, float, int, int], float]:
    """Return the times relative to BCE, by dtype, share of positives, spread and size."""
    import pandas as pd

    rows = pd.read_csv(FILE)
    keys = ["dtype", "positives", "spread", "n"]
    return dict(rows[rows["dtype"] != "BCE"].set_index(keys)["bce_ratio"].items())


def report() -> None:
    """Write the table of the rows to docs/performance.md."""
    found = ratios()
    body = [
        [f"{dtype}, {share(p)}, {spread:,}", *(f"{found[dtype, p, spread, n]:.2f}" for n in SIZES)]
        for dtype, p, spread in itertools.product(DTYPES, SHARES, SPREADS)
    ]
    table = markdown(["scores, positives, spread", *(f"{n:,}" for n in SIZES)], body)
    pages.fill([ROOT / "docs" / "performance.md"], {"smooth: times": table})


def check() -> None:
    """Compare the rows with the limits; exit with status 1 if one is exceeded."""
    failed = False
    for (dtype, positives, spread, n), ratio in ratios().items():
        most = limit(n, dtype, spread)
        failed |= ratio > most
        cell = f"{dtype}, {share(positives)} positives, spread {spread:,}, {n:,} rows"
        verdict = "too slow" if ratio > most else "ok"
        print(f"{cell}: {ratio:.3g} times BCE, at most {most}: {verdict}")
    raise SystemExit(failed)


def main() -> None:
    command_line(
        "benchmarks.smooth", __doc__.splitlines()[0], isas=(ISA,), sizes=SIZES, file=FILE,
        measure=measure, report=report, check=check,
    )  # fmt: skip


if __name__ == "__main__":
    main()

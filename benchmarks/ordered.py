"""Time ordered and survival pairs, beside the functions of other libraries.

    python -m benchmarks.ordered time        # seconds on every instruction set, beside others
    python -m benchmarks.ordered time --sizes 1000 3000 --out build/time.csv    # a short run
    python -m benchmarks.ordered report      # the table of docs/performance.md, from the rows
    python -m benchmarks.ordered check       # compare the rows with the limits

`time` runs one process for each instruction set, to which NumPy is limited as well, on one thread,
and writes benchmarks/rows/ordered/time.csv. All calls of one size alternate in the same process.

For real-time priority use ``chrt --rr 50``. With ``chrt --fifo`` a process runs until it blocks:
another such process on the same core stops this one for as long as it computes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

import everypair as ep
from benchmarks import pages
from benchmarks.harness import Timed, interleave
from benchmarks.instruction_sets import command_line, instruction_sets
from benchmarks.rows import ROOT, ROWS, environment, quantiles
from benchmarks.tables import duration, markdown

FILE = ROWS / "ordered" / "time.csv"
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
SLOW = {"lifelines": 100_000, "scikit-survival": 30_000}  # timed up to this size, with AVX2 only
# Limits of seconds, and of the time relative to another call of the same run, by size.
SECONDS = {("all targets distinct", 100_000): 0.030, ("all targets distinct", 1_000_000): 0.5}
RATIOS = {
    ("five grades", "two classes", 3_000): 4.0,
    ("five grades", "two classes", 10_000): 4.0,
    ("five grades", "two classes", 100_000): 4.0,
    ("five grades", "two classes", 1_000_000): 4.0,
    ("concordance", "scipy.stats.kendalltau", 100_000): 1.0,
    ("concordance", "scipy.stats.kendalltau", 1_000_000): 1.0,
    ("survival concordance", "lifelines", 100_000): 0.01,
    ("survival concordance", "scikit-survival", 30_000): 0.01,
}


def calls(n: int, dtype: str) -> dict[str, Callable[[], object]]:
    """Return the calls to be timed, by question; other libraries only for float64 scores."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=n)
    scores = (0.5 * y + rng.normal(size=n)).astype(dtype)
    grades, classes = np.digitize(y, [-1.0, -0.3, 0.3, 1.0]), (y > 0.0).astype(np.float32)
    times, censored = rng.exponential(np.exp(-y)), rng.exponential(2.0, n)
    events = times <= censored
    times = np.minimum(times, censored)
    found: dict[str, Callable[[], object]] = {
        "two classes": lambda: ep.pair_loss_and_grad(scores, classes),
        "five grades": lambda: ep.pair_loss_and_grad(scores, grades, pairs="ordered"),
        "all targets distinct": lambda: ep.pair_loss_and_grad(scores, y, pairs="ordered"),
        "concordance": lambda: ep.auc(scores, y, pairs="ordered"),
        "survival": lambda: ep.pair_loss_and_grad(scores, (times, events), pairs="survival"),
        "survival concordance": lambda: ep.auc(scores, (times, events), pairs="survival"),
    }
    if dtype == "float64":
        from lifelines.utils import concordance_index
        from scipy.stats import kendalltau
        from sksurv.metrics import concordance_index_censored

        found["scipy.stats.kendalltau"] = lambda: kendalltau(scores, y)
        found["lifelines"] = lambda: concordance_index(times, -scores, events)
        found["scikit-survival"] = lambda: concordance_index_censored(events, times, scores)
    return found


def measure(isa: str, sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    """Yield the times of all questions on one thread with this instruction set."""
    ep.set_num_threads(1)
    for n in sizes:
        for dtype in ("float64", "float32"):
            print(f"{isa}, {n:,} rows, {dtype}", file=sys.stderr, flush=True)
            timed = {
                name: Timed(call)
                for name, call in calls(n, dtype).items()
                if name not in SLOW or (isa == "avx2" and n <= SLOW[name])
            }
            interleave(list(timed.values()), 11, seconds=0.3, fewest=1)
            for name, each in timed.items():
                cell = {"question": name, "n": n, "dtype": dtype, "threads": 1}
                yield {**cell, **quantiles(each.samples), **environment()}


def medians() -> dict[tuple[str, str, str, int], float]:
    """Return the median seconds of all rows, by instruction set, dtype, question and size."""
    import pandas as pd

    rows = pd.read_csv(FILE)
    return dict(rows.set_index(["isa", "dtype", "question", "n"])["median"].items())


def report() -> None:
    """Write the table of AVX2 and float64 to docs/performance.md."""
    seconds = medians()
    questions = dict.fromkeys(key[2] for key in seconds)
    body = []
    for question in questions:
        times = [seconds.get(("avx2", "float64", question, n)) for n in SIZES]
        body.append([question, *("" if s is None else duration(s) for s in times)])
    table = markdown(["", *(f"{n:,}" for n in SIZES)], body)
    pages.fill([ROOT / "docs" / "performance.md"], {"ordered: times": table})


def check() -> None:
    """Compare the rows with the limits; exit with status 1 if one is exceeded."""
    seconds = medians()
    failed = False
    for isa, dtype in sorted({key[:2] for key in seconds if key[0] != "baseline"}):
        of = {key[2:]: found for key, found in seconds.items() if key[:2] == (isa, dtype)}
        lines = [(key, "seconds", of[key], limit) for key, limit in SECONDS.items()]
        for (question, peer, n), limit in RATIOS.items():
            if (peer, n) in of:
                ratio = of[question, n] / of[peer, n]
                lines.append(((question, n), f"times {peer}", ratio, limit))
        for (question, n), unit, found, limit in lines:
            verdict = "too slow" if found > limit else "ok"
            failed |= found > limit
            cell = f"{isa}, {dtype}, {question}, {n:,} rows"
            print(f"{cell}: {found:.3g} {unit}, at most {limit}: {verdict}")
    raise SystemExit(failed)


def main() -> None:
    command_line(
        "benchmarks.ordered", __doc__.splitlines()[0], isas=instruction_sets(), sizes=SIZES,
        file=FILE, measure=measure, report=report, check=check,
    )  # fmt: skip


if __name__ == "__main__":
    main()

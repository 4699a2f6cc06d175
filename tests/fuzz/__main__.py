"""Compare random batches with exact arithmetic, on every instruction set and backend of the CPU.

python -m tests.fuzz --batches 100000 --seed 0 [--isa avx2] [--minutes 10]
python -m tests.fuzz --seed 0 --first 1234 --batches 1        draw one batch again
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.instruction_sets import instruction_sets

from . import checks
from .batches import Batch
from .variants import draw_varied

console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
MOST_SHOWN = 40


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=10_000, help="how many batches (10000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all batches (0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first batch (0)")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument(
        "--isa", nargs="*", choices=instruction_sets(), help="only these instruction sets"
    )
    parser.add_argument(
        "--others", type=float, default=0.1, help="share of batches on NumPy and on torch (0.1)"
    )
    parser.add_argument(
        "--large", type=float, default=0.01, help="share of batches over 1,500 rows (0.01)"
    )
    parser.add_argument(
        "--varied",
        type=float,
        default=0.1,
        help="share of batches with other targets, smooth surrogates or the largest floats (0.1)",
    )
    parser.add_argument("--log", type=Path, help="append all failures to this file")
    return parser.parse_args(given)


def backends_for(number: int, isas: list[str], others: float) -> dict[str, Callable]:
    """Return the backends of a batch: all instruction sets, and in turn one of the others."""
    found = {isa: checks.native(isa) for isa in isas}
    every = round(1 / others) if others else 0
    if every and number % every == 0:
        more = {
            "numpy": checks.on_numpy,
            "operations": checks.on_torch_operations,
            "torch": checks.on_torch,
        }
        name = list(more)[number // every % 3]
        found[name] = more[name]
    return found


def describe(batch: Batch) -> str:
    return (
        f"n {batch.scores.size}, {batch.positive.sum()} positives, {batch.scores.dtype}, "
        f"{batch.surrogate.name}, margin {batch.margin:g}, {batch.reduction}, {batch.kind}"
    )


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    isas = instruction_sets() if options.isa is None else options.isa
    worst: dict[tuple[str, str, str], float] = defaultdict(float)
    failures: Counter[str] = Counter()
    started, done = time.monotonic(), 0
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("batches", total=options.batches)
        for number in range(options.first, options.first + options.batches):
            batch = draw_varied(options.seed, number, options.large, options.varied)
            backends = backends_for(number, isas, options.others)
            found: dict[str, list[str]] = defaultdict(list)
            for backend, checked in checks.check(batch, backends):
                key = (backend, str(batch.scores.dtype), checked.quantity)
                worst[key] = max(worst[key], checked.error)
                if not checked.error <= 1.0:
                    found[f"{checked.quantity}: {checked.note}"].append(
                        f"{backend} {checked.error:.3g}"
                    )
            for text, where in found.items():
                failures[text.split(":")[0]] += 1
                line = f"batch {number} ({describe(batch)}): {', '.join(where)}: {text}"
                if options.log:
                    with options.log.open("a") as log:
                        log.write(line + "\n")
                if failures.total() <= MOST_SHOWN:
                    console.print(line, markup=False)
            done += 1
            bar.advance(task)
            if options.minutes and time.monotonic() - started > 60 * options.minutes:
                break
    show(worst)
    console.print(
        f"{done} batches from {options.first} of seed {options.seed} in "
        f"{time.monotonic() - started:.0f} s; {failures.total()} failures."
    )
    return 1 if failures else 0


def show(worst: dict[tuple[str, str, str], float]) -> None:
    """Print the largest error of each result, as a share of the allowed one."""
    columns = sorted({key[:2] for key in worst}, key=str)
    table = Table("largest error / allowed", box=None)
    for backend, dtype in columns:
        table.add_column(f"{backend} {dtype}", justify="right")
    for quantity in sorted({key[2] for key in worst}):
        cells = [worst.get((*column, quantity)) for column in columns]
        table.add_row(quantity, *("" if cell is None else f"{cell:.2g}" for cell in cells))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())

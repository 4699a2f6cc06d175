"""Run the benchmarks, make plots and tables from their rows, or compare the rows with the limits.

python -m benchmarks run [--suite NAME ...] [--quick] [--max-n N] [--repeats K]
python -m benchmarks run --suite kernel [--isa NAME ...] [--only QUESTION ...] [--sizes N ...]
python -m benchmarks report      make the plot and the tables from the rows
python -m benchmarks check       compare the rows with the limits; exit code 1 if one is exceeded
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import accuracy, bars, footprint, harness, kernel, rows
from benchmarks.instruction_sets import instruction_sets
from benchmarks.rows import ROWS, SCRATCH, KernelRow, Row
from benchmarks.suites import TIMED

Measure = Callable[[harness.Settings, Callable[[str], None]], Iterable[Row | KernelRow]]

console = Console(width=None if sys.stdout.isatty() else 120)


def timing(suite: harness.Suite) -> Measure:
    return lambda settings, advance: harness.run(suite, settings, advance)


MEASURES: dict[str, Measure] = {
    "kernel": kernel.run,
    **{suite.name: timing(suite) for suite in TIMED},
    "accuracy": accuracy.run,
    "memory": footprint.memory,
    "import": footprint.imports,
    "wheel": footprint.wheel,
}


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure and write rows")
    run.add_argument(
        "--suite", action="append", choices=MEASURES, help="run only this one; repeatable"
    )
    run.add_argument("--quick", action="store_true", help="smoke test: n up to 1e5, 7 repeats")
    run.add_argument("--max-n", type=float, default=1e7, help="largest batch size (1e7)")
    run.add_argument("--repeats", type=int, default=51, help="samples per contender (51)")
    run.add_argument("--output", type=Path, help="folder for the rows")
    ours = run.add_argument_group("options of the kernel suite")
    ours.add_argument(
        "--isa", nargs="+", choices=instruction_sets(), help="only these instruction sets"
    )
    ours.add_argument("--only", nargs="+", choices=kernel.QUESTIONS, help="only these questions")
    ours.add_argument("--sizes", nargs="+", type=float, help="these batch sizes")
    for name, text in (
        ("report", "make the plot and the tables"),
        ("check", "compare the rows with the limits"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--rows", type=Path, default=ROWS, help="folder of the rows")
    return parser.parse_args(given)


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Show the number of finished suites and the current cell, on a terminal only."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        bar.add_task("", total=total)
        yield bar


def run(options: argparse.Namespace) -> int:
    settings = harness.Settings(
        max_n=min(int(options.max_n), 10**5) if options.quick else int(options.max_n),
        repeats=min(options.repeats, 7) if options.quick else options.repeats,
        sizes=tuple(map(int, options.sizes or ())),
        only=tuple(options.only or ()),
        isas=tuple(options.isa or ()),
    )
    # The committed rows come from complete runs; those of shortened runs go to another folder. Each
    # instruction set has its own file, so that a run of one of them is complete.
    complete = replace(settings, isas=()) == harness.Settings()
    folder = options.output or (ROWS if complete else SCRATCH)
    if (load := os.getloadavg()[0]) > 0.5:
        console.print(
            f"Warning: the machine is busy (load {load:.1f}), so the times are not reliable."
        )
    chosen = options.suite or list(MEASURES)
    with progress(len(chosen)) as bar:
        (task,) = bar.task_ids
        for suite in chosen:

            def advance(cell: str, suite: str = suite) -> None:
                bar.update(task, description=f"{suite}: {cell}")

            measured = MEASURES[suite](settings, advance)
            for path, count in rows.write_as_they_come(measured, folder).items():
                console.print(f"wrote {count} rows to {path}", highlight=False)
            bar.advance(task)
    return 0


def report(options: argparse.Namespace) -> int:
    from benchmarks import plot, tables

    measured, of_kernel = rows.read(options.rows), rows.read_kernel(options.rows)
    for path in (
        *plot.draw(measured),
        *plot.draw_kernel(of_kernel),
        *tables.fill(measured, of_kernel),
    ):
        console.print(f"wrote {path}", highlight=False)
    return 0


def check(options: argparse.Namespace) -> int:
    table = Table("limit", box=None)
    for heading in ("at most", "measured", "p20", "margin", ""):
        table.add_column(heading, justify="right")
    verdicts = [
        *bars.kernel_verdicts(rows.read_kernel(options.rows)),
        *bars.verdicts(rows.read(options.rows)),
    ]
    for verdict in verdicts:
        numbers = (verdict.limit, verdict.measured, verdict.measured_p20, verdict.margin)
        cells = ["-" if number is None else f"{number:.3g}" for number in numbers]
        table.add_row(verdict.bar, *cells, verdict.word)
    console.print(table)
    words = Counter(verdict.word for verdict in verdicts)
    console.print(", ".join(f"{count} {word}" for word, count in words.items()), highlight=False)
    return 0 if set(words) == {"pass"} else 1


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    return {"run": run, "report": report, "check": check}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())

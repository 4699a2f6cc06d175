"""Measure in processes that are limited to one instruction set each."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__ as numpy_features

from benchmarks.rows import ROOT, write_csv
from everypair.kernel import choose


def instruction_sets() -> list[str]:
    """Return the instruction sets that this machine can run, the oldest first."""
    return choose.native.kernel.isas() if choose.native.kernel is not None else []


def variables(isa: str) -> dict[str, str]:
    """Return the environment variables that limit torch and NumPy to an instruction set."""
    if isa == "baseline":
        return {
            "ATEN_CPU_CAPABILITY": "default",
            "NPY_DISABLE_CPU_FEATURES": " ".join(numpy_features),
        }
    if isa == "avx2":
        newer = [name for name in numpy_features if name.startswith(("AVX512", "X86_V4"))]
        return {"ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": " ".join(newer)}
    return {}


def command_line(
    module: str,
    description: str,
    *,
    isas: Iterable[str],
    sizes: Sequence[int],
    file: Path,
    measure: Callable[[str, Sequence[int]], Iterator[dict[str, object]]],
    report: Callable[[], None],
    check: Callable[[], None],
) -> None:
    """Run the command ``time``, ``report`` or ``check`` of a module.

    ``time`` starts the module again for each instruction set, with the command ``measure``, which
    prints the rows that ``measure(isa, sizes)`` yields.
    """
    parser = argparse.ArgumentParser(f"python -m {module}", description=description)
    parser.add_argument("command", choices=["time", "report", "check", "measure"])
    parser.add_argument("--isa", help="Instruction set of the command measure.")
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="Numbers of rows.")
    parser.add_argument("--out", type=Path, default=file, help="File of time.")
    given = parser.parse_args()
    if given.command == "report":
        report()
    elif given.command == "check":
        check()
    elif given.command == "measure":
        from everypair import _native

        _native.use_isa(given.isa)
        for row in measure(given.isa, given.sizes):
            print(json.dumps({**row, "isa": given.isa}), flush=True)
    else:
        rows: list[dict[str, object]] = []
        for isa in isas:
            command = [sys.executable, "-m", module, "measure", "--isa", isa, "--sizes"]
            made = subprocess.run(
                [*command, *map(str, given.sizes)], cwd=ROOT, env={**os.environ, **variables(isa)},
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            rows += [json.loads(line) for line in made.stdout.splitlines()]
            write_csv(rows, given.out)

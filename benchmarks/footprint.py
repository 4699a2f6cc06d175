"""Measure working memory, import time and size of the wheel.

Memory and import time are measured in new interpreters that run the programs below.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.contenders import NATIVE, NUMPY, Contender, has_native
from benchmarks.harness import Settings, powers_of_ten
from benchmarks.inputs import batch
from benchmarks.rows import ROOT, Row, constant, quantiles, row

# Inputs are read from files, so that creating them does not raise the peak of resident memory.
MEMORY_PROBE = r"""
import re, sys
import numpy as np
import everypair as ep

def kilobytes(field):
    return int(re.search(field + r":\s+(\d+)", open("/proc/self/status").read())[1])

folder, dtype, surrogate, margin = sys.argv[1:]
scores = np.fromfile(folder + "/scores", dtype)
labels = np.fromfile(folder + "/labels", "float32")
ep.set_num_threads(2)
ep.pair_loss_and_grad(scores[:1000], labels[:1000], surrogate=surrogate)
before = kilobytes("VmRSS")
loss, grad = ep.pair_loss_and_grad(scores, labels, surrogate=surrogate, margin=float(margin))
peak = kilobytes("VmHWM")
print(((peak - before) * 1024 - grad.nbytes) / scores.size)
"""

IMPORT_PROBE = """
import sys, time
before = set(sys.modules)
start = time.perf_counter()
import everypair
seconds = time.perf_counter() - start
ours = {"everypair", "numpy", *sys.stdlib_module_names}
foreign = {name.partition(".")[0] for name in set(sys.modules) - before} - ours
print(seconds, len(foreign))
"""

MEMORY_CASES = (  # positives, dtype, shape of the scores, contender
    (0.5, "float32", "normal", NATIVE),
    (0.001, "float32", "normal", NATIVE),
    (0.5, "float64", "normal", NATIVE),
    (0.5, "float32", "saturated sigmoid", NATIVE),
    (0.5, "float32", "ties on a grid", NATIVE),
    (0.5, "float32", "Cauchy", NATIVE),
    (0.5, "float32", "thirty decades", NATIVE),
    (0.5, "float32", "normal", Contender(NATIVE.backend, "square")),
    (0.5, "float32", "normal", Contender(NATIVE.backend, "linear_hinge")),
    (0.5, "float32", "normal", Contender(NATIVE.backend, "huber_hinge")),
    (0.5, "float64", "normal", Contender(NATIVE.backend, "huber_hinge")),
    (0.5, "float32", "normal", NUMPY),
)


def printed_by(program: str, *arguments: object, **variables: str) -> list[float]:
    """Run a program in a new interpreter and return the numbers that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [float(word) for word in done.stdout.split()]


def memory(settings: Settings, advance: Callable[[str], None]) -> list[Row]:
    """Measure the peak of resident memory during the first large call, without its result."""
    rows = []
    for n in powers_of_ten(6, 7):
        for positives, dtype, shape, contender in MEMORY_CASES:
            if n > settings.max_n or (contender.backend == NATIVE.backend and not has_native()):
                continue
            advance(f"n {n}, {dtype}, {shape}, {contender.surrogate}, {contender.backend}")
            data = batch(n, positives, dtype, shape)
            with tempfile.TemporaryDirectory() as folder:
                data.scores.tofile(f"{folder}/scores")
                data.labels.tofile(f"{folder}/labels")
                (bytes_per_row,) = printed_by(
                    MEMORY_PROBE,
                    folder,
                    dtype,
                    contender.surrogate,
                    data.margin,
                    EVERYPAIR_BACKEND="numpy" if contender == NUMPY else "native",
                )
            rows.append(
                row(
                    suite="memory",
                    n=n,
                    positives=positives,
                    threads=2,
                    dtype=dtype,
                    input=shape,
                    **contender._asdict(),
                    quantity="bytes per row",
                    **constant(bytes_per_row),
                )
            )
    return rows


def imports(settings: Settings, advance: Callable[[str], None]) -> list[Row]:
    """Measure the seconds of an import, and count the imported packages other than numpy."""
    advance("import everypair")
    repeats = max(5, min(settings.repeats, 15))
    seconds, foreign = np.transpose([printed_by(IMPORT_PROBE) for _ in range(repeats)])
    measured = {
        "import seconds": quantiles(seconds),
        "foreign packages": constant(foreign.max()),
    }
    return [
        row(suite="import", backend=NATIVE.backend, quantity=name, repeats=repeats, **value)
        for name, value in measured.items()
    ]


def wheel(settings: Settings, advance: Callable[[str], None]) -> list[Row]:
    """Measure the size of the wheel that pip builds from this checkout."""
    advance("pip wheel")
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-build-isolation", "-w", folder, str(ROOT)], check=True)
        (built,) = Path(folder).glob("*.whl")
        size = built.stat().st_size
    return [
        row(suite="wheel", backend=NATIVE.backend, quantity="wheel bytes", **constant(float(size)))
    ]

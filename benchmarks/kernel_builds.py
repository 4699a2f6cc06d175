"""Time builds of the kernel by several compilers against each other.

    python -m benchmarks.kernel_builds g++ clang++-19
    python -m benchmarks.kernel_builds g++ new=build/new/_native.so --isa avx2 --sizes 3700 62000

An argument is a compiler, which builds the kernel into build/kernels/, or a name and the file of a
built kernel. The first one is the reference. Every build has a process of its own for each
instruction set. All processes take the samples of one question and one size in turn, on one thread.
Prints the largest ratios of each build, and writes all of them to a file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import rows
from benchmarks.rows import ROOT, ROWS, write_csv

# Between powers of ten, and around the sizes where the kernel changes its plan.
SIZES = (150, 700, 2_500, 8_000, 23_000, 70_000, 300_000)
ORDERED_SIZES = (700, 23_000, 300_000)
SHARE = 0.2  # of positives
SAMPLES = 15
SECONDS_OF_A_SAMPLE = 2e-3
COLUMNS = ("question", "n", "isa", "build", "seconds", "ratio", "machine", "commit", "date")


def build(compiler: str) -> str:
    """Compile the kernel with this compiler; return the file."""
    folder = ROOT / "build" / "kernels" / compiler
    tools = Path(sys.executable).parent
    subprocess.run(
        [
            tools / "cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "--log-level=WARNING",
            f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DCMAKE_CXX_COMPILER={compiler}",
            f"-DPython_EXECUTABLE={sys.executable}", "-DEVERYPAIR_NATIVE=ON",
        ],
        check=True,
    )  # fmt: skip
    subprocess.run([tools / "cmake", "--build", folder], check=True)
    return str(next(folder.glob("_native*.so")))


def calls(n: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the questions of this size and the calls that ask them."""
    from benchmarks import kernel, ordered
    from benchmarks.inputs import batch

    for name, question in kernel.QUESTIONS.items():
        if name != "PairLoss":
            yield name, question(batch(n, SHARE))
    for shape in ("saturated sigmoid", "Cauchy", "separated classes"):
        yield shape, kernel.surrogate("squared_hinge")(batch(n, SHARE, shape=shape))
    if n in ORDERED_SIZES:
        for name, call in ordered.calls(n, "float32").items():
            if name != "two classes":
                yield name, call


def serve(isa: str, file: str) -> None:
    """Load a build of the kernel, and take samples of the calls that the standard input names."""
    spec = importlib.util.spec_from_file_location("everypair._native", file)
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    sys.modules["everypair._native"] = native

    import everypair as ep
    from benchmarks.harness import Timed

    assert ep.get_backend().startswith("native"), ep.get_backend()
    native.use_isa(isa)
    ep.set_num_threads(1)
    timed: dict[str, Timed] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "n" in request:
            timed = {k: Timed(call, SECONDS_OF_A_SAMPLE) for k, call in calls(request["n"])}
            print(json.dumps(list(timed)), flush=True)
        else:
            call = timed[request["question"]]
            if not call.spent:  # the first calls are slower
                call.inner = max(
                    1, min(1000, round(SECONDS_OF_A_SAMPLE / min(call.once(), call.once())))
                )
            print(call.once(), flush=True)


def ask(child: subprocess.Popen, **request: object) -> object:
    child.stdin.write(json.dumps(request) + "\n")
    child.stdin.flush()
    return json.loads(child.stdout.readline())


def measure(
    isa: str, files: dict[str, str], sizes: list[int], only: list[str]
) -> Iterator[dict[str, object]]:
    """Yield the seconds of every build, and those relative to the first one."""
    command = [sys.executable, "-m", "benchmarks.kernel_builds", "--serve", isa]
    children = {
        name: subprocess.Popen(
            [*command, file], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name, file in files.items()
    }
    order = random.Random(0)
    for n in sizes:
        for child in children.values():
            questions = ask(child, n=n)
        for question in questions:
            if only and question not in only:
                continue
            samples: dict[str, list[float]] = {name: [] for name in children}
            for _ in range(SAMPLES):
                for name in order.sample(list(children), len(children)):
                    samples[name].append(ask(children[name], question=question))
            seconds = {name: float(np.quantile(each, 0.25)) for name, each in samples.items()}
            reference = next(iter(seconds.values()))
            for name, own in seconds.items():
                yield {
                    "question": question, "n": n, "isa": isa, "build": name,
                    "seconds": f"{own:.4g}", "ratio": round(own / reference, 3),
                }  # fmt: skip
    for child in children.values():
        child.stdin.close()
        child.wait()


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.kernel_builds", description=__doc__)
    parser.add_argument("builds", nargs="*", help="Compilers, or NAME=FILE; the reference first.")
    parser.add_argument("--isa", nargs="+", help="Instruction sets (all of this machine).")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="Numbers of rows.")
    parser.add_argument("--only", nargs="+", default=[], help="Questions.")
    parser.add_argument("--out", type=Path, default=ROWS / "builds" / "time.csv")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    from benchmarks.instruction_sets import instruction_sets

    environment = rows.environment()
    named = [each.partition("=")[::2] for each in given.builds]
    files = {name: str(Path(file).resolve()) if file else build(name) for name, file in named}
    found: list[dict[str, object]] = []
    for isa in given.isa or instruction_sets():
        for row in measure(isa, files, list(given.sizes), given.only):
            found.append({key: {**environment, **row}[key] for key in COLUMNS})
            if row["build"] != next(iter(files)):
                print(
                    f"{isa:9s} {row['n']:>9,} {row['question']:22s} {row['build']:12s}"
                    f" {1e6 * float(row['seconds']):12.1f} us {row['ratio']:6.2f}",
                    flush=True,
                )
        write_csv(found, given.out)
    for name in list(files)[1:]:
        own = sorted((r for r in found if r["build"] == name), key=lambda r: -r["ratio"])
        print(f"\n{name}: median {np.median([r['ratio'] for r in own]):.2f}; the largest ratios:")
        for r in own[:25]:
            print(f"  {r['ratio']:.2f}  {r['isa']}, {r['n']:,} rows, {r['question']}")


if __name__ == "__main__":
    main()

"""Build and run the test of the kernel with every compiler, level and instruction set.

    python3 tests/native/compilers.py                                  # all compilers on PATH
    python3 tests/native/compilers.py g++-13 clang++-19 --levels=-O3   # some of them

One line for each program: the result, the warnings of -Wall -Wextra, the seconds to compile it,
and its size. The exit status is 1 if a program fails. Compilers that are missing are listed. Needs
Python 3.10, but no package and no CMake. EVERYPAIR_KERNEL_TEST_STRIDE=k tests one batch in k.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPILERS = [f"g++-{v}" for v in range(11, 17)] + [f"clang++-{v}" for v in range(14, 23)]
LEVELS = ("-O2", "-O3")
SKIPPED = 77  # the exit status of a test whose instructions the processor lacks


def options() -> tuple[list[str], dict[str, list[str]]]:
    """Return the options of all files, and those of each instruction set, from CMakeLists.txt."""
    text = (ROOT / "CMakeLists.txt").read_text()
    common = re.search(r"set\(arithmetic (.*?)\)", text, re.DOTALL)
    sets = re.findall(r"^ *everypair_kernels\(\s*(\w+)([^)]*)\)", text, re.MULTILINE)
    assert common
    assert sets
    if platform.machine().lower() not in ("x86_64", "amd64"):
        sets = [(name, flags) for name, flags in sets if not flags.strip()]
    return common[1].split(), {name: flags.split() for name, flags in sets}


def version(compiler: str) -> str | None:
    """Return the first line of ``--version`` without the name of the program, if it runs."""
    try:
        output = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return re.sub(r"^\S*(g\+\+|gcc)\S* ", "GCC ", output.stdout.split("\n")[0])


def find_compilers() -> dict[str, str]:
    """Return the version of each compiler on PATH; plain names only with versions of their own."""
    found: dict[str, str] = {}
    for name in [*COMPILERS, "g++", "clang++", "c++"]:
        if shutil.which(name) and (text := version(name)) and text not in found.values():
            found[name] = text
    return found


def build(compiler: str, level: str, isa: str, program: Path) -> str:
    """Compile and link the test; return the compiler's messages. Raises CalledProcessError."""
    common, sets = options()
    flags = [compiler, "-std=c++20", level, "-DNDEBUG", "-Wall", "-Wextra", "-pthread"]
    flags += [*common, f"-DEVERYPAIR_ISA={isa}"]
    # std::stable_sort of libstdc++ 12 calls a deprecated function,
    # and a loop that is not vectorised is slower, but right.
    flags += ["-Wno-deprecated-declarations", "-Wno-pass-failed"]
    messages, objects = "", []
    for source in ("src/native/kernels.cpp", "src/native/pool.cpp", "tests/native/kernel_test.cpp"):
        objects.append(str(program) + f".{Path(source).stem}.o")
        own = sets[isa] if source.endswith("kernels.cpp") else []
        command = [*flags, *own, "-c", str(ROOT / source), "-o", objects[-1]]
        messages += subprocess.run(command, capture_output=True, text=True, check=True).stderr
    subprocess.run(
        [*flags, *objects, "-o", str(program)], capture_output=True, text=True, check=True
    )
    return messages


def test(compiler: str, level: str, isa: str, folder: Path) -> bool:
    """Build and run one program and print its line. Returns whether it passed or was skipped."""
    program = folder / f"{compiler.replace('/', '_')}{level}-{isa}"
    begin = time.monotonic()
    passed, messages, size = False, "", ""
    try:
        messages = build(compiler, level, isa, program)
        seconds = time.monotonic() - begin
        size = f"{program.stat().st_size / 1e6:.1f} MB"
        run = subprocess.run([program], capture_output=True, text=True, check=False)
        passed = run.returncode in (0, SKIPPED)
        result = {0: "passed", SKIPPED: "not run"}.get(run.returncode, f"FAILED ({run.returncode})")
        details = "" if passed else run.stdout[-2000:] + run.stderr[-2000:]
    except subprocess.CalledProcessError as error:
        seconds = time.monotonic() - begin
        result, details = "NO BUILD", error.stderr[:4000]
    warnings = len(re.findall(r"\bwarning: ", messages))
    print(
        f"{compiler:12} {level:5} {isa:9} {result:12} {warnings:8} {seconds:7.0f} s {size:>8}",
        flush=True,
    )
    if details or warnings:
        print(details or messages[:4000], flush=True)
    return passed


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("compilers", nargs="*", help="default: all that are found")
    parser.add_argument("--levels", default=" ".join(LEVELS), help="such as --levels='-O2 -O3'")
    parser.add_argument("--sets", default=" ".join(options()[1]), help="such as 'baseline avx2'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="programs at a time")
    arguments = parser.parse_args()
    sets = options()[1]
    chosen = [name for name in arguments.sets.split() if name in sets]
    if not chosen:
        parser.error(f"SETS must be of {', '.join(sets)} on this machine; got {arguments.sets!r}")
    found = find_compilers()
    if arguments.compilers:
        found = {name: text for name in arguments.compilers if (text := version(name))}
    missing = [name for name in arguments.compilers or COMPILERS if name not in found]
    for name, text in found.items():
        print(f"{name:12} {text}")
    if missing:
        print(f"not found: {', '.join(missing)}")
    print(f"\n{'compiler':12} level set       result       warnings compiled     size", flush=True)
    cases = [(c, level, s) for c in found for level in arguments.levels.split() for s in chosen]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda case: test(*case, Path(folder)), cases))
    print(f"\n{results.count(True)} of {len(results)} programs passed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

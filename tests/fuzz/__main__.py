"""Compare random batches with exact arithmetic, on every instruction set and backend of the CPU.

python -m tests.fuzz --batches 100000 --seed 0 [--minutes 10]
python -m tests.fuzz --seed 0 --first 1234 --batches 1        draw one batch again
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict

from benchmarks.instruction_sets import instruction_sets

from . import checks
from .variants import draw_varied

OPTIONS = {
    "batches": (10_000, "how many batches"),
    "seed": (0, "seed of all batches"),
    "first": (0, "number of the first batch"),
    "minutes": (float("inf"), "stop after this time"),
    "others": (0.1, "share of batches on NumPy and on torch"),
    "large": (0.01, "share of batches over 1,500 rows"),
    "varied": (0.1, "share with other targets, smooth surrogates or the largest floats"),
}


def arguments(given):
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.split("\n")[0])
    for name, (default, text) in OPTIONS.items():
        parser.add_argument(
            f"--{name}", type=type(default), default=default, help=f"{text} ({default})"
        )
    return parser.parse_args(given)


def backends_for(number, others):
    """Return the backends of a batch: all instruction sets, and in turn one of the others."""
    backends = {isa: checks.native(isa) for isa in instruction_sets()}
    every = round(1 / others) if others else 0
    if every and number % every == 0:
        name = list(checks.OTHERS)[number // every % len(checks.OTHERS)]
        backends[name] = checks.OTHERS[name]
    return backends


def describe(batch):
    return (
        f"n {batch.scores.size}, {batch.positive.sum()} positives, {batch.scores.dtype}, "
        f"{batch.surrogate.name}, margin {batch.margin:g}, {batch.reduction}, {batch.kind}"
    )


def main(given=None):
    options = arguments(given)
    worst = defaultdict(float)
    failures = done = 0
    started = time.monotonic()
    for number in range(options.first, options.first + options.batches):
        batch = draw_varied(options.seed, number, options.large, options.varied)
        for backend, checked in checks.check(batch, backends_for(number, options.others)):
            key = (checked.quantity, backend, str(batch.scores.dtype))
            worst[key] = max(worst[key], checked.error)
            if not checked.error <= 1.0:
                failures += 1
                sys.stdout.write(f"batch {number} ({describe(batch)}): {backend} {checked}" + "\n")
        done += 1
        if time.monotonic() - started > 60 * options.minutes:
            break
    lines = ["the largest error of each result, as a share of the allowed one:"]
    lines += [f"{error:10.2g}  {' '.join(key)}" for key, error in sorted(worst.items())]
    lines += [f"{done} batches from {options.first} of seed {options.seed}; {failures} failures."]
    sys.stdout.write("\n".join([*lines, ""]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

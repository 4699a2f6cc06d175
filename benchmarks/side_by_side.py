"""Throughput of trials that are trained side by side on a GPU.

python -m benchmarks.side_by_side [--variants NAME ...] [--together 8 16] [--rows FILE]

ResNet20 is trained on colour images of noise, 32 x 32 like those of CIFAR10 (the time does not
depend on the images), at imratio 0.1 with batches of 100, and half as many rows as in CIFAR10.
Times are those of additional epochs. A trial of 40 epochs also has its share of the time before the
steady state: data, warm-up, capture and compilation.

Variants: float32 (all rows of subtrain are measured), bf16 (a sample of 1,000), compiled (bf16 and
torch.compile). "before" is float32 on a version without these settings: run this file with that
version's src folder on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.rows import write_csv
from everypair.experiments.data import splits
from everypair.experiments.data.sources import Dataset
from everypair.experiments.plan import Cell, Settings, Trial
from everypair.experiments.training import measuring, side_by_side

BATCH, EPOCHS = 100, 40
SHORT, LONG = 3, 6  # epochs of the two runs whose difference is timed
IMAGES = (25_000, 5_000)  # for training and test, before positives are removed
SAMPLE = 1_000  # the same share of subtrain as in studies.images
IS_NEW = "precision" in {field.name for field in fields(Settings)}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "float32": ({}, {}),
    "bf16": ({"precision": "bf16", "subtrain_sample": SAMPLE}, {}),
    "compiled": ({"precision": "bf16", "subtrain_sample": SAMPLE}, {"compiled": True}),
}
"""By name: settings, and options of `train_together`."""


def noise(n_train: int, n_test: int) -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(n_train + n_test, 3, 32, 32), dtype=np.uint8)
    positive = np.arange(n_train + n_test) % 2 == 0
    return Dataset(
        name="noise",
        inputs=images[:n_train],
        positive=positive[:n_train],
        test_inputs=images[n_train:],
        test_positive=positive[n_train:],
        photographs=True,
    )


def trials(loss: str, n: int) -> list[Trial]:
    """Return trials with two rates for each seed, as in the study. A seed has its own batches."""
    rates = np.geomspace(1e-3, 1e-2, n).tolist()
    cells = [Cell("noise", 0.1, loss, "sgd", seed=k // 2) for k in range(n)]
    return [Trial(cell, BATCH, rate) for cell, rate in zip(cells, rates, strict=True)]


@contextmanager
def timed(owner: type, name: str) -> Iterator[list[float]]:
    """Collect the seconds of each call of a method. It waits for the device before and after."""
    spent: list[float] = []
    original = getattr(owner, name)

    def wrapped(*given: Any, **options: Any) -> Any:
        torch.cuda.synchronize()
        start = time.perf_counter()
        found = original(*given, **options)
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
        return found

    setattr(owner, name, wrapped)
    try:
        yield spent
    finally:
        setattr(owner, name, original)


def measuring_share(loss: str, together: int, split: splits.Split, variant: str) -> float:
    """Return the share of measuring in the time of an epoch, from medians over epochs.

    Steps and measuring are timed in the same run, because runs differ by the load of the host. The
    first two epochs (warm-up, capture) and the last (all rows of subtrain) do not count.
    """
    owner = side_by_side._Together
    with timed(owner, "measure") as measure, timed(owner, "steps") as steps:
        seconds(LONG, loss, together, split, variant)
    one = median(measure[2:-1])  # the first is before the first epoch
    return one / (one + median(steps[1:-1]))


def seconds(epochs: int, loss: str, together: int, split: splits.Split, variant: str) -> float:
    """Return the time in which all trials are trained."""
    given, options = VARIANTS[variant if IS_NEW else "float32"]
    settings = Settings(model="resnet20", epochs=epochs, **given)
    torch.cuda.synchronize()
    start = time.perf_counter()
    side_by_side.train_together(
        trials(loss, together), settings, [split] * together, device="cuda", **options
    )
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measured_row(variant: str, loss: str, together: int, split: splits.Split) -> dict[str, Any]:
    """Time a variant."""
    steps = -(-len(split.subtrain) // BATCH)
    first = seconds(SHORT, loss, together, split, variant)
    short = seconds(SHORT, loss, together, split, variant)
    epoch = (seconds(LONG, loss, together, split, variant) - short) / (LONG - SHORT)
    if IS_NEW:
        share = measuring_share(loss, together, split, variant)
    else:
        with timed(measuring.Measuring, "__call__") as spent:
            seconds(SHORT, loss, together, split, variant)
        share = sum(spent) / (SHORT + 1) / epoch
    whole = 2 * epoch * (EPOCHS - SHORT) + first  # CIFAR10 has twice the rows
    return {
        "variant": variant,
        "loss": loss,
        "together": together,
        "milliseconds_a_step": round(1e3 * epoch / steps / together, 4),
        "steps_a_second": round(steps * together / epoch, 1),
        "measuring_share": round(share, 3),
        "seconds_before_steady": round(first - SHORT * epoch, 2),
        "trials_an_hour": round(3600 * together / whole, 1),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def _others(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that were not measured again."""
    if not path.is_file():
        return []
    keys = {(row["variant"], row["loss"], row["together"]) for row in rows}
    with path.open() as file:
        old = list(csv.DictReader(file))
    return [row for row in old if (row["variant"], row["loss"], int(row["together"])) not in keys]


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.side_by_side")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS) if IS_NEW else ["before"])
    parser.add_argument("--losses", nargs="+", default=["squared_hinge"])
    parser.add_argument("--together", nargs="+", type=int, default=[8])
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/rows/gpu/throughput.csv"))
    given = parser.parse_args()
    data = noise(*IMAGES)
    split = splits.split(data, imratio=0.1, seed=0, protocol="corrected").to("cuda")
    rows = []
    for loss in given.losses:
        for variant in given.variants:
            for together in given.together:
                try:
                    rows.append(measured_row(variant, loss, together, split))
                except Exception as error:  # a compiler may be missing; the others still count
                    print(f"{variant}: {type(error).__name__}: {error}"[:2000], flush=True)
                    continue
                print(rows[-1], flush=True)
                write_csv([*_others(rows, given.rows), *rows], given.rows)


if __name__ == "__main__":
    main()

"""Time of a trial on a GPU, when trials run one after the other and when several run together.

python -m benchmarks.side_by_side [--rows FILE]

The trials train ResNet20 on 32 x 32 colour images of noise (the time does not depend on the
images), with batches of 50, the squared hinge and the logistic loss. The time includes the steps
and the computation of loss and AUC of all parts after every epoch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.rows import write_csv
from everypair.experiments.data import splits
from everypair.experiments.data.sources import Dataset
from everypair.experiments.plan import Cell, Settings, Trial
from everypair.experiments.training.side_by_side import train_together
from everypair.experiments.training.trial import train

TOGETHER = (4, 8, 16, 32)
BATCH = 50
SETTINGS = Settings(model="resnet20", epochs=3)
N_IMAGES = 12_000


def noise(n: int = N_IMAGES) -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(n, 3, 32, 32), dtype=np.uint8)
    positive = rng.random(n) < 0.5
    return Dataset(
        name="noise",
        inputs=images[: n // 2],
        positive=positive[: n // 2],
        test_inputs=images[n // 2 :],
        test_positive=positive[n // 2 :],
        photographs=True,
    )


def trials(loss: str, n: int) -> list[Trial]:
    rates = np.geomspace(1e-3, 1e-2, 8)
    return [
        Trial(Cell("noise", 0.1, loss, "sgd", i // 8), BATCH, float(rates[i % 8])) for i in range(n)
    ]


def seconds_a_trial(loss: str, together: int, split: splits.Split) -> float:
    chosen = trials(loss, max(together, 2))
    torch.cuda.synchronize()
    start = time.perf_counter()
    if together == 1:
        for trial in chosen:
            train(trial, SETTINGS, split, device="cuda")
    else:
        train_together(chosen, SETTINGS, [split] * together, device="cuda")
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(chosen)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.side_by_side")
    parser.add_argument("--rows", type=Path, default=Path("benchmarks/rows/gpu/side_by_side.csv"))
    rows_file = parser.parse_args().rows
    split = splits.split(noise(), imratio=0.1, seed=0, protocol="corrected").to("cuda")
    steps = -(-len(split.subtrain.labels) // BATCH) * SETTINGS.epochs
    rows = []
    for loss in ("squared_hinge", "logistic"):
        seconds_a_trial(loss, 1, split)  # warm-up
        alone = seconds_a_trial(loss, 1, split)
        for together in (1, *TOGETHER):
            seconds = alone if together == 1 else seconds_a_trial(loss, together, split)
            rows.append(
                {
                    "loss": loss,
                    "together": together,
                    "seconds_a_trial": round(seconds, 4),
                    "milliseconds_a_step": round(1e3 * seconds / steps, 4),
                    "trials_an_hour_ratio": round(alone / seconds, 2),
                    "gpu": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                }
            )
            print(rows[-1], flush=True)
    write_csv(rows, rows_file)


if __name__ == "__main__":
    main()

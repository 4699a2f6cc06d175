"""Measure AveragePrecisionLoss: its time, and what a small network learns with it.

    python -m benchmarks.average_precision time      # seconds, against the matrix of all pairs
    python -m benchmarks.average_precision train     # test average precision after each epoch
    python -m benchmarks.average_precision report    # plot and tables of the documentation

`train` needs the tables of EVERYPAIR_DATA. A network with two hidden layers of 64 units is trained
by Adam on 64 % of the rows; 16 % choose the learning rate and the epoch by average precision, and
20 % are the test set. Rows are written to benchmarks/rows/average_precision/.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import everypair as ep
from benchmarks import pages
from benchmarks.rows import ROOT, ROWS, environment, quantiles, write_csv
from benchmarks.tables import duration, markdown
from everypair.torch import AveragePrecisionLoss

FOLDER = ROWS / "average_precision"
PAGES = [ROOT / "docs" / "average-precision-or-auc.md"]
PLOT = ROOT / "docs" / "assets" / "average-precision.svg"
TABLES = ("mammography", "yeast_me2")
TEMPERATURE = 0.1
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
SEEDS = range(3)
BUDGETS = (20, 80)
BATCHES = {"512 rows": 512, "all rows": 1 << 30}
# Rows and positives. The matrix of the last one would have 1e10 entries.
SIZES = ((10_000, 100), (10_000, 1000), (1_000_000, 10_000))


def matrix_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return one minus Smooth-AP by the matrix of positives and rows."""
    rows = labels.nonzero().squeeze(1)
    above = torch.sigmoid((scores - scores[rows, None]) / TEMPERATURE)
    above = above * (torch.arange(len(scores)) != rows[:, None])
    return 1.0 - ((1.0 + (above * labels).sum(1)) / (1.0 + above.sum(1))).mean()


def times(n: int, n_pos: int) -> Iterator[dict[str, object]]:
    """Yield the seconds of one forward and backward on one thread."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randperm(n, generator=generator) < n_pos
    scores = (torch.randn(n, generator=generator) + labels).requires_grad_()
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "AveragePrecisionLoss": AveragePrecisionLoss(temperature=TEMPERATURE)
    }
    if n * n_pos <= 1e8:
        losses["matrix"] = matrix_loss
    for name, loss in losses.items():
        samples = []
        for _ in range(7 if n > 10_000 else 31):
            scores.grad = None
            start = time.perf_counter()
            loss(scores, labels).backward()
            samples.append(time.perf_counter() - start)
        # The first call prepares coefficients that are kept.
        yield {"loss": name, "n": n, "positives": n_pos, **quantiles(samples[1:])}


def split(name: str, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return training, validation and test rows, standardised by the training rows."""
    folder = os.environ.get("EVERYPAIR_DATA")
    if not folder:
        raise SystemExit("Set EVERYPAIR_DATA to the folder of the data sets.")
    table = pd.read_parquet(Path(folder) / "tabular" / f"{name}.parquet")
    X, y = table.drop(columns="label").to_numpy(np.float32), table["label"].to_numpy()
    rest, test = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=seed)
    train, valid = train_test_split(rest, test_size=0.2, stratify=y[rest], random_state=seed)
    centre, scale = X[train].mean(0), X[train].std(0)
    X = (X - centre) / np.where(scale > 0, scale, 1.0)
    return [(torch.tensor(X[rows]), torch.tensor(y[rows])) for rows in (train, valid, test)]


def curve(name: str, batch: str, loss: str, rate: float, seed: int) -> Iterator[dict[str, object]]:
    """Yield the average precisions after each epoch of one training."""
    (X, y), *held_out = split(name, seed)
    torch.manual_seed(seed)
    layers = [nn.Linear(X.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    model = nn.Sequential(*layers, nn.Flatten(0))
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    criterion: Callable[[Tensor, Tensor], Tensor] = (
        AveragePrecisionLoss(temperature=TEMPERATURE)
        if loss == "smooth AP"
        else nn.functional.binary_cross_entropy_with_logits
    )
    for epoch in range(1, max(BUDGETS) + 1):
        for rows in torch.randperm(len(y)).split(BATCHES[batch]):
            optimiser.zero_grad()
            criterion(model(X[rows]), y[rows].float()).backward()
            optimiser.step()
        with torch.no_grad():
            valid, test = (ep.average_precision(model(A), b) for A, b in held_out)
        cell = {"table": name, "batch": batch, "loss": loss, "rate": rate, "seed": seed}
        yield {**cell, "epoch": epoch, "valid": round(valid, 5), "test": round(test, 5)}


def chosen(curves: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """Return the epoch and rate of best validation within a number of epochs, for each seed."""
    within = curves[curves.epoch <= epochs]
    best = within.groupby(["table", "batch", "loss", "seed"]).valid.idxmax()
    return within.loc[best]


def results(curves: pd.DataFrame) -> str:
    """Return the mean test average precision over the seeds, with the range."""
    lines = []
    for epochs in BUDGETS:
        keys = ["table", "batch", "loss"]
        for (table, batch, loss), of_loss in chosen(curves, epochs).groupby(keys):
            low, mean, high = of_loss.test.min(), of_loss.test.mean(), of_loss.test.max()
            cell = f"{mean:.3f} ({low:.3f} to {high:.3f})"
            lines.append([table, batch, epochs, loss, cell])
    index = ["table", "batch", "epochs"]
    made = pd.DataFrame(lines, columns=[*index, "loss", "cell"])
    wide = made.pivot(index=index, columns="loss", values="cell")
    body = [[*index, *cells] for index, cells in zip(wide.index, wide.to_numpy(), strict=True)]
    return markdown(["table", "batch", "at most epochs", *wide.columns], body)


def seconds(timed: pd.DataFrame) -> str:
    """Return the median times, and how many times the matrix takes longer."""
    wide = timed.pivot(index=["n", "positives"], columns="loss", values="median")
    body = []
    for (n, positives), line in wide.iterrows():
        ours, matrix = line["AveragePrecisionLoss"], line["matrix"]
        others = ["", ""] if np.isnan(matrix) else [duration(matrix), f"{matrix / ours:.0f}"]
        body.append([f"{n:,}", f"{positives:,}", duration(ours), *others])
    return markdown(["rows", "positives", "`AveragePrecisionLoss`", "matrix", "ratio"], body)


def plot(curves: pd.DataFrame) -> None:
    """Draw the mean test curves of the rates that are best within all epochs."""
    shape = len(BATCHES), len(TABLES)
    figure, axes = plt.subplots(*shape, figsize=(8, 6), sharex=True, layout="constrained")
    keys = ["table", "batch", "loss", "seed", "rate"]
    kept = curves.merge(chosen(curves, max(BUDGETS))[keys], on=keys)
    for batch, line_of_axes in zip(BATCHES, axes, strict=True):
        for table, axis in zip(TABLES, line_of_axes, strict=True):
            of_panel = kept[(kept.table == table) & (kept.batch == batch)]
            for loss, of_loss in of_panel.groupby("loss"):
                test = of_loss.groupby("epoch").test
                (line,) = axis.plot(test.mean(), label=loss)
                low, high = test.min(), test.max()
                axis.fill_between(low.index, low, high, color=line.get_color(), alpha=0.15)
            axis.set(title=f"{table}, batches of {batch}", xlabel="epoch")
            axis.set_ylabel("test average precision")
    axes[0, 0].legend()
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, metadata={"Date": None})


def report() -> None:
    curves, timed = (pd.read_csv(FOLDER / f"{name}.csv") for name in ("train", "time"))
    plot(curves)
    tables = {
        "rows: results": results(curves),
        "rows: seconds": seconds(timed),
    }
    pages.fill(PAGES, tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["time", "train", "report"])
    what = parser.parse_args().what
    torch.set_num_threads(1)
    if what == "report":
        report()
        return
    records: list[dict[str, object]] = []
    if what == "time":
        for size in SIZES:
            records += times(*size)
    else:
        for cell in product(TABLES, BATCHES, ("BCE", "smooth AP"), RATES, SEEDS):
            records += curve(*cell)
    write_csv(records, FOLDER / f"{what}.csv")
    write_csv([environment()], FOLDER / f"{what}_machine.csv")


if __name__ == "__main__":
    main()

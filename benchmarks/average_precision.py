"""Measure AveragePrecisionLoss: its time, and what a small network learns with it.

    python -m benchmarks.average_precision time      # seconds, against the matrix of all pairs
    python -m benchmarks.average_precision train     # test average precision after each epoch
    python -m benchmarks.average_precision report    # plot and tables of the documentation

`train` needs the tables of EVERYPAIR_DATA. A network with two hidden layers of 64 units is trained
by Adam in batches of 512 rows, on 64 % of the rows; 16 % choose the learning rate and the epoch
by average precision, and 20 % are the test set. Rows are written to benchmarks/rows/average_precision/.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import everypair as ep
from benchmarks.rows import ROOT, ROWS, environment, quantiles, write_csv
from benchmarks.tables import MARKED, duration, markdown
from everypair.torch import AveragePrecisionLoss

FOLDER = ROWS / "average_precision"
PAGE = ROOT / "docs" / "average-precision-or-auc.md"
PLOT = ROOT / "docs" / "assets" / "average-precision.svg"
TABLES = ("mammography", "yeast_me2")
TEMPERATURE = 0.1
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
SEEDS = range(3)
BUDGETS = (20, 80)
BATCH = 512
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
        for _ in range(7):
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


def curve(name: str, loss: str, rate: float, seed: int) -> Iterator[dict[str, object]]:
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
        for rows in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            criterion(model(X[rows]), y[rows].float()).backward()
            optimiser.step()
        with torch.no_grad():
            valid, test = (ep.average_precision(model(A), b) for A, b in held_out)
        cell = {"table": name, "loss": loss, "rate": rate, "seed": seed, "epoch": epoch}
        yield {**cell, "valid": round(valid, 5), "test": round(test, 5)}


def chosen(curves: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """Return the epoch and rate of best validation within a number of epochs, for each seed."""
    within = curves[curves.epoch <= epochs]
    best = within.groupby(["table", "loss", "seed"]).valid.idxmax()
    return within.loc[best]


def results(curves: pd.DataFrame) -> str:
    """Return the mean test average precision over the seeds, with the range."""
    lines = []
    for epochs in BUDGETS:
        for (table, loss), of_loss in chosen(curves, epochs).groupby(["table", "loss"]):
            low, mean, high = of_loss.test.min(), of_loss.test.mean(), of_loss.test.max()
            cell = f"{mean:.3f} ({low:.3f} to {high:.3f})"
            lines.append({"epochs": epochs, "table": table, "loss": loss, "cell": cell})
    wide = pd.DataFrame(lines).pivot(index=["table", "epochs"], columns="loss", values="cell")
    body = [[*index, *cells] for index, cells in zip(wide.index, wide.to_numpy(), strict=True)]
    return markdown(["table", "at most epochs", *wide.columns], body)


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
    """Draw the mean test curve of the rate that is best within all epochs, for each table."""
    figure, axes = plt.subplots(1, len(TABLES), figsize=(8, 3.2), layout="constrained")
    best = chosen(curves, max(BUDGETS))[["table", "loss", "seed", "rate"]]
    kept = curves.merge(best, on=["table", "loss", "seed", "rate"])
    for axis, table in zip(axes, TABLES, strict=True):
        for loss, of_loss in kept[kept.table == table].groupby("loss"):
            test = of_loss.groupby("epoch").test
            (line,) = axis.plot(test.mean(), label=loss)
            axis.fill_between(
                test.min().index, test.min(), test.max(), color=line.get_color(), alpha=0.15
            )
        axis.set(title=table, xlabel="epoch", ylabel="test average precision")
    axes[0].legend()
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, metadata={"Date": None})


def report() -> None:
    curves, timed = (pd.read_csv(FOLDER / f"{name}.csv") for name in ("train", "time"))
    plot(curves)
    tables = {"results": results(curves), "seconds": seconds(timed)}
    PAGE.write_text(
        MARKED.sub(lambda found: found[1] + tables[found[2]] + found[3], PAGE.read_text())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["time", "train", "report"])
    what = parser.parse_args().what
    torch.set_num_threads(1)
    if what == "report":
        report()
        return
    records = []
    if what == "time":
        for size in SIZES:
            records += times(*size)
    else:
        for name in TABLES:
            for loss in ("BCE", "smooth AP"):
                for seed in SEEDS:
                    for rate in RATES:
                        records += curve(name, loss, rate, seed)
                print(results_of(records, name, loss))
    write_csv([{**record, **environment()} for record in records], FOLDER / f"{what}.csv")


def results_of(records: list[dict[str, object]], name: str, loss: str) -> str:
    """Return one line with the mean test average precision after each number of epochs."""
    curves = pd.DataFrame(records)
    own = curves[(curves.table == name) & (curves.loss == loss)]
    means = [f"{chosen(own, epochs).test.mean():.3f} in {epochs} epochs" for epochs in BUDGETS]
    return f"{name}, {loss}: {', '.join(means)}"


if __name__ == "__main__":
    main()

"""L-BFGS against SGD where columns are badly conditioned, as the discussion of the paper expects.

python -m studies.condition_number run       rows/condition_number.csv, in a few minutes of one core
python -m studies.condition_number report    the table in pages/open-questions.md

Simulated: 20 independent normal columns whose variances fall geometrically from 1 to 1 / condition,
so that `condition` is the condition number of their covariance, and every column, divided by its
standard deviation, has a weight of about the same size. One row in ten is positive. A linear model
minimises the squared hinge of all pairs of 2,000 rows. Every method has the same seven rates and
200 passes over the rows; of the models after the last pass, validation AUC (2,000 rows) chooses the
rate, and 10,000 rows measure it. Nothing is scaled: with standardised columns, which everypair's
own commands use, every condition number becomes 1.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import product
from statistics import fmean

import numpy as np
import torch

import everypair as ep
from benchmarks.pages import fill
from benchmarks.rows import ROOT, write_csv
from everypair.experiments.intervals import resampled_interval
from studies import ROWS

PATH = ROWS / "condition_number.csv"
CONDITIONS = (1e0, 1e2, 1e4, 1e6, 1e8)
SEEDS = range(5)
METHODS = {"L-BFGS": 0, "SGD, all rows": 2000, "SGD, batches of 100": 100}
"""The rows of a step; L-BFGS always takes all."""

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
PASSES = 200
COLUMNS, SIZES = 20, (2000, 2000, 10_000)
TYPES = {"float": float, "int": int, "str": str}
Part = tuple[np.ndarray, np.ndarray]  # columns, whether a row is positive


@dataclass(frozen=True)
class Row:
    """The model that a method reached with one rate."""

    condition: float
    seed: int
    method: str
    rate: float
    passes: int  # evaluations of loss and gradient on all rows; L-BFGS may end a line search later
    loss: float  # of the training rows
    validation_auc: float
    test_auc: float


def data(condition: float, seed: int) -> list[Part]:
    """Return training, validation and test rows; those of a seed differ in scale only."""
    rng = np.random.default_rng(seed)
    scales = condition ** (-np.arange(COLUMNS) / (2 * (COLUMNS - 1)))
    direction = rng.standard_normal(COLUMNS) * 2 / math.sqrt(COLUMNS)
    parts = []
    for n in SIZES:
        normal = rng.standard_normal((n, COLUMNS))
        latent = normal @ direction + rng.logistic(size=n)
        parts.append((normal * scales, latent > np.quantile(latent, 0.9)))
    return parts


def train(
    method: str, rate: float, X: np.ndarray, positive: np.ndarray, seed: int
) -> tuple[np.ndarray, int]:
    """Return the weights, and the number of passes over the rows."""
    w = torch.zeros(COLUMNS, dtype=torch.float64, requires_grad=True)
    weights = w.detach().numpy()  # shares memory with w

    passes = 0.0

    def gradient(rows: np.ndarray | slice = slice(None)) -> float:
        nonlocal passes
        passes += len(positive[rows]) / len(positive)
        loss, slopes = ep.pair_loss_and_grad(X[rows] @ weights, positive[rows])
        w.grad = torch.from_numpy(slopes @ X[rows])
        return loss

    if method == "L-BFGS":
        limits = {"max_iter": PASSES, "max_eval": PASSES, "tolerance_grad": 0}
        lbfgs = torch.optim.LBFGS([w], rate, **limits, line_search_fn="strong_wolfe")
        lbfgs.step(gradient)
        return weights, round(passes)
    sgd, rng = torch.optim.SGD([w], lr=rate), np.random.default_rng(seed)
    for _ in range(PASSES):
        for rows in rng.permutation(len(X)).reshape(-1, METHODS[method]):
            gradient(rows)
            sgd.step()
    return weights, round(passes)


def measure(condition: float, seed: int) -> Iterator[Row]:
    """Train every method with every rate on the rows of one seed."""
    (X, positive), *others = data(condition, seed)
    for method, rate in product(METHODS, RATES):
        try:
            weights, passes = train(method, rate, X, positive, seed)
            loss = ep.pair_loss(X @ weights, positive)
            aucs = [ep.auc(part @ weights, truth) for part, truth in others]
        except (ValueError, OverflowError):  # scores or loss not finite: the rate is too large
            passes, loss, aucs = PASSES, math.nan, [math.nan, math.nan]
        yield Row(condition, seed, method, rate, passes, loss, *aucs)


def read() -> list[Row]:
    """Return the committed rows."""
    with PATH.open(newline="") as file:
        return [
            Row(**{f.name: TYPES[str(f.type)](one[f.name]) for f in fields(Row)})
            for one in csv.DictReader(file)
        ]


def chosen(rows: list[Row]) -> dict[tuple[float, str], list[Row]]:
    """Return for each condition number and method the row of each seed that validation chooses."""
    found = {}
    for condition, method in product(CONDITIONS, METHODS):
        own = [r for r in rows if (r.condition, r.method) == (condition, method)]
        by_seed = ([r for r in own if r.seed == seed] for seed in SEEDS)
        found[condition, method] = [
            max(rates, key=lambda r: -1.0 if math.isnan(r.validation_auc) else r.validation_auc)
            for rates in by_seed
        ]
    return found


def lead(condition: float, other: str) -> tuple[float, float, float]:
    """Return the mean test AUC of L-BFGS minus that of another method, and the 95 % interval."""
    best = chosen(read())
    pairs = zip(best[condition, "L-BFGS"], best[condition, other], strict=True)
    differences = [ours.test_auc - theirs.test_auc for ours, theirs in pairs]
    # Every seed draws its own rows, so Student's interval needs no correction.
    low, high = resampled_interval(differences, test_share=0.0) or (math.nan, math.nan)
    return fmean(differences), low, high


def table() -> str:
    """Return test AUC and training loss by condition number, and what L-BFGS leads by."""
    best = chosen(read())
    others = [method for method in METHODS if method != "L-BFGS"]
    head = [f"{name}: AUC (training loss)" for name in METHODS]
    head += [f"L-BFGS minus {name}" for name in others]
    lines = ["| condition number | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for condition in CONDITIONS:
        cells = [f"{condition:.0e}".replace("e+0", "e") if condition > 1 else "1"]
        for method in METHODS:
            own = best[condition, method]
            auc, loss = fmean(r.test_auc for r in own), fmean(r.loss for r in own)
            cells.append(f"{auc:.3f} ({loss:.3f})")
        cells += ["{:+.3f} ({:.3f} to {:.3f})".format(*lead(condition, other)) for other in others]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def run() -> None:
    """Measure everything and write the rows."""
    found = []
    for condition, seed in product(CONDITIONS, SEEDS):
        found += measure(condition, seed)
        print(f"condition {condition:g}, seed {seed}: {len(found)} rows", flush=True)
    write_csv([asdict(row) for row in found], PATH)


def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.condition_number")
    parser.add_argument("task", choices=("run", "report"))
    if parser.parse_args().task == "run":
        run()
        return
    fill([ROOT / "studies" / "pages" / "open-questions.md"], {"condition": f"\n{table()}\n\n"})


if __name__ == "__main__":
    main()

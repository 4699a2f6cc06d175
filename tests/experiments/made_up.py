"""Made-up records that look like those of a real study, without training.

They contain what reports must handle: effects of the seed that all losses share, rates far from
the best one, trials that diverge at large rates, failed trials, and ties.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from everypair.experiments.plan import Grid, Record, Trial

NORMAL = NormalDist()
EASE = {"digits": 2.6, "cifar10": 1.75, "stl10": 0.75, "catdog": 1.6}
EDGE = {"squared_hinge": 0.03, "logistic": 0.0, "aucm": -0.05}  # in units of separation
BEST_RATE = {"squared_hinge": 0.03, "logistic": 0.3, "aucm": 0.1}
RATES = {
    "squared_hinge": (0.003, 0.03, 0.3),
    "logistic": (0.03, 0.3, 3.0),
    "aucm": (0.03, 0.1, 1.0),
}


def grid(data="digits", imratios=(0.1, 0.01), seeds=3, batches=(50, 500), rates=None, **more):
    losses = more.pop("losses", tuple(RATES))
    return Grid(data, imratios, losses, batches, tuple(range(seeds)), rates or RATES, **more)


def paper_grids(seeds=5):
    """Three data sets x three imratios x three losses x five seeds, six batches, seven rates."""
    slow = tuple(10 ** (-4 + k / 2) for k in range(7))
    wide = tuple(10.0 ** (-4 + k) for k in range(7))
    rates = {"squared_hinge": slow, "logistic": wide, "aucm": wide}
    batches = (10, 50, 100, 500, 1000, 5000)
    return [
        grid(d, (0.1, 0.01, 0.001), seeds, batches, rates) for d in ("cifar10", "stl10", "catdog")
    ]


def records(*grids, epochs=20, failed=0):
    """Return a record for every trial of the grids, the first `failed` ones failed."""
    drawn = [record(trial, epochs) for one in grids for trial in one.trials()]
    for place in range(failed):
        drawn[place] = Record(
            drawn[place].trial, "failed", {}, reason="RuntimeError: out of memory"
        )
    return drawn


def record(trial, epochs=20):
    cell = trial.cell
    # All losses share the effect of the seed, which is why differences are paired.
    shared = generator(cell.data, cell.imratio, cell.seed).normal(0, 0.06)
    own = generator(cell, trial.batch, trial.rate)
    decades = math.log10(trial.rate / BEST_RATE.get(cell.loss, 0.1))
    ease = EASE.get(cell.data, 1.5) * (1 + 0.3 * math.log10(cell.imratio or 0.1))
    reach = (
        ease * math.exp(-0.25 * decades**2) + EDGE.get(cell.loss, 0) + shared + own.normal(0, 0.02)
    )
    reach = max(reach, 0.02) - 0.02 * abs(math.log(trial.batch / 100))
    diverged_at = None
    if decades > (0.9 if cell.loss == "squared_hinge" else 2.4):
        diverged_at = int(own.integers(1, 4))
    length = epochs + 1 if diverged_at is None else diverged_at
    epoch = np.arange(length)
    speed = 1 - np.exp(-epoch / (epochs / 5) * 10 ** min(decades / 2, 0.5))
    overfit = 0.25 * np.maximum(epoch / epochs - 0.6, 0)
    subtrain = auc(reach * 1.1 * speed)
    validation = auc((reach - overfit) * speed + own.normal(0, 0.02, length))
    test = auc((reach - overfit) * speed * 0.97 + own.normal(0, 0.01, length))
    history = {
        "epoch": epoch,
        "subtrain_loss": np.exp(-2.2 * subtrain),
        "subtrain_auc": subtrain,
        "validation_loss": np.exp(-2.1 * validation),
        "validation_auc": validation,
    }
    best = int(np.argmax(validation))
    # Plain floats, because a store cannot keep NumPy numbers.
    plain = {name: [float(value) for value in column] for name, column in history.items()}
    separation = math.sqrt(2) * NORMAL.inv_cdf(float(test[best]))
    fpr = [0.0, *(k / 60 for k in range(1, 60)), 1.0]
    tpr = [0.0, *(NORMAL.cdf(separation + NORMAL.inv_cdf(x)) for x in fpr[1:-1]), 1.0]
    return Record(
        trial,
        "finished" if diverged_at is None else "diverged",
        plain,
        best_epoch=best,
        validation_auc=float(validation[best]),
        test_auc=float(test[best]),
        roc=(fpr, tpr),
        diverged_at=diverged_at,
        reason="" if diverged_at is None else "scores became NaN; try a smaller rate",
        seconds=float(own.uniform(1, 2) * (1 + 20 / trial.batch if trial.batch else 1)),
        n_one_class=int(2000 * math.exp(-(trial.batch or 1e4) * (cell.imratio or 0.1))),
    )


def auc(separation):
    """Return the AUC of two normal classes at this distance, at most 0.9999."""
    return np.array([min(NORMAL.cdf(s / math.sqrt(2)), 0.9999) for s in separation])


def generator(*key):
    return np.random.default_rng(list(repr(key).encode()))


def simple(auc_by_seed, loss="logistic", optimiser="sgd", data="digits", imratio=0.1):
    """Return one finished record per seed with these test AUCs, for checks by hand."""
    from everypair.experiments.plan import Cell

    return [
        Record(
            Trial(Cell(data, imratio, loss, optimiser, seed), 50, 0.1),
            "finished",
            {"epoch": [0.0, 1.0], "validation_auc": [0.5, 0.9]},
            best_epoch=1,
            validation_auc=0.9,
            test_auc=value,
        )
        for seed, value in enumerate(auc_by_seed)
    ]

"""Fit a linear scorer on every (positive, negative) pair of an unbalanced batch.

scikit-learn's handwritten digits: 0 to 4 are negative, 5 to 9 positive, and of the training
positives only so many are kept that they make up 1 %. The held-out fifth stays balanced. Gradient
descent takes the whole training set at each step: every pair counts, none is sampled.

    make demo
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

import everypair as ep

SHARE_OF_POSITIVES = 0.01
STEPS = 1000
STEP_SIZE = 0.05
SHOWN = (0, 1, 3, 10, 30, 100, 300, 1000)


class Sample(NamedTuple):
    """Pixels in [0, 1], and whether a digit is one of 5 to 9."""

    X: np.ndarray
    labels: np.ndarray


def split(rng: np.random.Generator) -> tuple[Sample, Sample]:
    """Hold a fifth of the digits out at random, and thin the positives of the others."""
    X, digit = load_digits(return_X_y=True)
    X, labels = X / 16, digit >= 5
    order = rng.permutation(labels.size)
    held_out, train = np.split(order, [labels.size // 5])

    pos, neg = train[labels[train]], train[~labels[train]]
    kept = round(neg.size * SHARE_OF_POSITIVES / (1 - SHARE_OF_POSITIVES))
    train = np.concatenate([pos[:kept], neg])
    return Sample(X[train], labels[train]), Sample(X[held_out], labels[held_out])


def main() -> None:
    """Descend, and print loss and AUC by step."""
    console = Console()
    train, held_out = split(np.random.default_rng(0))
    n_pos = int(train.labels.sum())
    console.print(
        f"{train.labels.size} digits to train on, {n_pos} of them positive: "
        f"{n_pos * (train.labels.size - n_pos)} pairs a step",
        highlight=False,
    )

    table = Table("step", "loss", "AUC, train", "AUC, held out", box=None, padding=(0, 3))
    for column in table.columns:
        column.justify = "right"
    coefficients = np.zeros(train.X.shape[1])
    # A bar is for people to watch: none in a log file.
    steps = track(range(STEPS + 1), "descending", console=console, transient=True)
    for step in steps if sys.stdout.isatty() else range(STEPS + 1):
        scores = train.X @ coefficients
        loss, grad = ep.pair_loss_and_grad(scores, train.labels)
        if step in SHOWN:
            seen = ep.auc(scores, train.labels)
            unseen = ep.auc(held_out.X @ coefficients, held_out.labels)
            table.add_row(str(step), f"{loss:.4f}", f"{seen:.4f}", f"{unseen:.4f}")
        coefficients -= STEP_SIZE * (train.X.T @ grad)
    console.print(table)


if __name__ == "__main__":
    main()

"""Time of a trial relative to a hand-written training loop.

Both train on the same rows with the same model, loss, optimiser and batch size, and both compute
loss and AUC of the training, validation and test rows after every epoch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import nn

import everypair as ep
from benchmarks.contenders import Call, Contender
from benchmarks.harness import suite
from benchmarks.inputs import labels_with
from everypair.experiments.data.splits import Part, Split
from everypair.experiments.plan import Cell, Settings, Trial
from everypair.experiments.training.models import build
from everypair.experiments.training.trial import train
from everypair.torch import PairLoss

BARE = Contender("bare loop", "squared_hinge")
RUNNER = Contender("everypair.experiments", "squared_hinge")

BATCH = 100
COLUMNS = 30
EPOCHS = 5
RATE = 0.01


@lru_cache(maxsize=1)
def split_of(n: int, positives: float) -> Split:
    """Return n training rows, and n // 4 validation and test rows each."""
    return Split(*(part_of(size, positives, i) for i, size in enumerate((n, n // 4, n // 4))))


def part_of(n: int, positives: float, seed: int) -> Part:
    rng = np.random.default_rng(seed)
    labels = labels_with(rng, n, positives)
    inputs = rng.standard_normal((n, COLUMNS), np.float32) + 0.3 * labels[:, None]
    return Part(torch.from_numpy(inputs), torch.from_numpy(labels))


def bare_loop(split: Split, model_name: str) -> None:
    model = build(model_name, (COLUMNS,), sigmoid=False, seed=0)
    loss = PairLoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    measure(model, loss, split)
    X, y = split.subtrain.inputs, split.subtrain.labels
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            loss(model(X[rows]), y[rows]).backward()
            optimiser.step()
        measure(model, loss, split)


def measure(model: nn.Module, loss: PairLoss, split: Split) -> list[float]:
    with torch.no_grad():
        measured = []
        for part in (split.subtrain, split.validation, split.test):
            scores = model(part.inputs)
            measured += [
                loss(scores, part.labels).item(),
                ep.auc(scores.numpy(), part.labels.numpy()),
            ]
    return measured


@suite(
    "runner",
    contenders=(BARE, RUNNER),
    positives=(0.1,),
    input=("linear", "mlp"),
    n=(10**4,),
)
def runner_overhead(contender: Contender, n: int, positives: float, input: str) -> Call:  # noqa: A002
    split = split_of(n, positives)
    if contender == BARE:
        return lambda: bare_loop(split, input)
    trial = Trial(Cell("made up", 0.0, "squared_hinge", "sgd", 0), BATCH, RATE)
    settings = Settings(model=input, epochs=EPOCHS)
    return lambda: train(trial, settings, split)

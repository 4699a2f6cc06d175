"""The batches that are timed: scores of a named distribution, and float32 labels as for BCE."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

Scores = Callable[[np.random.Generator, np.ndarray], np.ndarray]


class Input(NamedTuple):
    """A function that makes scores from a random generator and labels, and the margin to use."""

    scores: Scores
    margin: float = 1.0


class Batch(NamedTuple):
    scores: np.ndarray
    labels: np.ndarray
    margin: float


def normal(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    return rng.standard_normal(labels.size)


def saturated_sigmoid(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-20 * normal(rng, labels)))


def thirty_decades(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    size = 10.0 ** rng.integers(-15, 16, labels.size) * (1 + 1e-3 * normal(rng, labels))
    return size * rng.choice([-1.0, 1.0], labels.size)


HARD = {
    "saturated sigmoid": Input(saturated_sigmoid),
    "ties on a grid": Input(lambda rng, labels: np.round(normal(rng, labels) * 100) / 100),
    "separated classes": Input(lambda rng, labels: normal(rng, labels) + 6 * labels),
    "Cauchy": Input(lambda rng, labels: rng.standard_cauchy(labels.size)),
    "sorted": Input(lambda rng, labels: np.sort(normal(rng, labels))),
    "all equal": Input(lambda rng, labels: np.zeros(labels.size)),
    "differences of 1e-5": Input(lambda rng, labels: 0.5 + 1e-5 * normal(rng, labels)),
    "differences and margin of 1e-5": Input(
        lambda rng, labels: 0.5 + 1e-5 * normal(rng, labels), margin=1e-5
    ),
    "thirty decades": Input(thirty_decades),
}

OFFSET = {
    "offset 1e3": Input(lambda rng, labels: 1e3 + normal(rng, labels)),
    "offset 1e6": Input(lambda rng, labels: 1e6 + normal(rng, labels)),
}

INPUTS = {"normal": Input(normal), **HARD, **OFFSET}


def labels_with(rng: np.random.Generator, n: int, positives: float) -> np.ndarray:
    """Return shuffled labels with this share of positives, and at least one of each class."""
    n_pos = min(max(round(n * positives), 1), n - 1)
    labels = np.zeros(n, np.float32)
    labels[:n_pos] = 1
    rng.shuffle(labels)
    return labels


@lru_cache(maxsize=1)
def batch(
    n: int, positives: float, dtype: str = "float32", shape: str = "normal", seed: int = 0
) -> Batch:
    """Make a seeded batch; the last one is cached, because the contenders of a cell share it."""
    rng = np.random.default_rng([n, round(1 / positives), seed])
    labels = labels_with(rng, n, positives)
    scores = INPUTS[shape].scores(rng, labels).astype(dtype)
    return Batch(scores, labels, INPUTS[shape].margin)

"""Variants of random batches: smooth surrogates, other targets, and the largest floats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from everypair import surrogates

from .batches import draw, pick
from .smooth import MOST_ROWS

SMOOTH = (
    surrogates.logistic,
    surrogates.sigmoid,
    surrogates.exponential,
    surrogates.squared_softplus,
)


def draw_varied(seed, number, large, share):
    """Draw batch `number`, and vary this share of them."""
    batch = draw(seed, number, large=large)
    rng = np.random.default_rng([seed, number, 1])
    return varied(batch, rng) if rng.random() < share else batch


def varied(batch, rng):
    """Change some properties of a batch at random; one of many rows keeps its targets."""
    names = ("largest scores", "extreme vector")
    if batch.scores.size <= MOST_ROWS:
        names += ("ordered", "survival", "smooth", "smooth", "smooth ordered", "smooth survival")
    name = pick(rng, names)
    for part in name.split():
        if part in VARIANTS:
            batch = replace(batch, **VARIANTS[part](batch, rng))
    return replace(batch, kind=f"{batch.kind}; {name}")


def largest(batch, rng):
    top = np.finfo(batch.scores.dtype).max
    share = rng.uniform(-1, 1, batch.scores.size)
    return {"scores": (top * share).astype(batch.scores.dtype)}


def extreme(batch, rng):
    # A sum with weights of 1e-170 as well would be the product of numbers beyond float64.
    return {"vector": batch.vector * 10.0 ** rng.uniform(-300, 290), "reduction": "mean"}


def weights_of(batch):
    """Leave out weights over 600 decades: those of ordered pairs are over one power of two."""
    return {"weights": None} if "weights by class" in batch.kind else {}


def ordered(batch, rng):
    n = batch.scores.size
    grades = rng.integers(0, pick(rng, (2, 5, 40)), n)
    targets = (grades, grades.astype(np.int8), grades.astype(np.float32), rng.normal(size=n))
    return {"labels": pick(rng, targets), "pairs": "ordered", **weights_of(batch)}


def survival(batch, rng):
    n = batch.scores.size
    times = pick(rng, (rng.integers(1, 30, n).astype(np.float64), rng.exponential(size=n) + 0.1))
    labels = np.where(rng.random(n) < 0.6, times, -times)
    return {"labels": labels, "pairs": "survival", **weights_of(batch)}


def smooth(batch, rng):
    temperature = pick(rng, (1.0, 1.0, 0.01, 0.5, 30.0))
    margin = pick(rng, (0.0, 0.0, 1.0, 0.3, 1e6))
    return {"surrogate": pick(rng, SMOOTH)(temperature), "margin": margin}


VARIANTS = {
    "largest": largest,
    "extreme": extreme,
    "ordered": ordered,
    "survival": survival,
    "smooth": smooth,
}

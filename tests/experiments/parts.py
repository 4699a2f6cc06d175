"""Small made-up splits: two normal classes, or images whose positives are brighter."""

from __future__ import annotations

import numpy as np
import torch

from everypair.experiments.data.augment import Augmentation
from everypair.experiments.data.splits import Part, Split
from everypair.experiments.plan import Cell, Trial


def clouds(n=400, share=0.2, columns=5, groups=0, apart=1.0):
    return Split(*(cloud(size, share, columns, groups, apart, seed) for size, seed in sizes(n)))


def cloud(n, share, columns, groups, apart, seed):
    rng = np.random.default_rng(seed)
    labels = labels_of(rng, n, share)
    inputs = rng.standard_normal((n, columns)) + apart * labels[:, None] / columns**0.5
    group = torch.from_numpy(rng.integers(0, groups, n) * 7) if groups else None
    return Part(torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels), group)


def images(n=60, shape=(3, 8, 8), augmentation=Augmentation()):  # noqa: B008
    parts = []
    for size, seed in sizes(n):
        rng = np.random.default_rng(seed)
        labels = labels_of(rng, size, 0.5)
        pixels = rng.integers(0, 200, (size, *shape)) + 55 * labels[:, None, None, None]
        parts.append(Part(torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(labels)))
    return Split(*parts, augmentation=augmentation)


def labels_of(rng, n, share):
    return rng.permutation(np.arange(n) < share * n).astype(np.float32)


def sizes(n):
    return zip((n, n // 2, n // 2), range(3), strict=True)


def trial(loss="squared_hinge", optimiser="sgd", *, batch=50, rate=0.01, seed=0):
    return Trial(Cell("made up", 0.0, loss, optimiser, seed), batch, rate)

"""The data sets of the comparison: the tables of the data folder, and CIFAR10."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks import evidence
from benchmarks.evidence import Part

CIFAR10 = "cifar10"
ROWS_OF_A_TABLE = 3000
IMAGES = 5000
LAST_NEGATIVE = 4  # the second half of the ten classes is positive, as in the experiments


def names() -> list[str]:
    known = json.loads((_folder() / "manifest.json").read_text())["tabular"]
    by_size = sorted(known, key=lambda each: each["rows"] * each["features"])
    return [*(each["name"] for each in by_size), CIFAR10]


def splits_of(name: str, split: int) -> tuple[Part, Part, Part]:
    """Return training, validation and test rows: 60, 20 and 20 %, stratified."""
    rows = _cifar10() if name == CIFAR10 else evidence.table(_folder(), name, ROWS_OF_A_TABLE)
    return evidence.thirds(rows, split)


def _folder() -> Path:
    return Path(os.environ["EVERYPAIR_DATA"])


@lru_cache(maxsize=1)
def _cifar10() -> Part:
    """Return random images of the official training part, averaged to 8 x 8 pixels: 192 numbers."""
    from everypair.experiments.data.image_datasets import SOURCES, load

    parts = load(SOURCES[CIFAR10])
    chosen = np.random.default_rng(0).choice(len(parts.train), IMAGES, replace=False)
    images = parts.train[np.sort(chosen)].astype(np.float32)
    smaller = images.reshape(IMAGES, 3, 8, 4, 8, 4).mean((3, 5))
    y = (parts.train_labels[np.sort(chosen)] > LAST_NEGATIVE).astype(np.int64)
    return Part(smaller.reshape(IMAGES, -1), y)

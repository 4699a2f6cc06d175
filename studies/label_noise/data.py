"""The data sets of the comparison: the tables of the data folder, digits and CIFAR10."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from studies import evidence
from studies.evidence import Part

IMAGES = ("digits", "cifar10")
MAX_ROWS = 3000  # of a table
MAX_IMAGES = 5000
SIDE = 8  # images are averaged to this number of pixels per side


def names() -> list[str]:
    known = json.loads((_folder() / "manifest.json").read_text())["tabular"]
    by_size = sorted(known, key=lambda each: each["rows"] * each["features"])
    return [*(each["name"] for each in by_size), *IMAGES]


def splits_of(name: str, split: int) -> tuple[Part, Part, Part]:
    """Return training, validation and test rows: 60, 20 and 20 %, stratified."""
    rows = _images(name) if name in IMAGES else evidence.table(_folder(), name, MAX_ROWS)
    return evidence.thirds(rows, split)


def _folder() -> Path:
    return Path(os.environ["EVERYPAIR_DATA"])


@lru_cache(maxsize=1)
def _images(name: str) -> Part:
    """Return random images of the training part, averaged to 8 x 8 pixels per colour.

    The positive class is that of the experiments: the second half of the ten classes.
    """
    from everypair.experiments.data.sources import load

    data = load(name)
    n = len(data.inputs)
    chosen = np.sort(np.random.default_rng(0).choice(n, min(n, MAX_IMAGES), replace=False))
    images = np.asarray(data.inputs[chosen], dtype=np.float32)
    n, colours, side, _ = images.shape
    block = side // SIDE
    means = images.reshape(n, colours, SIDE, block, SIDE, block).mean((3, 5))
    return Part(means.reshape(n, -1), data.positive[chosen].astype(np.int64))

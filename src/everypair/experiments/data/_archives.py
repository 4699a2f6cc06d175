"""Read the official archives of the image data sets without unpacking them to disk.

Written by hand because torchvision unpacks archives to disk, has no loader for Cat & Dog, and would
be a large dependency for three file formats.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.data._decoding import decode_fitting
from everypair.experiments.errors import UserError

Arrays = dict[str, NDArray[Any]]
"""Arrays ``train``, ``train_labels``, ``test`` and ``test_labels``."""

_PHOTOGRAPH = re.compile(r"PetImages[\\/](Cat|Dog)[\\/](\d+)\.jpg$")
_FIRST_TEST_PHOTOGRAPH = 10_000


def cifar10(path: Path, side: int) -> Arrays:
    """Read the binary version of CIFAR-10: one label byte and three colour planes per row."""
    train = [f"data_batch_{i}.bin" for i in range(1, 6)]
    files = _members(path, {*train, "test_batch.bin"})
    arrays: Arrays = {}
    for part, names in {"train": train, "test": ["test_batch.bin"]}.items():
        rows = np.concatenate([files[name].reshape(-1, 1 + 3 * side**2) for name in names])
        arrays[part] = rows[:, 1:].reshape(-1, 3, side, side)
        arrays[f"{part}_labels"] = rows[:, 0].astype(np.int64)
    return arrays


def stl10(path: Path, side: int) -> Arrays:
    """Read the labelled images of STL-10: planes stored by column, classes from 1."""
    files = _members(path, {f"{part}_{kind}.bin" for part in ("train", "test") for kind in "Xy"})
    arrays: Arrays = {}
    for part in ("train", "test"):
        planes = files[f"{part}_X.bin"].reshape(-1, 3, side, side)
        arrays[part] = np.ascontiguousarray(planes.transpose(0, 1, 3, 2))
        arrays[f"{part}_labels"] = files[f"{part}_y.bin"].astype(np.int64) - 1
    return arrays


def catdog(path: Path, side: int) -> Arrays:
    """Read Microsoft's photographs; images numbered from 10,000 on are the test part.

    The published archive holds some files that are not images; they are left out.
    """
    with zipfile.ZipFile(path) as archive:
        found = [match for name in archive.namelist() if (match := _PHOTOGRAPH.search(name))]
        found.sort(key=lambda match: (match[1], int(match[2])))
        images, good = decode_fitting(
            lambda row: archive.read(found[row].string), len(found), side, "Decoding photographs"
        )
    labels = np.array([match[1] == "Dog" for match in found], np.int64)
    is_test = np.array([int(match[2]) >= _FIRST_TEST_PHOTOGRAPH for match in found])
    train, test = good & ~is_test, good & is_test
    arrays = {"train": images[train], "train_labels": labels[train]}
    return arrays | {"test": images[test], "test_labels": labels[test]}


def _members(path: Path, names: Collection[str]) -> dict[str, NDArray[np.uint8]]:
    """Read the files of these names from an archive, and stop after the last of them."""
    found: dict[str, NDArray[np.uint8]] = {}
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            name = Path(member.name).name
            if name in names and (file := archive.extractfile(member)) is not None:
                found[name] = np.frombuffer(file.read(), np.uint8)
            if len(found) == len(names):
                return found
    lacking = ", ".join(sorted(set(names) - set(found)))
    raise UserError(f"{path} lacks {lacking}; remove the file, so that it is downloaded again")

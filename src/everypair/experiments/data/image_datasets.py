"""The image data sets, read from a folder of Parquet files or from the official archives.

The decoded images are kept as arrays in the cache folder; later runs map them into memory.

How to add an image data set:

1. Write a function in `_archives` that reads the published archive and returns its images and class
   numbers, as `_archives.cifar10` does.
2. Add an `ImageSource` to `SOURCES` below. The second half of its classes is the positive class.
3. Add its name to `_IMAGES` in ``experiments/presets.py``, and how reports call it to
   `DISPLAY_NAMES` in ``experiments/display_names.py``.
4. Run ``everypair experiment NAME --seeds 1 --epochs 1``. If the folder ``$EVERYPAIR_DATA/NAME``
   has ``train.parquet`` and ``test.parquet`` with columns "image" (bytes of a PNG or JPEG file)
   and "label" (class number), they are read instead of the archive.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments._atomic import replacing
from everypair.experiments.data import _archives
from everypair.experiments.data._decoding import decode
from everypair.experiments.data._download import Archive, digest, fetch
from everypair.experiments.errors import UserError

_PARTS = ("train", "test")
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_STL = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


@dataclass(frozen=True)
class ImageSource:
    """An image data set and where it is published."""

    name: str
    side: int  # pixels
    classes: tuple[str, ...]  # by class number; the second half is positive
    archive: Archive
    unpack: Callable[[Path, int], _archives.Arrays]  # takes the archive and `side`


@dataclass(frozen=True)
class Parts:
    """Images (n, 3, side, side) uint8 and class numbers (n,) int64 of the official parts."""

    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    fingerprint: str


SOURCES: dict[str, ImageSource] = {
    source.name: source
    for source in (
        ImageSource(
            "cifar10",
            32,
            _CIFAR,
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
            _archives.cifar10,
        ),
        ImageSource(
            "stl10",
            96,
            _STL,
            Archive(
                "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                "md5:91f7769df0f17e558f3565bffb0c7dfb",
            ),
            _archives.stl10,
        ),
        ImageSource(
            "catdog",
            50,
            ("cat", "dog"),
            Archive(
                "https://download.microsoft.com/download/3/E/1/3E1C3F21-ECDB-4869-8368-6DEBA77B919F/"
                "kagglecatsanddogs_5340.zip",
                "sha256:b7974bd00a84a99921f36ee4403f089853777b5ae8d151c76a86e64900334af9",
            ),
            _archives.catdog,
        ),
    )
}


def cache_folder() -> Path:
    """Return the folder for decoded images and downloads: EVERYPAIR_CACHE, or the system's."""
    if named := os.environ.get("EVERYPAIR_CACHE"):
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "everypair"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "everypair"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everypair"


def load(source: ImageSource) -> Parts:
    """Load the images of both parts; they are decoded once and then mapped into memory."""
    files = _parquet_files(source)
    fingerprint = source.archive.fingerprint
    if files:
        digests = "".join(digest(path, "sha256") for path in files.values())
        fingerprint = hashlib.sha256(digests.encode()).hexdigest()[:16]
    folder = cache_folder() / f"{source.name}-{fingerprint}"
    if not folder.is_dir():
        if files:
            _write(_read_parquet(source, files), folder)
        else:
            path = fetch(source.archive, cache_folder())
            _write(source.unpack(path, source.side), folder)
            path.unlink(missing_ok=True)  # the archive is large and no longer needed
    try:
        names = [name for part in _PARTS for name in (part, f"{part}_labels")]
        found = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} is damaged ({error}); remove that folder, and the next run makes it again"
        ) from None
    return Parts(**found, fingerprint=fingerprint)


def read_images(path: Path, side: int) -> NDArray[np.uint8]:
    """Read the images in the column "image" of a Parquet file."""
    return decode(_columns(path, ["image"])["image"], path, side)


def _parquet_files(source: ImageSource) -> dict[str, Path]:
    """Return the files of both parts in EVERYPAIR_DATA, or {} if it has no such data set."""
    if not (named := os.environ.get("EVERYPAIR_DATA")):
        return {}
    if not Path(named).is_dir():
        raise UserError(f"EVERYPAIR_DATA must name a folder; {named} is not one")
    folder = Path(named) / source.name
    files = {part: folder / f"{part}.parquet" for part in _PARTS} if folder.is_dir() else {}
    for path in files.values():
        if not path.is_file():
            raise UserError(f"EVERYPAIR_DATA: {path} is missing; both parts are needed")
    return files


def _read_parquet(source: ImageSource, files: Mapping[str, Path]) -> _archives.Arrays:
    arrays: _archives.Arrays = {}
    side = None  # then that of the first image: the folder may hold smaller copies
    for part, path in files.items():
        columns = _columns(path, ["image", "label"])
        labels = np.array(columns["label"])
        known = range(len(source.classes))
        if labels.dtype.kind not in "iu" or not np.isin(labels, known).all():
            raise UserError(
                f"{path}: column 'label' must hold class numbers 0 to {len(source.classes) - 1}; "
                f"it has {sorted(set(columns['label']), key=str)[:12]}"
            )
        arrays[part] = decode(columns["image"], path, side)
        side = arrays[part].shape[-1]
        arrays[f"{part}_labels"] = labels.astype(np.int64)
    return arrays


def _columns(path: Path, names: list[str]) -> dict[str, list[Any]]:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        present = pq.read_schema(path).names
        if missing := [name for name in names if name not in present]:
            raise UserError(
                f"{path} has no column {', '.join(missing)}; images are read from a column "
                f"'image' with one encoded image per row (it has {', '.join(present)})"
            )
        table = pq.read_table(path, columns=names)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read as Parquet: {error}") from None
    if table.num_rows == 0:
        raise UserError(f"{path} is empty: it has no rows")
    return {name: table.column(name).to_pylist() for name in names}


def _write(arrays: _archives.Arrays, folder: Path) -> None:
    try:
        with replacing(folder) as temporary:
            temporary.mkdir()
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", array)
    except OSError as error:
        raise UserError(
            f"decoded images cannot be written to {folder.parent} ({error.strerror or error}); "
            "free some space, or set EVERYPAIR_CACHE to another folder"
        ) from None

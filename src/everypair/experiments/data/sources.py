"""The table of data sets: from a name to a function that loads a `Dataset`.

>>> list(SOURCES)
['digits', 'cifar10', 'stl10', 'catdog', 'table']
>>> digits = load("digits")
>>> digits.inputs.shape, int(digits.positive.sum())
((1797, 1, 8, 8), 896)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.data import _tables, image_datasets
from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.errors import UserError
from everypair.experiments.plan import TableFile
from everypair.experiments.registry import Registry


@dataclass(frozen=True)
class Dataset:
    """Rows with two classes, not split yet.

    Parameters
    ----------
    name : str
    inputs : (n, d) float32, (n, c, h, w) uint8 or DataFrame
        Features, images, or the columns of a table, which a split encodes.
    positive : (n,) bool
    test_inputs, test_positive : optional
        The official test part. Without it, every split takes out a test part of its own.
    groups : (n,) int64, optional
        Rows of a group stay in the same part, and only pairs inside a group count.
    encoder : TableEncoder, optional
        Settings of the encoder that a split fits on its subtrain part, for a DataFrame only.
    time : (n,) float64, optional
        Training, validation and test rows follow each other in time.
    photographs : bool
        Whether training may crop and mirror the images.
    positive_name : str
        A description of the positive class, for reports.
    fingerprint : str
        The first 16 digits of the SHA-256 of the data.
    unused : dict of str
        By name: why a column of a table is not a feature.
    """

    name: str
    inputs: Any
    positive: NDArray[np.bool_]
    test_inputs: Any = None
    test_positive: NDArray[np.bool_] | None = None
    groups: NDArray[np.int64] | None = None
    time: NDArray[np.float64] | None = None
    encoder: TableEncoder | None = None
    photographs: bool = False
    positive_name: str = ""
    fingerprint: str = ""
    unused: dict[str, str] = field(default_factory=dict)


Loader = Callable[[TableFile | None], Dataset]


def load(name: str, *, table: TableFile | None = None) -> Dataset:
    """Load a data set by name; `table` describes the file for the name "table"."""
    return SOURCES.find(name)(table)


def register(name: str, loader: Loader) -> None:
    """Add a data set: `loader` takes the user's table (or None) and returns a `Dataset`.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((100, 3), np.float32)
    >>> register("noise", lambda table: Dataset("noise", features, features[:, 0] > 1))
    >>> len(load("noise").positive)
    100
    >>> del SOURCES["noise"]
    """
    if name in SOURCES:
        raise UserError(f"a data set {name!r} exists already; choose another name")
    SOURCES[name] = loader


def _digits(table: TableFile | None) -> Dataset:
    """Load the 8 x 8 images of scikit-learn: 0 to 4 are negative, 5 to 9 positive."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    found = load_digits()
    images = np.rint(found.images * (255 / 16)).astype(np.uint8)[:, None]
    digest = hashlib.sha256(images.tobytes() + found.target.tobytes()).hexdigest()[:16]
    positive = found.target >= 5
    return Dataset("digits", images, positive, positive_name="5 to 9", fingerprint=digest)


def _image_dataset(name: str, table: TableFile | None) -> Dataset:
    source = image_datasets.SOURCES[name]
    parts = image_datasets.load(source)
    # The first half of the classes is negative (paper, section 4).
    first_positive = len(source.classes) // 2
    return Dataset(
        name=name,
        inputs=parts.train,
        positive=parts.train_labels >= first_positive,
        test_inputs=parts.test,
        test_positive=parts.test_labels >= first_positive,
        photographs=True,
        positive_name=", ".join(source.classes[first_positive:]),
        fingerprint=parts.fingerprint,
    )


def _table(table: TableFile | None) -> Dataset:
    if table is None:
        raise UserError("data 'table' needs a file and a label column: --data FILE --label COLUMN")
    return Dataset("table", **_tables.load(table))


SOURCES: Registry[Loader] = Registry(
    "data",
    {"digits": _digits}
    | {name: partial(_image_dataset, name) for name in image_datasets.SOURCES}
    | {"table": _table},
)
"""By name: a function that takes the user's table (or None) and returns a `Dataset`."""

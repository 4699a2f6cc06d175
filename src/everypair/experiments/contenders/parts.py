"""Encode a table's training and test rows, and divide the training rows into folds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.data import splits
from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.data.sources import Dataset
from everypair.experiments.errors import UserError
from everypair.experiments.families import Rows

Fold = tuple[NDArray[np.intp], NDArray[np.intp]]


@dataclass(frozen=True)
class Parts:
    """The training part, the test part, and the encoder that was fitted on the training part."""

    encoder: TableEncoder
    train: Rows
    test: Rows


def parts_of(dataset: Dataset, seed: int) -> Parts:
    """Hold out the test part of a seed, and encode both parts."""
    chosen = splits.split_rows(dataset, imratio=0.0, seed=seed, protocol="corrected")
    train = np.sort(np.concatenate([chosen.subtrain, chosen.validation]))
    encoder = splits.fit_encoder(dataset, train)
    if dataset.test_positive is None:
        frame, positive, groups = dataset.inputs, dataset.positive, dataset.groups
    else:
        frame, positive, groups = dataset.test_inputs, dataset.test_positive, None
    training = _rows(encoder, dataset.inputs, dataset.positive, dataset.groups, train)
    if dataset.time is not None:  # random folds would validate on rows older than those fitted
        training = replace(training, validation=np.isin(train, chosen.validation))
    return Parts(encoder, training, _rows(encoder, frame, positive, groups, chosen.test))


def all_rows(dataset: Dataset) -> tuple[TableEncoder, Rows]:
    """Encode all rows of the table, with an encoder that is fitted on all of them."""
    every = np.arange(len(dataset.positive))
    encoder = splits.fit_encoder(dataset, every)
    return encoder, _rows(encoder, dataset.inputs, dataset.positive, dataset.groups, every)


def folds(rows: Rows, seed: int) -> list[Fold]:
    """Return training and validation row numbers for cross-validation.

    Small tables have more folds, since they are noisier and cheaper: five folds twice up to 5,000
    rows, five folds up to 10,000, three folds up to 30,000, and beyond that one validation part of
    a third. With groups, the rows of a group are in one fold. A table with times has one validation
    part, the newest of the training rows.
    """
    if rows.validation is not None:
        return [(np.flatnonzero(~rows.validation), np.flatnonzero(rows.validation))]
    from sklearn import model_selection as cv  # type: ignore[import-untyped]

    n, fewest = len(rows), int(min(rows.y.sum(), (~rows.y).sum()))
    if rows.groups is not None:
        fewest = min(fewest, len(np.unique(rows.groups)))
        if fewest < 2:
            raise UserError(
                "cross-validation needs at least two groups outside the test part; got 1. "
                "Use a group column with more groups, or no --group"
            )
    k = max(2, min(5 if n <= 10_000 else 3, fewest))
    repeats = 2 if n <= 5_000 else 1
    splitter = cv.StratifiedKFold if rows.groups is None else cv.StratifiedGroupKFold
    found = []
    for repeat in range(repeats):
        folded = splitter(k, shuffle=True, random_state=1000 * seed + repeat)
        found += list(folded.split(rows.X, rows.y, rows.groups))
    return found[:1] if n > 30_000 else found


def _rows(
    encoder: TableEncoder, frame: Any, positive: Any, groups: Any, rows: NDArray[Any]
) -> Rows:
    X = encoder.transform(frame.iloc[rows])
    return Rows(X, positive[rows], None if groups is None else groups[rows])

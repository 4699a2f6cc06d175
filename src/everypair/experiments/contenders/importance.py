"""Permutation importance: the drop of the test AUC when the values of a column are permuted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.experiments.contenders.cross_validation import auc
from everypair.experiments.data._encoder import TableEncoder
from everypair.experiments.families import Floats, Rows

MOST_COLUMNS = 40
"""Only so many columns are permuted: those whose features have the most distant AUC from 0.5."""

_MOST_ROWS = 1000  # of each class
_REPEATS = 3


def importance(
    scorer: Callable[[NDArray[np.float32]], Floats], encoder: TableEncoder, test: Rows
) -> list[dict[str, Any]]:
    """Return the mean drop in AUC for each column of the table, the largest first."""
    generator = np.random.default_rng(0)
    rows = np.concatenate(
        [generator.permutation(np.flatnonzero(test.y == y))[:_MOST_ROWS] for y in (True, False)]
    )
    test = test.take(rows)
    features: dict[str, list[int]] = {}
    place = 0
    for column in encoder.columns:
        features[column.name] = list(range(place, place + len(column.features)))
        place += len(column.features)
    alone = [abs(auc(x.astype(np.float64), test) - 0.5) for x in test.X.T]
    strongest = sorted(features, key=lambda name: -max(alone[i] for i in features[name]))
    base = auc(scorer(test.X), test)
    found = []
    for name in strongest[:MOST_COLUMNS]:
        drops = []
        for _ in range(_REPEATS):
            permuted, order = test.X.copy(), generator.permutation(len(rows))
            permuted[:, features[name]] = test.X[order][:, features[name]]
            drops.append(base - auc(scorer(permuted), test))
        found.append({"column": name, "drop": float(np.mean(drops))})
    return sorted(found, key=lambda row: -row["drop"])

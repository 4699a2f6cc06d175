"""The concordance index of ordered and survival targets."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from everypair import _ordered
from everypair._inputs import Batch
from everypair.metrics._tie_blocks import tie_blocks
from everypair.targets.groups import group_numbers
from everypair.targets.ranked import RankedRows


def concordance_index(batch: Batch, ranked: RankedRows, average: str) -> float:
    """Return the share of pairs in order, ties half, averaged over the groups as in `auc`."""
    if average == "pairs":
        concordant, pair_weight = _ordered.concordance(batch)
        if pair_weight == 0.0:
            _raise_no_pairs()
        return concordant / pair_weight
    groups = group_numbers(batch.order, batch.offsets)
    of_row = np.zeros(batch.scores.shape[0], np.int64) if groups is None else groups
    n_groups = int(of_row.max()) + 1
    concordant_of, pairs_of = np.zeros((2, n_groups))
    scores = batch.scores[ranked.order]
    for level in ranked.levels():
        if level.weights is not None and not level.weights.any():
            continue
        blocks = tie_blocks(_ordered.level_batch(scores, level), "auc")
        areas = blocks.own[1] * (blocks.above[0] + blocks.up_to[0]) / 2.0
        # The groups of a level lie inside those of the batch.
        parents = of_row[ranked.order[blocks.rows[blocks.heads[blocks.first]]]]
        exponents = blocks.exponents.sum(axis=0)
        for sums, parts in (
            (concordant_of, blocks.per_group(areas)),
            (pairs_of, blocks.total.prod(axis=0)),
        ):
            np.add.at(sums, parents, np.ldexp(parts, exponents))
    counts = pairs_of > 0.0
    if not counts.any():
        _raise_no_pairs()
    weights = np.ones(n_groups)
    if average == "rows":
        weights = np.bincount(of_row, batch.weights, n_groups).astype(np.float64)
    return float(np.average(concordant_of[counts] / pairs_of[counts], weights=weights[counts]))


def _raise_no_pairs() -> NoReturn:
    raise ValueError(
        "auc must have at least one pair of positive weight; got none. Check that labels differ "
        "inside some group, and that survival times hold an event before another time."
    )

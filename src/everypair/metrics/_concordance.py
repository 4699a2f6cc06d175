"""The concordance index of ordered and survival targets."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from everypair.inputs.batches import Batch
from everypair.inputs.groups import group_numbers
from everypair.inputs.ranked import RankedRows
from everypair.kernel import choose, levels, native
from everypair.metrics._tie_blocks import Floats, bounded, tie_blocks


def concordance_index(batch: Batch, ranked: RankedRows, average: str) -> float:
    """Return the share of pairs in order, ties half, averaged over the groups as in `auc`."""
    if average == "pairs":
        concordant, pair_weight = choose.concordance(batch)
        if pair_weight == 0.0:
            raise_no_pairs("auc")
        return bounded(concordant / pair_weight)
    groups = group_numbers(batch.order, batch.offsets)
    of_row = np.zeros(batch.scores.shape[0], np.int64) if groups is None else groups
    ordered, pairs = (np.bincount(of_row, sums) for sums in row_pairs(batch, ranked))
    counts = pairs > 0.0
    if not counts.any():
        raise_no_pairs("auc")
    weights = np.ones(pairs.shape[0])
    if average == "rows":
        weights = np.bincount(of_row, batch.weights).astype(np.float64)
    return bounded(np.average(ordered[counts] / pairs[counts], weights=weights[counts]))


def row_pairs(batch: Batch, ranked: RankedRows) -> Floats:
    """Return (2, n): the weight of the pairs of each row in order, ties half, and of all its pairs.

    Both are over the same power of two. Each pair belongs to two rows.
    """
    compiled = native.row_concordance(batch, ranked) if choose.uses_native() else None
    if compiled is not None:
        return compiled
    sums = np.zeros((2, batch.scores.shape[0]))
    scores = batch.scores[ranked.order]
    for level in ranked.levels():
        if level.weights is not None and not level.weights.any():
            continue
        blocks = tie_blocks(levels.level_batch(scores, level), "auc")
        wins, total = (blocks.above + blocks.up_to) / 2.0, blocks.per_block(blocks.total)
        # By role of the row (winner, loser): the weight of the losers below, the winners above, and
        # of all rows of the other role.
        of_block = np.array([[total[1] - wins[1], wins[0]], total[::-1]])
        of_block = np.ldexp(of_block, blocks.per_block(blocks.exponents)[::-1])
        block = np.repeat(
            np.arange(blocks.heads.shape[0]), np.diff(blocks.heads, append=blocks.rows.shape[0])
        )
        role = (~level.positive[blocks.rows]).astype(np.intp)
        of_row = of_block[:, role, block]
        if level.weights is not None:
            of_row *= level.weights[blocks.rows]
        sums[:, ranked.order[blocks.rows]] += of_row
    return sums


def raise_no_pairs(name: str) -> NoReturn:
    """Raise the error about targets that have no pair."""
    raise ValueError(
        f"{name} must have at least one pair of positive weight; got none. Check that labels "
        "differ inside some group, and that survival times hold an event before another time."
    )

"""The hardest rows of each class, to which a loss over a part of the ROC curve is restricted."""

from __future__ import annotations

import numpy as np

from everypair.inputs import batches, pair_options
from everypair.inputs.batches import Batch
from everypair.metrics.tie_blocks import tie_blocks


def keep_hardest(batch: Batch, max_fpr: float | None, min_tpr: float | None) -> None:
    """Multiply the weights of a binary batch by the share of each row that is kept.

    Kept are the highest negatives up to a share of `max_fpr` of their weight, and the lowest
    positives up to a share of ``1 - min_tpr``, in each group. A row at the boundary is kept in
    part, and rows with equal scores are kept in the same share. Of negatives that are to have the
    share 0 the highest is kept: the limit of small shares, up to a factor.
    """
    pairs = "binary" if batch.ranked is None else "ordered"
    rates = pair_options.check_rates(max_fpr, min_tpr, pairs)
    widest, lowest = (whole if r is None else r for r, whole in zip(rates, (1.0, 0.0), strict=True))
    positive = batches.positives(batch)
    weights = np.ones(batch.scores.shape[0]) if batch.weights is None else batch.weights
    if not weights.any():
        return
    blocks = tie_blocks(batch, "max_fpr")
    (own_pos, own_neg), (total_pos, total_neg) = blocks.own, blocks.per_block(blocks.total)
    below = total_pos - blocks.up_to[0]
    room_pos, room_neg = (1.0 - lowest) * total_pos - below, widest * total_neg - blocks.above[1]
    if widest == 0.0:
        room_neg = np.where(blocks.above[1] == 0.0, own_neg, 0.0)
    shares = np.zeros((2, own_pos.shape[0]))
    for share, room, own in zip(shares, (room_pos, room_neg), (own_pos, own_neg), strict=True):
        np.divide(room, own, out=share, where=own > 0.0)
    shares = np.repeat(shares.clip(0.0, 1.0), np.diff(blocks.heads, append=blocks.rows.size), 1)
    kept = np.zeros_like(weights)
    kept[blocks.rows] = np.where(positive[blocks.rows], *shares)
    batch.weights = weights * kept

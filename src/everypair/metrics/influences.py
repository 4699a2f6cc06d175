"""The influence of each row on the AUC or concordance index, and the variance that follows."""

from __future__ import annotations

import math
from numbers import Real
from statistics import NormalDist
from typing import NamedTuple, NoReturn

import numpy as np

from everypair.inputs import batches, binary
from everypair.inputs.batches import Batch
from everypair.inputs.ranked import RankedRows
from everypair.kernel import choose, native
from everypair.metrics.tie_blocks import Floats, tie_blocks


class Influence(NamedTuple):
    """The AUC, which rounding may bring above 1, and the influence of each row on it.

    `parts` (n,) are the derivatives of the AUC with respect to the logarithms of the row weights.
    Of two classes, that is the placement of a row minus the AUC, times the share of the row in the
    weight of its class. Rows of weight 0 have 0.
    """

    area: float
    parts: Floats


def influence(batch: Batch, name: str) -> Influence:
    """Compute the influence of all rows, of any targets; groups are ignored.

    `name` is that of the metric, for an error if there are no pairs.
    """
    if batch.ranked is not None:
        in_order, pairs = row_pairs(batch, batch.ranked)
        pair_weight = float(pairs.sum()) / 2.0
        if pair_weight == 0.0:
            raise_no_pairs(batch, name)
        area = float(in_order.sum()) / 2.0 / pair_weight
        return Influence(area, (in_order - area * pairs) / pair_weight)
    blocks = tie_blocks(batch, name, within_groups=False)
    positive = batches.positives(batch)
    if not blocks.total.all():
        raise_no_pairs(batch, name)
    t, f = blocks.total[:, 0].tolist()
    positives_above, negatives_above = (blocks.above + blocks.up_to) / 2.0
    concordant = float((blocks.weight[1] * positives_above).sum())
    discordant = float((blocks.weight[0] * negatives_above).sum())
    # A positive with the weight a of negatives above has the placement 1 - a / f.
    of_class = np.stack([discordant - t * negatives_above, f * positives_above - concordant])
    is_negative = (~positive[blocks.rows]).astype(np.intp)
    shares = np.array([1.0 / t, 1.0 / f])[is_negative]
    if batch.weights is not None:
        shares *= np.ldexp(batch.weights[blocks.rows], -blocks.exponents[is_negative, 0])
    parts = np.zeros(positive.shape[0])
    parts[blocks.rows] = shares * of_class[is_negative, blocks.of_rows] / (t * f)
    return Influence(concordant / (t * f), parts)


def row_pairs(batch: Batch, ranked: RankedRows) -> Floats:
    """Return (2, n): the weight of the pairs of each row in order, ties half, and of all its pairs.

    Both are over the same power of two. Each pair belongs to two rows.
    """
    compiled = native.row_concordance(batch, ranked) if choose.uses_native() else None
    if compiled is not None:
        return compiled
    sums = np.zeros((2, batch.scores.shape[0]))
    rows = ranked.rows
    for level, _ in choose.level_batches(batch.scores[rows.order], rows):
        blocks = tie_blocks(level, "auc")
        wins, total = (blocks.above + blocks.up_to) / 2.0, blocks.per_block(blocks.total)
        # By role of the row (winner, loser): the weight of the losers below, the winners above, and
        # of all rows of the other role.
        of_block = np.array([[total[1] - wins[1], wins[0]], total[::-1]])
        of_block = np.ldexp(of_block, blocks.per_block(blocks.exponents)[::-1])
        is_loser = (~level.labels[blocks.rows]).astype(np.intp)
        of_row = of_block[:, is_loser, blocks.of_rows]
        if level.weights is not None:
            of_row *= level.weights[blocks.rows]
        sums[:, rows.order[blocks.rows]] += of_row
    return sums


def raise_no_pairs(batch: Batch, name: str) -> NoReturn:
    """Raise the error about a batch without a pair of positive weight."""
    if batch.ranked is None:
        binary.raise_no_pairs(batches.positives(batch), batch.weights, name)
    raise ValueError(
        f"{name} must have at least one pair of positive weight; got none. Check that labels "
        "differ inside some group, and that survival times hold an event before another time."
    )


def variance_of(batch: Batch, parts: Floats, name: str) -> float:
    """Return the variance of the sum of the parts of independent rows, or groups of rows."""
    has_weight = np.ones(parts.shape[0], bool) if batch.weights is None else batch.weights > 0.0
    is_binary, units = batch.ranked is None, "rows"
    counts = np.stack([has_weight])
    if is_binary:
        counts = has_weight & (batches.positives(batch) == np.array([[True], [False]]))
    sums = np.where(counts, parts, 0.0)
    if batch.offsets is not None:
        units, order = "groups", slice(None) if batch.order is None else batch.order
        heads = batch.offsets[:-1]
        sums = np.add.reduceat(sums[:, order], heads, axis=1)
        counts = np.logical_or.reduceat(counts[:, order], heads, axis=1)
    sizes = counts.sum(axis=1)
    if sizes.min() < 2:
        numbers = "{} with positives and {} with negatives" if is_binary else "{}"
        raise ValueError(
            f"{name} must have at least two {units}{' of each class' if is_binary else ''}, to "
            f"estimate a variance; got {numbers.format(*sizes)}. Use auc, or evaluate on more rows."
        )
    variance = float(((sums**2).sum(axis=1) * sizes / (sizes - 1)).sum())
    if not is_binary:
        return variance
    n = int(counts.any(axis=0).sum())
    return variance + float(2.0 * n / (n - 1) * (sums[0] * sums[1]).sum())


def normal_quantile(confidence: object) -> float:
    """Check a confidence level and return the normal quantile of a two-sided interval."""
    if isinstance(confidence, Real) and 0.0 < float(confidence) < 1.0:
        return NormalDist().inv_cdf(0.5 + float(confidence) / 2.0)
    raise ValueError(
        f"confidence must be a number above 0 and below 1; got {confidence!r}. 0.95 is usual."
    )


def interval(area: float, variance: float, z: float, method: str) -> tuple[float, float]:
    """Return the confidence interval of an AUC; `method` is that of `delong`."""
    half = z * math.sqrt(variance)
    if method == "logit" and 0.0 < area < 1.0:
        centre, half = math.log(area / (1.0 - area)), half / (area * (1.0 - area))
        low, high = ((1.0 + math.tanh((centre + side) / 2.0)) / 2.0 for side in (-half, half))
        return min(low, area), max(high, area)  # whatever the rounding
    return max(area - half, 0.0), min(area + half, 1.0)

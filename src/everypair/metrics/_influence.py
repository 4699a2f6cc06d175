"""The influence of each row on the AUC or concordance index, and the variance of the index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from everypair.inputs import batches, binary
from everypair.inputs.batches import Batch
from everypair.metrics._concordance import raise_no_pairs, row_pairs
from everypair.metrics._tie_blocks import Floats, tie_blocks


class Influence(NamedTuple):
    """The AUC as ``concordant / pair_weight``, and the influence of each row on it.

    `deviations` (n,), divided by the pair weight, are the derivatives of the AUC with respect to
    the logarithms of the row weights. Of two classes, that is the placement of a row minus the AUC,
    times the share of the row in the weight of its class. Rows of weight 0 have 0.
    """

    concordant: float
    pair_weight: float
    deviations: Floats


def influence(batch: Batch, name: str) -> Influence:
    """Compute the influence of all rows, of any targets; groups are ignored.

    `name` is that of the metric, for an error if there are no pairs.
    """
    if batch.ranked is not None:
        ordered, pairs = row_pairs(batch, batch.ranked)
        concordant, pair_weight = float(ordered.sum()) / 2.0, float(pairs.sum()) / 2.0
        if pair_weight == 0.0:
            raise_no_pairs(name)
        return Influence(concordant, pair_weight, ordered - concordant / pair_weight * pairs)
    blocks = tie_blocks(batch, name, within_groups=False)
    positive = batches.positives(batch)
    if not blocks.total.all():
        binary.raise_no_pairs(positive, batch.weights, name)
    t, f = blocks.total[:, 0].tolist()
    positives_above, negatives_above = (blocks.above + blocks.up_to) / 2.0
    concordant = float((blocks.own[1] * positives_above).sum())
    discordant = float((blocks.own[0] * negatives_above).sum())
    # A positive with the weight a of negatives above has the placement 1 - a / f.
    of_class = np.stack([discordant - t * negatives_above, f * positives_above - concordant])
    sizes = np.diff(blocks.heads, append=blocks.rows.shape[0])
    chosen = (~positive[blocks.rows]).astype(np.intp)
    block = np.repeat(np.arange(sizes.shape[0]), sizes)
    shares = np.array([1.0 / t, 1.0 / f])[chosen]
    if batch.weights is not None:
        shares *= np.ldexp(batch.weights[blocks.rows], -blocks.exponents[chosen, 0])
    deviations = np.zeros(positive.shape[0])
    deviations[blocks.rows] = shares * of_class[chosen, block]
    return Influence(concordant, t * f, deviations)


def variance_of(batch: Batch, deviations: Floats, name: str) -> float:
    """Return the variance of the sum of the deviations of independent rows, or groups of rows."""
    kept = np.ones(deviations.shape[0], bool) if batch.weights is None else batch.weights > 0.0
    classes, which, holding = [kept], "", [""]
    if batch.ranked is None:
        positive = batches.positives(batch)
        classes, which = [positive & kept, ~positive & kept], " of each class"
        holding = [" with positives", " with negatives"]
    counts = np.stack(classes)
    sums = np.where(counts, deviations, 0.0)
    if batch.offsets is not None:
        order = slice(None) if batch.order is None else batch.order
        heads = batch.offsets[:-1]
        sums = np.add.reduceat(sums[:, order], heads, axis=1)
        counts = np.logical_or.reduceat(counts[:, order], heads, axis=1)
    sizes = counts.sum(axis=1)
    if sizes.min() < 2:
        units = "rows" if batch.offsets is None else "groups"
        found = " and ".join(f"{n}{what}" for n, what in zip(sizes, holding, strict=True))
        raise ValueError(
            f"{name} must have at least two {units}{which}, to estimate a variance; got {found}. "
            "Use auc, or evaluate on more rows."
        )
    variance = float(((sums**2).sum(axis=1) * sizes / (sizes - 1)).sum())
    if batch.ranked is not None:
        return variance
    n = int(counts.any(axis=0).sum())
    return variance + float(2.0 * n / (n - 1) * (sums[0] * sums[1]).sum())

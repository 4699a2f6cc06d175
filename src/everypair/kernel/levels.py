"""Ordered pairs level by level: grouped binary pairs, one level for each bit of the rank.

Used where the compiled kernel does not take the ordered pairs at once; see
`everypair.inputs.ranked`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.inputs.batches import Batch
from everypair.inputs.ranked import Level, RankedRows
from everypair.kernel.request import Request, Result, check_overflow, in_batch_form


def pair_sums(
    request: Request, ranked: RankedRows, of_level: Callable[[Request], Result]
) -> Result:
    """Add up the levels: the mean of each one, weighted by its share of the pairs.

    `of_level` computes a request of binary pairs.
    """
    batch, rows = request.batch, ranked.rows
    # A row wins at some levels and loses at others, so its derivatives may cancel: float64 keeps
    # the digits that float32 scores have.
    scores = batch.scores[rows.order].astype(np.float64, copy=False)
    vector = None if request.vector is None else request.vector[rows.order]
    requested = request.grad, request.hess, vector is not None
    sums = [np.zeros_like(scores) if derivative else None for derivative in requested]
    value = total = 0.0
    # No pair weighs more than 1. Fractions of n^2 add up to at most 1, and cannot overflow.
    n_pairs = float(scores.shape[0]) ** 2
    for level in rows.levels():
        pair_weight = _pair_weight(level)
        if pair_weight == 0.0:
            continue
        total += pair_weight
        share = pair_weight / n_pairs
        part = of_level(
            request._replace(batch=level_batch(scores, level), mean=True, vector=vector)
        )
        value += share * part.value
        for summed, derivative in zip(sums, part[2:], strict=True):
            if summed is not None and derivative is not None:
                with np.errstate(all="ignore"):
                    summed += share * derivative
    with np.errstate(all="ignore"):
        pair_weight = float(np.ldexp(total, rows.exponent))
        scale = n_pairs / total if request.mean and total > 0.0 else n_pairs
        power = 0 if request.mean else rows.exponent
        value = float(np.ldexp(value * scale, power))
        arrays = [None if s is None else np.ldexp(s * scale, power) + 0.0 for s in sums]
    check_overflow(value, *arrays)
    derivatives = (in_batch_form(array, batch, rows.order) for array in arrays)
    return Result(value, pair_weight, *derivatives)


def concordance(
    batch: Batch, ranked: RankedRows, of_level: Callable[[Batch], tuple[float, float]]
) -> tuple[float, float]:
    """Return the weight of the correctly ordered pairs, ties half, and that of all pairs."""
    rows = ranked.rows
    scores = batch.scores[rows.order]
    concordant = total = 0.0
    for level in rows.levels():
        pair_weight = _pair_weight(level)
        if pair_weight > 0.0:
            part, of_all = of_level(level_batch(scores, level))
            concordant += part / of_all * pair_weight
            total += pair_weight
    return concordant, total


def level_batch(scores: NDArray[Any], level: Level) -> Batch:
    """Return a level of a ranked batch, with its (n,) sorted scores, as a binary batch."""
    batch = Batch()
    batch.scores, batch.labels, batch.weights = scores, level.positive, level.weights
    batch.order, batch.offsets, batch.ranked = None, level.offsets, None
    batch.dtype, batch.shape = scores.dtype, scores.shape
    return batch


def _pair_weight(level: Level) -> float:
    """Return the weight of all pairs of a level."""
    starts = level.offsets[:-1]
    w = np.ones(level.positive.shape[0]) if level.weights is None else level.weights
    winners, losers = (
        np.add.reduceat(np.where(level.positive == side, w, 0.0), starts) for side in (True, False)
    )
    return float(winners @ losers)

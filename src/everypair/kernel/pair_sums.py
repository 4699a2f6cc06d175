"""Evaluate batches of any target: two classes, or ordered or survival targets.

The compiled kernel takes the ordered pairs of polynomials at once. All other ordered pairs are
grouped binary pairs, one level for each bit of the rank (see `everypair.inputs.ranked`), and this
module adds up the levels.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from everypair.inputs import batches
from everypair.inputs.batches import Batch, centred
from everypair.inputs.ranked import Level, RankedRows
from everypair.kernel import choose
from everypair.kernel.choose import Result
from everypair.kernel.threads import kernel_threads
from everypair.surrogates import PairTerm, are_polynomials

Floats = NDArray[np.float64]


def evaluate(
    batch: Batch,
    terms: tuple[PairTerm, ...],
    mean: bool,
    *,
    grad: bool = False,
    hess: bool = False,
    vector: NDArray[Any] | None = None,
) -> Result:
    """Compute the loss and, on request, its gradient, diagonal Hessian and Hessian times vector.

    The vector is float32 or float64.
    """
    if batch.ranked is None:
        return choose.evaluate(batch, terms, mean, grad=grad, hess=hess, vector=vector)
    found = None
    if choose.kernel() is not None and are_polynomials(terms):
        if not hess and vector is None:
            found = _evaluate_graded(batch, batch.ranked, terms, mean, grad)
        found = found or _evaluate_compiled(batch, batch.ranked, terms, mean, grad, hess, vector)
    return found or _evaluate_levels(batch, batch.ranked, terms, mean, grad, hess, vector)


def hessian_times(
    batch: Batch, terms: tuple[PairTerm, ...], mean: bool, vector: NDArray[Any]
) -> NDArray[Any]:
    """Return the Hessian of the loss times a float32 or float64 vector, in the scores' dtype.

    It is linear in the vector and in the weight of a pair. Where these are large or small, powers
    of two are taken out of them, and the product stays in float64 until it is multiplied by them.
    """
    v, largest = centred(vector)
    size = math.frexp(largest)[1]
    heaviest = 1.0 if mean or batch.weights is None else batch.weights.max()
    is_ordinary = abs(size) < 64 and 2.0**-100 < heaviest < 2.0**100
    if is_ordinary or not 0.0 < largest < math.inf:
        return cast("NDArray[Any]", evaluate(batch, terms, mean, vector=v).hvp)
    wide, exponent = (batch, 0) if mean else _without_scale(batch)
    wide = copy(wide)
    wide.scores, wide.dtype = batch.scores.astype(np.float64), np.dtype(np.float64)
    # Room for entries that are much smaller than the largest, and for steep surrogates.
    v = np.ldexp(v.astype(np.float64, copy=False), 300 - size)
    product = cast("NDArray[Any]", evaluate(wide, terms, mean, vector=v).hvp)
    with np.errstate(over="ignore", under="ignore"):
        found = np.ldexp(product, exponent + size - 300)
        choose.check_overflow(found)
        rounded: NDArray[Any] = found.astype(batch.dtype)
    return rounded


def _without_scale(batch: Batch) -> tuple[Batch, int]:
    """Return a batch whose heaviest pair weighs about 1, and an exponent.

    The weight of a pair is ``2**exponent`` times that of the result.
    """
    weights, scaled = batch.weights, copy(batch)
    if weights is None:
        return batch, 0
    if batch.ranked is not None:
        scaled.ranked = batch.ranked.without_scale()
        return scaled, batch.ranked.exponent
    positive = batches.positives(batch)
    largest = [weights.max(where=rows, initial=0.0) for rows in (positive, ~positive)]
    of_classes = [math.frexp(top)[1] for top in largest]
    scaled.weights = np.ldexp(weights, -np.where(positive, *of_classes))
    return scaled, sum(of_classes)


def concordance(batch: Batch) -> tuple[float, float]:
    """Return the weight of the correctly ordered pairs, ties half, and that of all pairs.

    Both are over the same power of two.
    """
    if batch.ranked is None:
        return choose.concordance(batch)
    if (kernel := choose.kernel()) is not None:
        if (plain := batch.ranked.plain()) is not None:
            _, concordant, total = kernel.auc_targets(batch.scores, *plain, None, None)
        else:
            arrays, threads = batch.ranked.arrays(), kernel_threads()
            _, concordant, total = kernel.auc_ordered(batch.scores, arrays, threads)
        return concordant, total
    scores = batch.scores[batch.ranked.order]
    concordant = total = 0.0
    for level in batch.ranked.levels():
        pair_weight = _pair_weight(level)
        if pair_weight > 0.0:
            of_level, of_all = choose.concordance(level_batch(scores, level))
            concordant += of_level / of_all * pair_weight
            total += pair_weight
    return concordant, total


def _evaluate_graded(
    batch: Batch, ranked: RankedRows, terms: tuple[PairTerm, ...], mean: bool, grad: bool
) -> Result | None:
    """Evaluate few grades of float32 scores without a sort; None if the kernel declines."""
    kernel, plain = choose.kernel(), ranked.plain()
    if kernel is None or plain is None or plain[1] is not None or batch.scores.itemsize > 4:
        return None
    out = np.empty_like(batch.scores) if grad else None
    _, value, pairs = kernel.evaluate_graded(
        batch.scores, plain[0], (terms, None, None), mean, kernel_threads(), out
    )
    if not math.isfinite(value):
        return None
    return Result(value, pairs, choose.as_given(out, batch), None, None)


def _evaluate_compiled(
    batch: Batch,
    ranked: RankedRows,
    terms: tuple[PairTerm, ...],
    mean: bool,
    grad: bool,
    hess: bool,
    vector: NDArray[Any] | None,
) -> Result | None:
    """Return the result of the compiled kernel, or None if that would not be reliable."""
    sorted_arrays, exponent = _sorted_arrays(ranked)
    if abs(exponent) > 900:
        return None
    scores = batch.scores
    asked = (grad, hess, vector is not None)
    arrays = [np.empty_like(scores) if wanted else None for wanted in asked]
    _, value, total = choose.kernel().evaluate_ordered(
        scores, sorted_arrays, vector, (terms, None, None), mean,
        math.ldexp(1.0, exponent), kernel_threads(), *arrays,
    )  # fmt: skip
    if not math.isfinite(value):
        return None
    derivatives = (choose.as_given(array, batch) for array in arrays)
    return Result(value, math.ldexp(total, exponent), *derivatives)


def _sorted_arrays(ranked: RankedRows) -> tuple[tuple[NDArray[Any] | None, ...], int]:
    """Return `RankedRows.arrays` and the exponent; the kernel sorts targets if it can read them."""
    if (plain := ranked.plain()) is None:
        return ranked.arrays(), ranked.exponent
    targets, events = plain
    n = targets.shape[0]
    order, ranks = np.empty((2, n), np.int64)
    choose.kernel().rank_targets(targets, events, order, ranks)
    winner = None if events is None else events[order].astype(np.float64)
    return (order, ranks, np.array([0, n], np.int64), winner, None), 0


def _evaluate_levels(
    batch: Batch,
    ranked: RankedRows,
    terms: tuple[PairTerm, ...],
    mean: bool,
    grad: bool,
    hess: bool,
    vector: NDArray[Any] | None,
) -> Result:
    """Add up the levels: the mean of each one, weighted by its share of the pairs."""
    # A row wins at some levels and loses at others, so its derivatives may cancel: float64 keeps
    # the digits that float32 scores have.
    scores = batch.scores[ranked.order].astype(np.float64, copy=False)
    v = None if vector is None else vector[ranked.order]
    sums = [np.zeros_like(scores) if asked else None for asked in (grad, hess, v is not None)]
    value = total = 0.0
    # A share of all pairs there could be is at most 1, so that no sum overflows before its end. No
    # pair weighs more than 1.
    most = float(scores.shape[0]) ** 2
    for level in ranked.levels():
        pair_weight = _pair_weight(level)
        if pair_weight == 0.0:
            continue
        total += pair_weight
        share = pair_weight / most
        found = choose.evaluate(
            level_batch(scores, level), terms, True, grad=grad, hess=hess, vector=v
        )
        value += share * found.value
        for summed, of_level in zip(sums, found[2:], strict=True):
            if summed is not None and of_level is not None:
                with np.errstate(all="ignore"):
                    summed += share * of_level
    with np.errstate(all="ignore"):
        pair_weight = float(np.ldexp(total, ranked.exponent))
        scale = most / total if mean and total > 0.0 else most
        power = 0 if mean else ranked.exponent
        value = float(np.ldexp(value * scale, power))
        arrays = [None if s is None else np.ldexp(s * scale, power) + 0.0 for s in sums]
    choose.check_overflow(value, *arrays)
    derivatives = (choose.as_given(array, batch, ranked.order) for array in arrays)
    return Result(value, pair_weight, *derivatives)


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

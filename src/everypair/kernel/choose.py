"""Choose what computes a batch: the compiled kernel, or NumPy.

The environment variable ``EVERYPAIR_BACKEND`` (``auto``, ``numpy`` or ``native``) sets the backend
of a process, and `backend` that of a block of code. All of them take the terms of a surrogate,
never its name.

The compiled kernel computes nearly all batches. It declines those whose differences overflow or
whose terms cancel. NumPy computes them reliably, in double-double arithmetic, so that correctness
rests on NumPy even where the kernel is installed. Ordered pairs that the kernel declines are
computed level by level (`everypair.inputs.ranked`): each level is a batch of binary pairs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from everypair.arrays import numpy as arrays_numpy
from everypair.inputs import batches
from everypair.inputs.batches import Batch
from everypair.inputs.ranked import SortedRows, levels
from everypair.kernel import native
from everypair.kernel.request import Request, Result, check_overflow, result_for

_VARIABLE = "EVERYPAIR_BACKEND"
_BACKENDS = ("auto", "numpy", "native")

_chosen: ContextVar[bool | None] = ContextVar("everypair_backend", default=None)


def pair_sums(request: Request) -> Result:
    """Compute the loss and the derivatives of a batch of any target."""
    result = native.pair_sums(request) if uses_native() else None
    if result is not None:
        return result
    ranked = request.batch.ranked
    return _numpy_sums(request) if ranked is None else level_sums(request, ranked.rows)


def concordance(batch: Batch) -> tuple[float, float]:
    """Return the weight of the correctly ordered pairs, ties half, and that of all pairs.

    Both are over the same power of two.
    """
    if uses_native():
        return native.concordance(batch)
    if batch.ranked is not None:
        rows = batch.ranked.rows
        scores = batch.scores[rows.order]
        parts = [(*concordance(level), weight) for level, weight in level_batches(scores, rows)]
        return sum(a / total * weight for a, total, weight in parts), sum(w for *_, w in parts)
    scores, positive, weights = _by_group(
        batch.order, batch.scores, batches.positives(batch), batch.weights
    )
    return arrays_numpy.concordance(scores, positive, weights, batch.offsets)


def hessian_product(request: Request) -> NDArray[Any]:
    """Return the Hessian of the loss times the vector of a request, in the scores' dtype.

    It is linear in the vector and in the weight of a pair. Where these are large or small, powers
    of two are taken out of them, and the product stays in float64 until it is multiplied by them.
    """
    batch, mean = request.batch, request.mean
    vector = cast("NDArray[Any]", request.vector)
    # The Hessian maps a common offset to zero, but it costs digits.
    low, high = float(vector.min()), float(vector.max())
    largest = max(high, -low)
    if high - low < abs(low):
        vector, largest = vector.astype(np.float64, copy=False) - low, high - low
    size, exponent = math.frexp(largest)[1], 0
    heaviest = 1.0 if mean or batch.weights is None else batch.weights.max()
    is_ordinary = abs(size) < 64 and 2.0**-100 < heaviest < 2.0**100
    if 0.0 < largest < math.inf and not is_ordinary:
        batch = copy(batch)
        if not mean and batch.weights is not None:
            exponent = _take_scale(batch, batch.weights)
        batch.scores, batch.dtype = batch.scores.astype(np.float64), np.dtype(np.float64)
        # Room for entries that are much smaller than the largest, and for steep surrogates.
        vector = np.ldexp(vector.astype(np.float64, copy=False), 300 - size)
        exponent += size - 300
    request, original_request = request._replace(batch=batch, vector=vector), request
    try:
        product = cast("NDArray[Any]", pair_sums(request).hvp)
    except OverflowError:
        if batch is original_request.batch:
            raise
        vector, exponent = np.ldexp(vector, -400), exponent + 400
        product = cast("NDArray[Any]", pair_sums(request._replace(vector=vector)).hvp)
    if batch is original_request.batch:
        return product
    with np.errstate(over="ignore", under="ignore"):
        result: NDArray[Any] = np.ldexp(product, exponent)
        check_overflow(result)
        return result.astype(original_request.batch.dtype)


def split_classes(
    batch: Batch, out: tuple[NDArray[Any], NDArray[Any]] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check the values of a batch; return the scores of the positives and of the negatives.

    They are at the start of the two arrays `out`, if given, which have the size and dtype of the
    scores.
    """
    scores = batch.scores
    pos, neg = out or (np.empty_like(scores), np.empty_like(scores))
    if uses_native():
        n_pos = native.split_classes(batch, pos, neg)
    else:
        positive = batches.positives(batch)
        n_pos = int(np.count_nonzero(positive))
        np.compress(positive, scores, out=pos[:n_pos])
        np.compress(~positive, scores, out=neg[: scores.shape[0] - n_pos])
    return pos[:n_pos], neg[: scores.shape[0] - n_pos]


def uses_native() -> bool:
    """Return whether the compiled kernel is installed and chosen."""
    chosen = _chosen.get()
    return _default() if chosen is None else chosen


def get_backend() -> str:
    """Return what computes on the CPU: ``"numpy"``, or ``"native"`` with the instruction set.

    "native" is the compiled kernel. Without it, the same functions run on NumPy, more slowly.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.get_backend() == "numpy" or ep.get_backend().startswith("native (")  # "native (avx2)"
    True
    """
    return f"native ({native.kernel.isa()})" if uses_native() else "numpy"


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Use this backend inside the block, in the current thread or asyncio task only."""
    token = _chosen.set(_is_native(name, "backend"))
    try:
        yield
    finally:
        _chosen.reset(token)


def _take_scale(batch: Batch, weights: NDArray[np.float64]) -> int:
    """Divide the weights of a batch so that its heaviest pair weighs about 1.

    Returns an exponent: the weight of a pair was ``2**exponent`` times as large.
    """
    if batch.ranked is not None:
        exponent = batch.ranked.rows.exponent
        batch.ranked = copy(batch.ranked)
        batch.ranked.rows = batch.ranked.rows._replace(exponent=0)
        return exponent
    positive = batches.positives(batch)
    largest = [weights.max(where=rows, initial=0.0) for rows in (positive, ~positive)]
    of_classes = [math.frexp(top)[1] for top in largest]
    batch.weights = np.ldexp(weights, -np.where(positive, *of_classes))
    return sum(of_classes)


def _numpy_sums(request: Request) -> Result:
    batch, order = request.batch, request.batch.order
    vector = None if request.vector is None else request.vector.astype(np.float64, copy=False)
    scores, positive, weights, vector = _by_group(
        order, batch.scores, batches.positives(batch), batch.weights, vector
    )
    value, pair_weight, *arrays = arrays_numpy.evaluate(
        scores, positive, weights, batch.offsets, vector, request.terms,
        mean=request.mean, grad=request.grad, hess=request.hess,
    )  # fmt: skip
    return result_for(batch, order, value, pair_weight, arrays)


def _by_group(order: NDArray[np.intp] | None, *arrays: NDArray[Any] | None) -> tuple[Any, ...]:
    """Return arrays of rows in an order in which groups are contiguous."""
    if order is None:
        return arrays
    return tuple(None if array is None else array[order] for array in arrays)


def level_sums(request: Request, rows: SortedRows) -> Result:
    """Add up the levels of ordered pairs: the mean of each, weighted by its share of the pairs."""
    # A row wins at some levels and loses at others, so its derivatives may cancel: float64 keeps
    # the digits that float32 scores have.
    scores = request.batch.scores[rows.order].astype(np.float64, copy=False)
    vector = None if request.vector is None else request.vector[rows.order]
    requested = request.grad, request.hess, vector is not None
    sums = [np.zeros_like(scores) if derivative else None for derivative in requested]
    value = total = 0.0
    # No pair weighs more than 1. Fractions of n^2 add up to at most 1, and cannot overflow.
    n_pairs = float(scores.shape[0]) ** 2
    with np.errstate(all="ignore"):
        for level, pair_weight in level_batches(scores, rows):
            share = pair_weight / n_pairs
            part = pair_sums(request._replace(batch=level, mean=True, vector=vector))
            value += share * part.value
            total += pair_weight
            for summed, derivative in zip(sums, part[2:], strict=True):
                if summed is not None and derivative is not None:
                    summed += share * derivative
        scale = n_pairs / total if request.mean and total > 0.0 else n_pairs
        power = 0 if request.mean else rows.exponent
        value = float(np.ldexp(value * scale, power))
        arrays = [None if s is None else np.ldexp(s * scale, power) + 0.0 for s in sums]
        pair_weight = float(np.ldexp(total, rows.exponent))
    return result_for(request.batch, rows.order, value, pair_weight, arrays)


def level_batches(scores: NDArray[Any], rows: SortedRows) -> Iterator[tuple[Batch, float]]:
    """Yield each level as a batch of binary pairs of the (n,) sorted scores, with their weight.

    Levels without a pair of positive weight are left out.
    """
    winner, loser = (1.0 if w is None else w for w in (rows.winner, rows.loser))
    weighted = rows.winner is not None or rows.loser is not None
    for positive, offsets in levels(rows.ranks, rows.offsets):
        winners, losers = np.where(positive, winner, 0.0), np.where(positive, 0.0, loser)
        of_groups = [np.add.reduceat(w, offsets[:-1]) for w in (winners, losers)]
        pair_weight = float(np.dot(*of_groups))
        if pair_weight > 0.0:
            batch = Batch()
            batch.scores, batch.labels, batch.offsets = scores, positive, offsets
            batch.weights = winners + losers if weighted else None
            batch.order = batch.ranked = None
            batch.dtype, batch.shape = scores.dtype, scores.shape
            yield batch, pair_weight


@cache
def _default() -> bool:
    return _is_native(os.environ.get(_VARIABLE, "") or "auto", _VARIABLE)


def _is_native(name: str, source: str) -> bool:
    if name not in _BACKENDS:
        raise ValueError(f"{source} must be one of {', '.join(_BACKENDS)}; got {name!r}.")
    if name == "native" and native.kernel is None:
        raise ImportError(
            f"{source} asks for the compiled kernel, which is not installed. Build it "
            "in a checkout, with a C++20 compiler: pip install ."
        )
    return name == "native" or (name == "auto" and native.kernel is not None)

"""All calls of the compiled kernel (``src/native``, described in ``everypair/_native.pyi``).

Each function returns None if the kernel declines: it does not take the surrogate, or sums overflow
or cancel so far that its results would not be reliable. The caller then computes with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.inputs import batches
from everypair.inputs.batches import Batch
from everypair.inputs.binary import LABEL_DTYPES
from everypair.inputs.ranked import RankedRows
from everypair.kernel.bucket_series import SmoothForm, smooth_form
from everypair.kernel.request import Request, Result, in_batch_form
from everypair.kernel.threads import kernel_threads
from everypair.surrogates import (
    Exponential,
    Floats,
    KnotTerm,
    PairTerm,
    are_polynomials,
    tables,
)

try:
    from everypair import _native
except ImportError:  # installed without the compiled kernel: NumPy computes, more slowly
    _native = None  # type: ignore[assignment]

kernel = _native
"""The compiled module, or None."""

NativeForm = tuple[tuple[KnotTerm, ...] | None, SmoothForm | None, Exponential | None]
"""A surrogate as the compiled kernel takes it: in one of three forms, the others being None."""

PieceForm = tuple[float, float, Floats, Floats]
"""A piece of a surrogate for row sums: shift, rate, powers (3, 2, K) and polynomials (3, 2, 3)."""

MAX_POWERS = 24
_LARGE = 2.0**660  # a smaller value means that no derivative overflowed
_BAD_VALUES = 7  # the bits of a status that name bad scores, labels and weights


def pair_sums(request: Request) -> Result | None:
    """Compute the loss and the derivatives of a batch of any target."""
    batch, vector = request.batch, request.vector
    form = native_form(request.terms, batch.scores.itemsize > 4, request.hess)
    if form is None:
        return None
    order, scores, labels, weights, offsets, pairs = _rows(batch)
    if vector is not None:
        vector = (vector if order is None else vector[order]).astype(np.float64, copy=False)
    grad = np.empty_like(scores) if request.grad else None
    hess = np.empty_like(scores) if request.hess else None
    hvp = None if vector is None else np.empty_like(scores)
    status, value, pair_weight = kernel.evaluate(
        scores, labels, weights, offsets, pairs, vector, form, request.mean, kernel_threads(),
        grad, hess, hvp,
    )  # fmt: skip
    if status or not abs(value) < _LARGE:
        if status & _BAD_VALUES:
            batches.raise_bad_values(batch)
        return None
    if hvp is not None and weights is not None and not np.isfinite(hvp).all():
        return None  # the value does not tell whether heavy products with the vector overflowed
    if order is not None or scores.dtype is not batch.dtype or len(batch.shape) != 1:
        grad, hess, hvp = (in_batch_form(array, batch, order) for array in (grad, hess, hvp))
    return Result(value, pair_weight, grad, hess, hvp)


def tensor_sums(
    scores: Any, labels: Any, weights: Floats | None, terms: tuple[PairTerm, ...], mean: bool,
    *, wide: bool,
) -> tuple[Any, float, Any] | None:  # fmt: skip
    """Return value, pair weight and gradient of tensors of torch; the first and last are tensors.

    The kernel reads the memory of scores and labels itself. It declines tensors that it cannot read
    as they are, and values that are not allowed.
    """
    form = native_form(terms, wide, False)
    if form is None:
        return None
    return kernel.evaluate_tensors(scores, labels, weights, form, mean, kernel_threads())


@lru_cache(maxsize=128)
def native_form(terms: tuple[PairTerm, ...], wide: bool, hess: bool) -> NativeForm | None:
    """Return how the kernel takes these terms for float64 scores (`wide`) or float32."""
    if are_polynomials(terms):
        return terms, None, None
    pieces, exponential = tables(terms, wide)
    if len(pieces) + len(exponential) != 1:
        return None
    if exponential:
        return None, None, exponential[0]
    smooth = smooth_form(pieces[0], wide, hess)
    return None if smooth is None else (None, smooth, None)


def _rows(batch: Batch) -> tuple[Any, ...]:
    """Return the order of the rows as the kernel takes them (None: their own), and the rows.

    These are scores, labels or targets, weights, offsets and pairs (see ``_native.pyi``).
    """
    scores, ranked, order = batch.scores, batch.ranked, batch.order
    if ranked is not None:
        if _is_plain(ranked):
            return None, scores, ranked.targets, None, None, (ranked.events,)
        order, ranks, offsets, *of_roles, exponent = ranked.rows
        return None, scores, None, None, offsets, (order, ranks, *of_roles, exponent)
    if order is None:
        return None, scores, batch.labels, batch.weights, batch.offsets, None
    weights = None if batch.weights is None else batch.weights[order]
    return order, scores[order], batch.labels[order], weights, batch.offsets, None


def _is_plain(ranked: RankedRows) -> bool:
    """Return whether the kernel can read the targets as they are, and no row has another weight."""
    if not (ranked.groups is None and ranked.winner is None and ranked.loser is None):
        return False
    flags = ranked.targets.flags
    return ranked.targets.dtype in LABEL_DTYPES and flags.c_contiguous and flags.aligned


def concordance(batch: Batch) -> tuple[float, float]:
    """Return the weight of the correctly ordered pairs, ties half, and that of all pairs.

    Both are over the same power of two.
    """
    _, scores, labels, weights, offsets, pairs = _rows(batch)
    status, concordant, pair_weight = kernel.concordance(
        scores, labels, weights, offsets, pairs, kernel_threads(), None, None
    )
    if status:
        batches.raise_bad_values(batch)
    return concordant, pair_weight


def row_concordance(batch: Batch, ranked: RankedRows) -> Floats | None:
    """Return (2, n): the number of pairs of each row in order, ties half, and of all its pairs."""
    if not _is_plain(ranked):
        return None
    sums = np.zeros((2, batch.scores.shape[0]))
    _, scores, labels, weights, offsets, pairs = _rows(batch)
    kernel.concordance(scores, labels, weights, offsets, pairs, kernel_threads(), sums[0], sums[1])
    return sums


def split_classes(batch: Batch, pos: NDArray[Any], neg: NDArray[Any]) -> int:
    """Copy the scores of each class to the start of an array; return the number of positives."""
    status, n_pos = kernel.split(batch.scores, batch.labels, pos, neg)
    if status:
        batches.raise_bad_values(batch)
    return n_pos


def count(scores: NDArray[np.float32], bits: int, table: NDArray[np.int64]) -> None:
    """Add scores to a table of ``2**bits`` buckets: see `everypair.streaming.score_buckets`."""
    kernel.count(scores, bits, table)


class RowSums:
    """Sums of one piece of a surrogate over all pairs of a row and another row.

    Scores are finite. Groups are numbers from 0, (n,) of the rows and (m,) of the others; only
    pairs inside a group count. The piece has at most `MAX_POWERS` powers.
    """

    def __init__(self, rows: Floats, others: Floats, groups: Any, piece: PieceForm) -> None:
        orders: list[Any] = [None, None]
        offsets: list[Any] = [None, None]
        self._sizes = rows.shape[0], others.shape[0]
        if groups is not None:
            numbers = np.arange(2 + max(int(codes.max()) for codes in groups))
            orders = [np.argsort(codes, kind="stable") for codes in groups]
            rows, others = rows[orders[0]], others[orders[1]]
            offsets = [
                np.searchsorted(codes, numbers, sorter=order)
                for codes, order in zip(groups, orders, strict=True)
            ]
        x, y = np.ascontiguousarray(rows), np.ascontiguousarray(others)
        self._orders = orders
        self._sums = kernel.row_sums(x, y, offsets[0], offsets[1], piece, kernel_threads())

    def sums(self, weights: Floats, orders: Sequence[int], per_other: bool) -> list[Floats]:
        """See `everypair.arrays.row_sums.RowSums`."""
        of_sources, of_targets = self._orders if per_other else self._orders[::-1]
        w = np.ascontiguousarray(weights if of_sources is None else weights[of_sources])
        sums = {order: np.empty(self._sizes[per_other]) for order in orders}
        arrays = sums.get(0), sums.get(1), sums.get(2)
        self._sums.fill(w, per_other, kernel_threads(), arrays)
        if of_targets is not None:
            for array in sums.values():
                array[of_targets] = array.copy()
        return list(sums.values())


def smooth_precision(
    scores: NDArray[Any],
    positive: NDArray[np.bool_],
    weights: Floats | None,
    shares: Floats,
    piece: PieceForm,
) -> tuple[float, Floats]:
    """Return `everypair.row_sums.smooth_precision_loss` without groups, and its gradient."""
    grad = np.empty(scores.shape[0])
    threads = kernel_threads()
    return kernel.smooth_precision(scores, positive, weights, shares, piece, threads, grad), grad


def borrow_team(fork: int) -> None:
    """Run the compiled kernel on the OpenMP threads that GOMP_parallel, at this address, starts."""
    if kernel is not None:
        kernel.borrow_team(fork)


def read_tensors(functions: Any) -> None:
    """Let the compiled kernel read and make tensors by these functions of DLPack, a capsule."""
    if kernel is not None:
        kernel.read_tensors(functions)

"""Choose what computes a batch: the compiled kernel, level by level, or NumPy.

The environment variable ``EVERYPAIR_BACKEND`` (``auto``, ``numpy`` or ``native``) sets the backend
of a process, and `backend` that of a block of code. All of them take the terms of a surrogate,
never its name.

The compiled kernel computes nearly all batches. It declines those whose differences overflow or
whose terms cancel. NumPy computes them reliably, in double-double arithmetic, so that correctness
rests on NumPy even where the kernel is installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everypair.arrays import numpy as arrays_numpy
from everypair.inputs import batches
from everypair.inputs.batches import Batch
from everypair.kernel import levels, native
from everypair.kernel.request import Request, Result, check_overflow, in_batch_form

_VARIABLE = "EVERYPAIR_BACKEND"
_BACKENDS = ("auto", "numpy", "native")

_chosen: ContextVar[bool | None] = ContextVar("everypair_backend", default=None)


def pair_sums(request: Request) -> Result:
    """Compute the loss and the derivatives of a batch of any target."""
    result = native.pair_sums(request) if uses_native() else None
    if result is not None:
        return result
    ranked = request.batch.ranked
    if ranked is not None:
        return levels.pair_sums(request, ranked, pair_sums)
    return _numpy_sums(request)


def concordance(batch: Batch) -> tuple[float, float]:
    """Return the weight of the correctly ordered pairs, ties half, and that of all pairs.

    Both are over the same power of two.
    """
    if uses_native():
        return native.concordance(batch)
    if batch.ranked is not None:
        return levels.concordance(batch, batch.ranked, concordance)
    scores, positive, weights = _by_group(
        batch.order, batch.scores, batches.positives(batch), batch.weights
    )
    return arrays_numpy.concordance(scores, positive, weights, batch.offsets)


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
    check_overflow(value, *arrays)
    return Result(value, pair_weight, *(in_batch_form(array, batch, order) for array in arrays))


def _by_group(order: NDArray[np.intp] | None, *arrays: NDArray[Any] | None) -> tuple[Any, ...]:
    """Return arrays of rows in an order in which groups are contiguous."""
    if order is None:
        return arrays
    return tuple(None if array is None else array[order] for array in arrays)


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

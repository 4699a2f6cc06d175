"""Choose the kernel: the compiled one if it is installed, NumPy otherwise.

The environment variable ``EVERYPAIR_BACKEND`` (``auto``, ``numpy`` or ``native``) sets the backend
of a process, and `backend` that of a block of code. Both kernels take the terms of a surrogate,
never its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everypair.arrays import numpy as _numpy
from everypair.inputs import batches
from everypair.inputs.batches import Batch
from everypair.kernel.bucket_series import SmoothForm, exponential_form, smooth_form
from everypair.kernel.threads import kernel_threads
from everypair.surrogates import (
    ExponentialCoefficients,
    KnotTerm,
    PairTerm,
    are_polynomials,
)

try:
    from everypair import _native
except ImportError:  # installed without the compiled kernel: NumPy computes, more slowly
    _native = None  # type: ignore[assignment]

_VARIABLE = "EVERYPAIR_BACKEND"
_BACKENDS = ("auto", "numpy", "native")
_LARGE = 2.0**660

_chosen: ContextVar[bool | None] = ContextVar("everypair_backend", default=None)
_default: bool | None = None


NativeForm = tuple[tuple[KnotTerm, ...] | None, SmoothForm | None, ExponentialCoefficients | None]
"""A surrogate as the compiled kernel takes it: in one of three forms, the others being None."""


class Result(NamedTuple):
    """The results of a kernel; a derivative that was not asked for is None.

    If only the Hessian times a vector was asked for, the value may be any number.
    """

    value: float
    pair_weight: float
    grad: NDArray[Any] | None
    hess: NDArray[Any] | None
    hvp: NDArray[Any] | None


def kernel() -> Any:
    """Return the module of the compiled kernel, or None if NumPy is chosen."""
    return _native if _uses_native() else None


def get_backend() -> str:
    """Return what computes on the CPU: ``"numpy"``, or ``"native"`` with the instruction set.

    "native" is the compiled kernel. Without it, the same functions run on NumPy, more slowly.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.get_backend() == "numpy" or ep.get_backend().startswith("native (")  # "native (avx2)"
    True
    """
    native = kernel()
    return "numpy" if native is None else f"native ({native.isa()})"


def native_is_here() -> bool:
    """Return whether the compiled kernel is installed."""
    return _native is not None


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Use this backend inside the block, in the current thread or asyncio task only."""
    token = _chosen.set(_is_native(name, "backend"))
    try:
        yield
    finally:
        _chosen.reset(token)


def borrow_team(fork: int) -> None:
    """Run the compiled kernel on the OpenMP threads that GOMP_parallel, at this address, starts."""
    if _native is not None:
        _native.borrow_team(fork)


def read_tensors(functions: Any) -> None:
    """Let the compiled kernel read and make tensors by these functions of DLPack, a capsule."""
    if _native is not None:
        _native.read_tensors(functions)


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
    scores, labels, weights, order = batch.scores, batch.labels, batch.weights, batch.order
    if order is not None:
        scores, labels, weights, vector = _take(order, scores, labels, weights, vector)
    arrays: tuple[NDArray[Any] | None, ...]
    reliable = False
    form = native_form(terms, scores.dtype.itemsize > 4, hess)
    if form is not None:
        arrays = (
            np.empty_like(scores) if grad else None,
            np.empty_like(scores) if hess else None,
            np.empty_like(scores) if vector is not None else None,
        )
        status, value, pair_weight = _native.evaluate(
            scores, labels, weights, batch.offsets, vector, form, mean,
            kernel_threads(), *arrays,
        )  # fmt: skip
        if status:
            batches.raise_bad_values(batch)
        # If sums overflowed, or terms cancel too much, NumPy computes the batch. It needs no
        # differences that overflow or terms that cancel. Its derivatives, which may be larger than
        # the value, are checked for overflow.
        reliable = abs(value) < _LARGE
        is_plain = order is None and scores.dtype is batch.dtype and len(batch.shape) == 1
        if reliable and is_plain:
            return Result(value, pair_weight, *arrays)
    if not reliable:
        positive = batches.positives(batch)
        wide = None if vector is None else vector.astype(np.float64, copy=False)
        value, pair_weight, *arrays = _numpy.evaluate(  # type: ignore[assignment]
            scores, positive if order is None else positive[order], weights, batch.offsets,
            wide, terms, mean=mean, grad=grad, hess=hess,
        )  # fmt: skip
        check_overflow(value, *arrays)
    return Result(value, pair_weight, *(as_given(array, batch, order) for array in arrays))


def native_form(terms: tuple[PairTerm, ...], wide: bool, hess: bool = False) -> NativeForm | None:
    """Return how the compiled kernel takes these terms; None if NumPy must compute them.

    The scores are float64 if `wide`, else float32; `hess`: the Hessian diagonal is asked for.
    """
    if not _uses_native():
        return None
    if are_polynomials(terms):
        return terms, None, None
    if (smooth := smooth_form(terms, wide, hess)) is not None:
        return None, smooth, None
    exponential = exponential_form(terms)
    return None if exponential is None else (None, None, exponential)


def concordance(batch: Batch) -> tuple[float, float]:
    """Return the weight of the correctly ordered pairs, ties half, and that of all pairs."""
    scores, labels, weights, order = batch.scores, batch.labels, batch.weights, batch.order
    if order is not None:
        scores, labels, weights = _take(order, scores, labels, weights)
    if _uses_native():
        status, concordant, pair_weight = _native.auc(
            scores, labels, weights, batch.offsets, kernel_threads()
        )
        if status:
            batches.raise_bad_values(batch)
        return concordant, pair_weight
    positive = batches.positives(batch)
    ordered = positive if order is None else positive[order]
    return _numpy.concordance(scores, ordered, weights, batch.offsets)


def split_classes(
    batch: Batch, out: tuple[NDArray[Any], NDArray[Any]] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check the values of a batch; return the scores of the positives and of the negatives.

    They are at the start of the two arrays `out`, if given, which have the size and dtype of the
    scores.
    """
    pos, neg = out or (np.empty_like(batch.scores), np.empty_like(batch.scores))
    if not _uses_native():
        positive = batches.positives(batch)
        n_pos = int(np.count_nonzero(positive))
        n_neg = batch.scores.shape[0] - n_pos
        return (
            np.compress(positive, batch.scores, out=pos[:n_pos]),
            np.compress(~positive, batch.scores, out=neg[:n_neg]),
        )
    status, n_pos = _native.split(batch.scores, batch.labels, pos, neg)
    if status:
        batches.raise_bad_values(batch)
    return pos[:n_pos], neg[: batch.scores.shape[0] - n_pos]


def check_overflow(*results: float | NDArray[Any] | None) -> None:
    """Raise if a result exceeds the range of float64."""
    if not all(result is None or np.isfinite(result).all() for result in results):
        raise OverflowError(
            "the loss of these scores exceeds the range of float64: differences of scores, or the "
            "margin, are too large. Scale the scores, or use a surrogate that grows linearly."
        )


def as_given(
    array: NDArray[Any] | None, batch: Batch, order: NDArray[np.intp] | None = None
) -> NDArray[Any] | None:
    """Return a derivative, or None, in the dtype, shape and order of rows of the caller's scores.

    Entry i of the (n,) array belongs to the row ``order[i]``, or to row i without an order.
    """
    if array is None:
        return None
    with np.errstate(over="ignore", under="ignore"):
        array = array.astype(batch.dtype, copy=False)
    if order is not None:
        scattered = np.empty_like(array)
        scattered[order] = array
        array = scattered
    return array.reshape(batch.shape)


def _take(order: NDArray[np.intp], *arrays: NDArray[Any] | None) -> list[Any]:
    return [None if array is None else array[order] for array in arrays]


def _uses_native() -> bool:
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    global _default
    if _default is None:
        _default = _is_native(os.environ.get(_VARIABLE, "") or "auto", _VARIABLE)
    return _default


def _is_native(name: str, asked_by: str) -> bool:
    if name not in _BACKENDS:
        raise ValueError(f"{asked_by} must be one of {', '.join(_BACKENDS)}; got {name!r}.")
    if name == "native" and _native is None:
        raise ImportError(
            f"{asked_by} asks for the compiled kernel, which is not installed. Build it "
            "in a checkout, with a C++20 compiler: pip install ."
        )
    return name == "native" or (name == "auto" and _native is not None)

"""What a kernel is asked to compute, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everypair.inputs.batches import Batch
from everypair.surrogates import PairTerm


class Request(NamedTuple):
    """A batch, a surrogate, and the derivatives to compute besides the loss."""

    batch: Batch
    terms: tuple[PairTerm, ...]  # the surrogate at a margin (`Surrogate.at_margin`)
    mean: bool  # whether to divide by the total weight of all pairs
    grad: bool = False
    hess: bool = False  # the diagonal of the Hessian
    vector: NDArray[Any] | None = None  # (n,) float32 or float64: the Hessian times this vector


class Result(NamedTuple):
    """The results for a request; a derivative that was not requested is None.

    Derivatives have the dtype, shape and order of rows of the caller's scores. If only the Hessian
    times a vector was requested, the value may be any number.
    """

    value: float
    pair_weight: float
    grad: NDArray[Any] | None
    hess: NDArray[Any] | None
    hvp: NDArray[Any] | None


def in_batch_form(
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


def result_for(
    batch: Batch,
    order: NDArray[np.intp] | None,
    value: float,
    pair_weight: float,
    arrays: Sequence[NDArray[Any] | None],
) -> Result:
    """Check that no result overflowed; return them with `in_batch_form` of grad, hess and hvp."""
    check_overflow(value, *arrays)
    return Result(value, pair_weight, *(in_batch_form(array, batch, order) for array in arrays))


def check_overflow(*results: float | NDArray[Any] | None) -> None:
    """Raise if a result exceeds the range of float64."""
    if not all(result is None or np.isfinite(result).all() for result in results):
        raise OverflowError(
            "the loss of these scores exceeds the range of float64: differences of scores, or the "
            "margin, are too large. Scale the scores, or use a surrogate that grows linearly."
        )

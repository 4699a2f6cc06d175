"""The Hessian of a loss times a vector of any size."""

from __future__ import annotations

import math
from copy import copy
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from everypair.inputs import batches
from everypair.inputs.batches import Batch, centred
from everypair.kernel import choose
from everypair.kernel.request import Request, check_overflow


def hessian_product(request: Request) -> NDArray[Any]:
    """Return the Hessian of the loss times the vector of a request, in the scores' dtype.

    It is linear in the vector and in the weight of a pair. Where these are large or small, powers
    of two are taken out of them, and the product stays in float64 until it is multiplied by them.
    """
    batch, mean = request.batch, request.mean
    vector, largest = centred(cast("NDArray[Any]", request.vector))
    size = math.frexp(largest)[1]
    heaviest = 1.0 if mean or batch.weights is None else batch.weights.max()
    is_ordinary = abs(size) < 64 and 2.0**-100 < heaviest < 2.0**100
    if is_ordinary or not 0.0 < largest < math.inf:
        return _product(request._replace(vector=vector))
    wide, exponent = (batch, 0) if mean else _without_scale(batch)
    wide = copy(wide)
    wide.scores, wide.dtype = batch.scores.astype(np.float64), np.dtype(np.float64)
    # Room for entries that are much smaller than the largest, and for steep surrogates.
    vector = np.ldexp(vector.astype(np.float64, copy=False), 300 - size)
    product = _product(request._replace(batch=wide, vector=vector))
    with np.errstate(over="ignore", under="ignore"):
        product = np.ldexp(product, exponent + size - 300)
        check_overflow(product)
        return cast("NDArray[Any]", product.astype(batch.dtype))


def _product(request: Request) -> NDArray[Any]:
    return cast("NDArray[Any]", choose.pair_sums(request).hvp)


def _without_scale(batch: Batch) -> tuple[Batch, int]:
    """Return a batch whose heaviest pair weighs about 1, and an exponent.

    The weight of a pair is ``2**exponent`` times that of the result.
    """
    weights, scaled = batch.weights, copy(batch)
    if weights is None:
        return batch, 0
    if batch.ranked is not None:
        scaled.ranked = batch.ranked.without_scale()
        return scaled, batch.ranked.rows.exponent
    positive = batches.positives(batch)
    largest = [weights.max(where=rows, initial=0.0) for rows in (positive, ~positive)]
    of_classes = [math.frexp(top)[1] for top in largest]
    scaled.weights = np.ldexp(weights, -np.where(positive, *of_classes))
    return scaled, sum(of_classes)

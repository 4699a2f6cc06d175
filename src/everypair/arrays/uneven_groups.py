"""Groups whose weights differ by many orders of magnitude, for NumPy.

Groups share running sums, in which heavy groups would round away light ones. Here each group is
computed by itself, with weights that are divided by a power of two for each class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_NO_WEIGHT = -10_000  # the exponent of zero
_FLOATS = np.finfo(np.float64)


def are_uneven(positive: NDArray[np.bool_], weights: Floats, offsets: Integers) -> bool:
    """Return whether the weights of a group with pairs are below those of others by 2^-40.

    Or whether those of all rows differ by 2^100: then scores that are as far apart as the weights
    may decide which group is the heavy one.
    """
    powers = _powers(positive, weights, offsets)
    of_pairs = powers[:, (powers > _NO_WEIGHT).all(0)]
    if not of_pairs.size:
        return False
    is_uneven = (powers.max(1) - of_pairs.min(1)).max() > 40
    return bool(is_uneven or weights.max() * 2.0**-100 > weights[weights > 0.0].min())


def sum_over_groups(
    solve: Callable[[slice, Floats], tuple[Any, ...]],
    positive: NDArray[np.bool_],
    weights: Floats,
    offsets: Integers,
    mean: bool,
) -> Any:
    """Return value, pair weight and arrays of a batch.

    Parameters
    ----------
    solve : callable
        Takes the rows of a group and their scaled weights. Returns sums over its pairs: the value,
        the weight of all pairs, and arrays with one entry per row, or None.
    positive, weights : (n,)
    offsets : (groups + 1,)
    mean : bool
        Whether to divide by the weight of all pairs.
    """
    powers = _powers(positive, weights, offsets)
    sums_of_groups = [
        solve(rows, np.ldexp(weights[rows], np.where(positive[rows], -pos, -neg)))
        for rows, pos, neg in zip(map(slice, offsets[:-1], offsets[1:]), *powers, strict=True)
    ]
    values, pair_weights, *arrays = zip(*sums_of_groups, strict=True)
    exponents = np.where(np.array(pair_weights) > 0.0, powers.sum(0), 2 * _NO_WEIGHT)
    top = int(exponents.max())
    factors = np.ldexp(1.0, exponents - top)
    pair_weight = float(factors @ pair_weights)
    power = 0 if mean else top
    divisor = pair_weight if mean and pair_weight > 0.0 else 1.0
    with np.errstate(all="ignore"):
        of_rows = np.repeat(factors, np.diff(offsets))
        results = [
            None if parts[0] is None else np.ldexp(np.concatenate(parts) * of_rows / divisor, power)
            for parts in arrays
        ]
        value = float(np.ldexp(factors @ values / divisor, power))
        if pair_weight > 0.0:  # on the caller's scale, but neither infinite nor zero
            pair_weight = float(np.clip(np.ldexp(pair_weight, top), _FLOATS.tiny, _FLOATS.max))
    return value, pair_weight, *results


def _powers(positive: NDArray[np.bool_], weights: Floats, offsets: Integers) -> Integers:
    """Return the exponents (2, groups) of the largest weights; those of the positives first."""
    of_class = np.where([positive, ~positive], weights, 0.0)
    largest = np.maximum.reduceat(of_class, offsets[:-1], axis=1)
    return np.where(largest > 0.0, np.frexp(largest)[1].astype(np.int64), _NO_WEIGHT)

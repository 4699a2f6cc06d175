"""Smooth ranks."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from everypair import surrogates
from everypair.inputs import batches
from everypair.row_sums._row_sums import pair_row_sums


def soft_ranks(
    scores: ArrayLike, temperature: float = 1.0, *, groups: ArrayLike | None = None
) -> NDArray[Any]:
    r"""Rank rows smoothly, the smallest score first.

    .. math:: R_i = 1 + \sum_{j \ne i} \frac{1}{1 + e^{-(s_i - s_j) / T}}

    The temperature T is the difference of scores over which two rows change places. For a small one
    the ranks are those of ``scipy.stats.rankdata``, with the mean rank for ties. The sum of all
    ranks is n (n + 1) / 2 at any temperature. Takes O(n log n) time and O(n) memory.

    Parameters
    ----------
    scores : (n,) or (n, 1) real
        Finite.
    temperature : float
        Above 0.
    groups : (n,) of any hashable values, optional
        Rank the rows inside each group.

    Returns
    -------
    (n,) or (n, 1) floating
        Of the shape of the scores; float32 for scores of float32 or narrower, else float64.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.soft_ranks([30.0, 10.0, 20.0, 20.0], temperature=0.1)
    array([4. , 1. , 2.5, 2.5])
    >>> ep.soft_ranks([30.0, 10.0, 20.0, 20.0], temperature=10.0).round(2)
    array([3.34, 1.66, 2.5 , 2.5 ])
    """
    x, shape = batches.scores_from(scores)
    surrogate = surrogates.sigmoid(temperature)
    return (1.0 + pair_row_sums(-x, surrogate=surrogate, groups=groups)).reshape(shape)

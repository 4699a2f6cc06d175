"""The public functions `pair_row_sums` and `soft_ranks`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everypair import surrogates
from everypair.inputs import batches, pair_options
from everypair.inputs.groups import group_codes
from everypair.row_sums._plan import Groups, Plan, own_pair
from everypair.surrogates import Surrogate


def pair_row_sums(
    scores: ArrayLike,
    others: ArrayLike | None = None,
    *,
    surrogate: str | Surrogate = "sigmoid",
    margin: float | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    other_groups: ArrayLike | None = None,
) -> NDArray[Any]:
    r"""Sum a surrogate over all other rows, for each row.

    .. math:: r_i = \sum_j w_j \, \phi(m - (s_i - o_j))

    where :math:`\phi` is the surrogate and m the margin: row i takes the place of the positive of
    `pair_loss`, and the others that of the negatives. Without `others`, the sum is over the other
    rows of the scores, :math:`o_j = s_j` with :math:`j \ne i`.

    With the default, r_i is a smooth count of the rows that score higher than row i: a row that is
    several temperatures higher adds 1, a tied one 1/2. Takes O(n log n) time and O(n) memory.

    Parameters
    ----------
    scores : (n,) or (n, 1) real
        Finite.
    others : (m,) or (m, 1) real, optional
        Finite.
    surrogate : str or Surrogate
        A name from `everypair.surrogates.names`, or one of your own;
        ``surrogates.sigmoid(temperature=0.1)`` for another temperature.
    margin : float, optional
        At least 0. The default is that of the surrogate: 0 for the sigmoid.
    weights : (m,) real, optional
        Weights of the others, or of the scores without `others`. Of any sign; finite.
    groups : (n,) of any hashable values, optional
        Only pairs inside a group count.
    other_groups : (m,) of any hashable values, optional
        The groups of the others; needed if there are `others` and `groups`.

    Returns
    -------
    (n,) or (n, 1) floating
        Of the shape of the scores; float32 if scores and others are float32 or narrower, else
        float64. Zero for a row without others.

    Raises
    ------
    ValueError
        If an argument is not as described.

    See Also
    --------
    soft_ranks : Ranks made of these sums.
    everypair.torch.pair_row_sums : The same function on tensors, differentiable twice.
    everypair.naive.pair_row_sums : The same sums one by one.

    Notes
    -----
    The error is at most 1e-12 (float32: 1e-6) of the sum over j, row i itself included, of
    :math:`|w_j|` times the absolute values of the terms of the surrogate.

    Examples
    --------
    >>> import everypair as ep
    >>> ep.pair_row_sums([0.0, 100.0, 200.0]).round(9)  # how many rows score higher
    array([2., 1., 0.])
    >>> ep.pair_row_sums([0.5, 2.0], [0.0, 1.0], surrogate="squared_hinge")  # 0.5^2 + 1.5^2, 0
    array([2.5, 0. ])
    """
    terms = pair_options.terms_at(surrogate, margin)
    x, shape = batches.scores_from(scores)
    y = x if others is None else batches.scores_from(others, "others")[0]
    w = batches.signed_weights_from(weights, y.shape[0])
    codes = _codes(groups, other_groups, others is not None, x.shape[0], y.shape[0])
    dtype = np.result_type(x, y)
    if x.shape[0] == 0 or y.shape[0] == 0:
        return np.zeros(shape, dtype)
    wide = dtype == np.float64
    (sums,) = Plan(x, y, terms, codes, wide=wide).sums(w, (0,))
    if others is None:
        sums = sums - w * own_pair(terms, wide=wide)[0]
        n_rows = x.shape[0] if codes is None else np.bincount(codes[0])[codes[0]]
        sums = np.where(n_rows == 1, 0.0, sums)
    if not np.isfinite(sums).all():
        raise OverflowError(
            "the sums of these scores exceed the range of float64: differences of scores, or the "
            "margin, are too large. Scale the scores, or use a surrogate that grows linearly."
        )
    with np.errstate(over="ignore"):
        result: NDArray[Any] = sums.astype(dtype)
    return result.reshape(shape)


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


def _codes(
    groups: ArrayLike | None, other_groups: ArrayLike | None, has_others: bool, n: int, m: int
) -> Groups | None:
    """Return the numbers of the groups of rows and others, after checking that both are given."""
    if (groups is None) != (other_groups is None) if has_others else other_groups is not None:
        raise ValueError(
            "groups and other_groups must be given together with others, and groups alone without "
            f"others; got groups={_given(groups)}, other_groups={_given(other_groups)}, "
            f"others={'given' if has_others else None}."
        )
    if groups is None:
        return None
    codes = group_codes(groups) * 2 if other_groups is None else group_codes(groups, other_groups)
    for name, of_set, size in zip(("groups", "other_groups"), codes, (n, m), strict=True):
        if of_set.shape[0] != size:
            raise ValueError(
                f"{name} must have one entry per row; got {of_set.shape[0]} for {size}. "
                "Check that both come from the same rows."
            )
    return codes[0], codes[1]


def _given(argument: object) -> str | None:
    return None if argument is None else "given"

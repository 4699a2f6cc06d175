"""Soft ranks of tensors, and Spearman's correlation made of them."""

from __future__ import annotations

import torch
from torch import Tensor

from everypair import surrogates
from everypair.torch._inputs import check_rows, check_scores
from everypair.torch.row_sums.row_sums import pair_row_sums


def soft_ranks(scores: Tensor, temperature: float = 1.0, *, groups: Tensor | None = None) -> Tensor:
    r"""Rank rows smoothly, the smallest score first; differentiable twice.

    .. math:: R_i = 1 + \sum_{j \ne i} \frac{1}{1 + e^{-(s_i - s_j) / T}}

    For a small temperature T the ranks are 1, 2, ..., n, with the mean rank for ties. Takes
    O(n log n) time and O(n) memory, forward and backward.

    Parameters
    ----------
    scores : (n,) or (n, 1) floating tensor
    temperature : float
        The difference of scores over which two rows change places; above 0.
    groups : (n,) tensor of whole numbers, optional
        Rank the rows inside each group.

    Returns
    -------
    (n,) tensor
        float64 for float64 scores, else float32.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import soft_ranks
    >>> soft_ranks(torch.tensor([30.0, 10.0, 20.0, 20.0]), temperature=0.1)
    tensor([4.0000, 1.0000, 2.5000, 2.5000])
    """
    check_scores(scores, "scores")
    surrogate = surrogates.sigmoid(temperature)
    above: Tensor = pair_row_sums(-scores, surrogate=surrogate, groups=groups)
    return 1.0 + above


def spearman_loss(scores: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Compute one minus a differentiable Spearman correlation of scores and targets.

    .. math:: 1 - \mathrm{corr}(R(s), r(y))

    where R are the `soft_ranks` of the scores, r the ranks of the targets, with the mean rank for
    ties, and corr is Pearson's correlation. For a small temperature it is one minus Spearman's
    correlation, whose gradient would be zero almost everywhere. Takes O(n log n) time.

    Parameters
    ----------
    scores : (n,) or (n, 1) floating tensor
    targets : (n,) or (n, 1) tensor
        Of any real type. They receive no gradient.
    temperature : float
        Above 0. Choose it near the difference of scores of rows whose order is in doubt.

    Returns
    -------
    () tensor
        Between 0 (the same order) and 2 (the reverse order). Zero, with a gradient of zero, if all
        targets are equal.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import spearman_loss
    >>> y = torch.tensor([1.0, 2.0, 3.0])
    >>> round(spearman_loss(torch.tensor([0.1, 0.3, 0.2]), y, temperature=0.001).item(), 6)
    0.5
    """
    ranks = soft_ranks(scores, temperature)
    check_rows(targets, "targets", scores.shape, 1, scores.device)
    if targets.is_complex() or bool(targets.isnan().any()):
        raise ValueError("targets must be real numbers and not NaN; drop rows without a target.")
    # The mean rank of tied rows is that between their first and last place.
    y = targets.detach().reshape(-1)
    ordered = y.sort().values
    first, last = (torch.searchsorted(ordered, y, right=right) for right in (False, True))
    a, b = (r - r.mean() for r in (ranks, (first + last).to(ranks.dtype)))
    sizes = [torch.linalg.vector_norm(r) for r in (a, b)]
    # Equal scores have no correlation. Dividing by the norm of different ranks leaves them a
    # gradient.
    n = ranks.shape[0]
    of_distinct = max(n * (n * n - 1.0) / 12.0, 1.0) ** 0.5
    norm = torch.where(sizes[0] > 0.0, sizes[0], of_distinct) * sizes[1].clamp(min=0.5)
    return torch.where(sizes[1] > 0.0, 1.0 - (a * b).sum() / norm, 0.0 * ranks.sum())

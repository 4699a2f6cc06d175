"""The public module `AveragePrecisionLoss`."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from everypair import surrogates
from everypair.inputs import batches
from everypair.row_sums import smooth_precision_loss
from everypair.torch._autograd import recorded
from everypair.torch._compat import skip_compiler
from everypair.torch._inputs import (
    array_from,
    batch_from,
    check_data,
    check_integer,
    check_scores,
    value_dtype,
)
from everypair.torch.row_sums.row_sums import all_pairs, group_codes, row_sums

_sigmoid = lru_cache(maxsize=64)(surrogates.sigmoid)


class Rows(NamedTuple):
    """The rows of a loss, each a tensor (n,)."""

    scores: Tensor
    positive: Tensor
    weights: Tensor | None = None
    groups: Tensor | None = None


class AveragePrecisionLoss(nn.Module):
    r"""One minus a smooth average precision of all rows (Smooth-AP, Brown et al. 2020).

    .. math::

        L = 1 - \frac{1}{n_+} \sum_{i \in P}
            \frac{1 + \sum_{k \in P, k \ne i} \sigma((s_k - s_i) / T)}
                 {1 + \sum_{k \ne i} \sigma((s_k - s_i) / T)},
        \qquad \sigma(z) = \frac{1}{1 + e^{-z}}

    The fraction is the rank of positive i among the positives over its rank among all rows; for a
    small temperature T it is the precision at that rank, and L is one minus
    `everypair.average_precision`. Value and gradient are those of the formula, to 1e-6, but take
    O(n log n) time and O(n) memory instead of O(n_pos n).

    Parameters
    ----------
    temperature : float
        T, the difference of scores over which two rows change places; above 0. A larger one has a
        smoother loss, a smaller one is closer to average precision.
    bank : int
        The number of past rows that are ranked together with a batch; 0 for none. With rare
        positives a batch alone has few of them, and its average precision differs from that of the
        data set. In training mode the module keeps scores, labels and weights of the last `bank`
        rows. P then contains the positives of the batch and of the bank, and gradients are exact
        with the scores of the bank as constants. They are those of earlier models, so the bank
        should not be much longer than the number of rows over which the scores change little.

    Notes
    -----
    The bank is not used in evaluation mode, and it moves with the module to other devices. It is
    not in the `state_dict`: checkpoints can be exchanged with models that were trained with another
    loss, and training that is resumed from one starts with an empty bank.

    The loss can be differentiated twice. On the CPU the gradient is computed together with the
    loss, and `torch.compile` breaks the graph at this module. On an accelerator it waits for the
    device once, to count the positives.

    References
    ----------
    A. Brown, W. Xie, V. Kalogeiton, A. Zisserman (2020). Smooth-AP: Smoothing the path towards
    large-scale image retrieval. ECCV.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import AveragePrecisionLoss
    >>> scores = torch.tensor([0.9, 0.8, 0.7, 0.6], requires_grad=True)
    >>> labels = torch.tensor([1, 0, 1, 0])
    >>> loss = AveragePrecisionLoss(temperature=0.001)(scores, labels)
    >>> round(loss.item(), 4)  # average precision is (1 + 2 / 3) / 2
    0.1667
    """

    bank_scores: Tensor
    bank_labels: Tensor
    bank_weights: Tensor

    def __init__(self, *, temperature: float = 0.1, bank: int = 0) -> None:
        super().__init__()
        _sigmoid(temperature)  # checks it
        self.temperature = float(temperature)
        self.bank = check_integer("bank", bank, at_least=0)
        self.register_buffer("bank_scores", torch.empty(0), persistent=False)
        self.register_buffer("bank_labels", torch.empty(0, dtype=torch.bool), persistent=False)
        self.register_buffer("bank_weights", torch.empty(0), persistent=False)

    @skip_compiler
    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Return the loss.

        Parameters
        ----------
        scores : (n,) or (n, 1) floating tensor
            Logits are fine.
        labels : (n,) or (n, 1) tensor
            Coded {0, 1}, {-1, +1} or bool.
        weights : (n,) tensor, optional
            Finite and at least 0. A weight of 2 counts as two equal rows would, except that the
            smooth rank of a row does not contain half of its own copy.
        groups : (n,) tensor of whole numbers, optional
            Rank rows inside each group (a query). The loss is the mean over the groups that have a
            positive. Not with a bank.

        Returns
        -------
        () tensor
            Between 0 and 1; float64 for float64 scores, else float32. Zero, with a gradient of
            zero, without a positive or without a negative.
        """
        check_scores(scores, "scores")
        check_data(scores, labels, weights, groups)
        if groups is not None and self.bank:
            raise ValueError(
                "groups must not be given together with a bank, whose rows have none; got both. "
                "Use AveragePrecisionLoss(bank=0)."
            )
        scores, labels = scores.reshape(-1), labels.reshape(-1)
        weights, groups = (None if t is None else t.reshape(-1) for t in (weights, groups))
        if scores.is_cpu:  # check the values
            batch = batch_from(scores.detach(), labels, weights)
            positive = torch.from_numpy(batches.positives(batch))
        else:
            positive = labels > 0
        if not (self.bank and self.training):
            return _loss(self.temperature, Rows(scores, positive, weights, groups))
        weights = torch.ones_like(scores) if weights is None else weights.to(scores.dtype)
        columns = [
            (new, old.to(new))
            for new, old in zip(
                (scores, positive, weights),
                (self.bank_scores, self.bank_labels, self.bank_weights),
                strict=True,
            )
        ]
        loss = _loss(self.temperature, Rows(*map(torch.cat, columns)))
        self.bank_scores, self.bank_labels, self.bank_weights = (
            torch.cat((old, new.detach()))[-self.bank :] for new, old in columns
        )
        return loss

    def reset_bank(self) -> None:
        """Forget all past rows."""
        for name in ("bank_scores", "bank_labels", "bank_weights"):
            setattr(self, name, getattr(self, name)[:0])

    def extra_repr(self) -> str:
        """Return the options, for the module's representation."""
        return f"temperature={self.temperature}, bank={self.bank}"


def _loss(temperature: float, rows: Rows) -> Tensor:
    """Return the loss, on the CPU together with its gradient."""
    if rows.weights is not None and not bool((counts := rows.weights > 0).all()):
        columns: list[Any] = [None if t is None else t[counts] for t in rows]
        rows = Rows(*columns)  # rows of weight 0 take no part
    if not rows.scores.is_cpu:
        return _differentiable(temperature, rows)
    loss, grad = _loss_and_grad(temperature, rows)
    return recorded(rows.scores, (loss, grad, (), partial(_grad, temperature, rows)))


def _grad(temperature: float, rows: Rows, scores: Tensor) -> Tensor:
    """Compute the gradient again."""
    if not torch.is_grad_enabled():
        return _loss_and_grad(temperature, rows)[1]
    # create_graph=True: the gradient will be differentiated again
    loss = _differentiable(temperature, rows._replace(scores=scores))
    return torch.autograd.grad(loss, scores, create_graph=True)[0]


def _loss_and_grad(temperature: float, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient, for tensors on the CPU."""
    scores, positive, weights, groups = rows
    dtype = value_dtype(scores)
    x, is_pos = array_from(scores, dtype), array_from(positive)
    w = None if weights is None else array_from(weights, torch.float64)
    codes = None if groups is None else array_from(group_codes(groups)[0])
    shares = np.ones(int(is_pos.sum())) if w is None else w[is_pos]
    totals = shares.sum()
    if codes is not None:
        of_groups = np.bincount(codes[is_pos], shares)
        totals = of_groups[codes[is_pos]] * np.count_nonzero(of_groups)
    loss, grad = smooth_precision_loss(
        x, is_pos, shares / totals, temperature=temperature, weights=w, codes=codes
    )
    return torch.tensor(loss, dtype=dtype), torch.from_numpy(grad).to(scores.dtype)


def _differentiable(temperature: float, rows: Rows) -> Tensor:
    """Return the loss as a function of tensors that can be differentiated twice."""
    scores, positive, weights, groups = rows
    surrogate = _sigmoid(temperature)
    places = [mask.nonzero().squeeze(1) for mask in (positive, ~positive)]
    if not places[0].numel() or not places[1].numel():
        return 0.0 * scores.to(value_dtype(scores)).sum()
    # Sums in float64, because the shares of a row in many pairs cancel in its gradient.
    pos, neg = (scores.index_select(0, index).double() for index in places)
    w_pos, w_neg = (
        torch.ones_like(part) if weights is None else weights[index].double()
        for part, index in zip((pos, neg), places, strict=True)
    )
    codes: list[Tensor] | None = None
    if groups is not None:
        codes = group_codes(*(groups[index] for index in places))
    wide = scores.dtype is torch.float64

    def sums(others: Tensor, w: Tensor, side: int) -> Tensor:
        pair_groups = None if codes is None else (codes[0], codes[side])
        pairs = all_pairs(pos, others, surrogate, 0.0, pair_groups, wide=wide)
        return row_sums(pos, others, w, pairs, 0, False, torch.float64)

    # The smooth rank of each positive among the positives, and how many negatives are above it.
    rank = w_pos + sums(pos, w_pos, 0)
    above = sums(neg, w_neg, 1)
    losses = w_pos * (above / (rank + above))
    if codes is None:
        loss = losses.sum() / w_pos.sum()
    else:
        totals = w_pos.new_zeros(int(codes[0].max()) + 1).index_add(0, codes[0], w_pos)
        loss = (losses / totals[codes[0]]).sum() / (totals > 0.0).sum()
    return loss.to(value_dtype(scores))

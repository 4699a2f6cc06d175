"""Binary pairs of the rows of all ranks, of which only those of the smaller class are exchanged.

Each rank evaluates its own rows together with the rows of the smaller class of all other ranks.
Every pair is then evaluated once: on the rank that has its row of the larger class. There, the
gradient of the larger class is complete. The gradient of the smaller class is the sum of what all
ranks computed for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from everypair.torch.collectives.ranks import Ranks
from everypair.torch.collectives.rows import gather_rows

Evaluate = Callable[
    [Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor, Tensor | None]
]
"""Return mean loss (), pair weight () and gradient (n,), if asked for, of a batch.

The arguments are scores, whether rows are positive, weights and groups; all have the shape (n,).
"""


class ClassRows(NamedTuple):
    """Rows of one rank.

    Attributes
    ----------
    scores : (tasks, n) floating
    pos : (tasks, n) bool
        Whether a row is positive.
    known : (tasks, n) bool or None
        Whether a row has a label; None if all have.
    weights : (tasks, n) float64 or None
    groups : (n,) int64 or None
    """

    scores: Tensor
    pos: Tensor
    known: Tensor | None
    weights: Tensor | None
    groups: Tensor | None

    def summary(self) -> Tensor:
        """Return n_pos, n_neg and the largest weight of each class, (tasks, 4), on the CPU."""
        n_tasks, n = self.scores.shape
        if n == 0:
            return torch.zeros(n_tasks, 4, dtype=torch.float64, device="cpu")
        pos = self.of_class(True)
        n_pos = pos.count_nonzero(1).double()
        n_known = n if self.known is None else self.known.count_nonzero(1).double()
        largest = [torch.ones_like(n_pos)] * 2
        if self.weights is not None:
            classes = (pos, self.of_class(False))
            largest = [self.weights.where(of_class, 0.0).amax(1) for of_class in classes]
        return torch.stack([n_pos, n_known - n_pos, *largest], 1).cpu()

    def of_class(self, positive: bool | Tensor) -> Tensor:
        """Return which rows are of this class, (tasks, n)."""
        mask = self.pos if positive is True else self.pos == positive
        return mask if self.known is None else mask & self.known


class GlobalLoss(NamedTuple):
    """The loss of all ranks.

    Attributes
    ----------
    value : (tasks,) float64
    pair_weight : (tasks,) float64
        The total pair weight relative to that of rows that all have the largest weight of their
        class; 0 if a task has no pair.
    grad : (tasks, n) or None
        The gradient in the scores of this rank; None if it is zero or not asked for.
    """

    value: Tensor
    pair_weight: Tensor
    grad: Tensor | None


def no_loss(scores: Tensor) -> GlobalLoss:
    """Return the loss of tasks without a pair, for scores (tasks, n)."""
    zeros = scores.new_zeros(len(scores), dtype=torch.float64)
    return GlobalLoss(zeros, zeros, None)


def minority_loss(
    ranks: Ranks, rows: ClassRows, summaries: Tensor, evaluate: Evaluate, *, mean: bool, grad: bool
) -> GlobalLoss:
    """Return the loss over the pairs of all ranks.

    Parameters
    ----------
    ranks : Ranks
    rows : ClassRows
        The rows of this rank.
    summaries : (ranks, tasks, 4)
        `ClassRows.summary` of each rank.
    evaluate : callable
        The loss of one batch.
    mean, grad : bool
        Whether to divide by the total pair weight, and whether a rank needs the gradient.
    """
    device, n_tasks = rows.scores.device, len(rows.scores)
    totals, heaviest = summaries[..., :2].sum(0), summaries[..., 2:].amax(0)
    pos_is_small = totals[:, 0] <= totals[:, 1]
    # The numbers of rows of the smaller and of the larger class, (ranks, tasks).
    n_small = summaries[..., 0].where(pos_is_small, summaries[..., 1]).long()
    n_large = summaries[..., 1].where(pos_is_small, summaries[..., 0]).long()
    if not n_small.any():
        return no_loss(rows.scores)

    rows = _with_relative_weights(rows, heaviest.where(heaviest > 0.0, 1.0).to(device))
    own = rows.of_class(pos_is_small.to(device)[:, None]).reshape(-1).nonzero().squeeze(1)
    others = _gather_small(ranks, rows, own, n_small)
    # For each task: pair weight relative to that of all pairs with the largest weights, and mean.
    local = rows.scores.new_zeros((n_tasks, 2), dtype=torch.float64)
    local_grads: list[Tensor | None] = [None] * n_tasks
    for k in range(n_tasks):
        if n_large[ranks.rank, k] and totals[k].all():
            x, pos, w, g = _batch(rows, others, k, bool(pos_is_small[k]))
            value, pair_weight, local_grads[k] = evaluate(x, pos, w, g)
            local[k, 0], local[k, 1] = pair_weight / totals[k].prod().item(), value
    shares, values = ranks.gather(local).unbind(2)
    pair_weight = shares.sum(0)
    if mean:
        factor = 1.0 / pair_weight.where(pair_weight > 0.0, 1.0)
    else:
        factor = (totals.prod(1) * heaviest.prod(1)).to(device)
    shares = shares * factor  # at most 1 for the mean, so that no product overflows
    value = (shares * values).sum(0)
    if not grad:
        return GlobalLoss(value, pair_weight, None)
    received = _exchange_grads(ranks, local_grads, n_small, rows.scores)
    own_grad = _scaled(local_grads, shares[ranks.rank], rows.scores, wide=not mean)
    of_others = shares[[rank for rank in range(ranks.size) if rank != ranks.rank]]
    of_rows = of_others.repeat_interleave(n_small[ranks.rank].to(device), 1)
    own_grad.view(-1)[own] += (received.double() * of_rows).sum(0).to(own_grad.dtype)
    return GlobalLoss(value, pair_weight, own_grad)


def _scaled(grads: list[Tensor | None], factors: Tensor, scores: Tensor, wide: bool) -> Tensor:
    """Return gradients of this rank's rows times the factor of each task, (tasks, n).

    In float64 if `wide`, because factors of sums may be beyond the range of float32.
    """
    dtype = torch.float64 if wide else _grad_dtype(scores)
    n = scores.shape[1]
    parts = [
        scores.new_zeros(n, dtype=dtype) if grad is None else grad[:n].to(dtype) * factor.to(dtype)
        for grad, factor in zip(grads, factors, strict=True)
    ]
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def _grad_dtype(scores: Tensor) -> torch.dtype:
    return torch.float64 if scores.dtype is torch.float64 else torch.float32


def _with_relative_weights(rows: ClassRows, heaviest: Tensor) -> ClassRows:
    """Divide weights by the largest of their class, whose products may be out of range."""
    if rows.weights is None:
        return rows
    of_pos, of_neg = heaviest.unbind(1)
    return rows._replace(
        weights=rows.weights / torch.where(rows.pos, of_pos[:, None], of_neg[:, None])
    )


def _gather_small(
    ranks: Ranks, rows: ClassRows, own: Tensor, n_small: Tensor
) -> list[list[Tensor] | None]:
    """Return scores, weights and groups of the smaller class of all other ranks, for each task.

    `own` are the indices of the rows of this rank in (tasks, n), which it sends.
    """
    groups = None if rows.groups is None else rows.groups.expand(rows.scores.shape)
    given = [rows.scores, rows.weights, groups]
    sent = [tensor.reshape(-1)[own] for tensor in given if tensor is not None]
    columns = iter(gather_rows(ranks, sent, n_small.sum(1).tolist()))
    counts = _without_own(ranks, n_small).tolist()
    found: list[list[Tensor] | None] = []
    for tensor in given:
        if tensor is None:
            found.append(None)
            continue
        of_ranks = [
            torch.split(part[: sum(count)], count)
            for part, count in zip(next(columns), counts, strict=True)
        ]
        found.append([torch.cat(of_task) for of_task in zip(*of_ranks, strict=True)])
    return found


def _without_own(ranks: Ranks, n_small: Tensor) -> Tensor:
    """Return the numbers of rows (ranks, tasks) with 0 for this rank."""
    is_own = torch.arange(ranks.size, device="cpu")[:, None] == ranks.rank
    return n_small.masked_fill(is_own, 0)


def _batch(
    rows: ClassRows, others: list[list[Tensor] | None], task: int, pos_is_small: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return scores, classes, weights and groups of this rank's rows, then of the gathered ones."""
    own_groups = None if rows.groups is None else rows.groups.expand(rows.scores.shape)
    scores, weights, groups = (
        None if own is None or gathered is None else torch.cat((own[task], gathered[task]))
        for own, gathered in zip((rows.scores, rows.weights, own_groups), others, strict=True)
    )
    x = cast("Tensor", scores)
    n_others = len(x) - rows.scores.shape[1]
    pos = torch.cat((rows.pos[task], rows.pos.new_full((n_others,), pos_is_small)))
    if rows.known is not None:  # a row without a label has no weight
        known = torch.cat((rows.known[task], rows.known.new_ones(n_others)))
        weights = known.double() if weights is None else weights.where(known, 0.0)
    return x, pos, weights, groups


def _exchange_grads(
    ranks: Ranks, local_grads: list[Tensor | None], n_small: Tensor, scores: Tensor
) -> Tensor:
    """Send every other rank the gradient of its rows; return those of the rows of this rank.

    The result has the shape (other ranks, rows of the smaller class on this rank).
    """
    dtype = _grad_dtype(scores)
    counts = _without_own(ranks, n_small)
    by_task = []
    for k, local_grad in enumerate(local_grads):
        if local_grad is None:
            of_others = scores.new_zeros(int(counts[:, k].sum()), dtype=dtype)
        else:
            of_others = local_grad[scores.shape[1] :]
        by_task.append(torch.split(of_others, counts[:, k].tolist()))
    sent = torch.cat([part for parts in zip(*by_task, strict=True) for part in parts])
    n_own = int(n_small[ranks.rank].sum())
    receives = [0 if rank == ranks.rank else n_own for rank in range(ranks.size)]
    received = ranks.exchange(sent, counts.sum(1).tolist(), receives)
    return received.reshape(ranks.size - 1, n_own)

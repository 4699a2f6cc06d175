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

from everypair.torch.collectives.processes import Processes

Evaluate = Callable[
    [Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor | float, Tensor | None]
]
"""Return mean loss (), pair weight () and gradient (n,), if asked for, of a batch.

The arguments are scores, whether rows are positive, weights and groups; all have the shape (n,).
"""


class Rows(NamedTuple):
    """Rows of one rank.

    Attributes
    ----------
    scores : (tasks, n) floating
    labels : (tasks, n)
        For `minority_loss`: bools, whether a row is positive.
    known : (tasks, n) bool or None
        Whether a row has a label; None if all have.
    weights : (tasks, n) float64 or None
    groups : (n,) int64 or None
    """

    scores: Tensor
    labels: Tensor
    known: Tensor | None
    weights: Tensor | None
    groups: Tensor | None

    def summary(self) -> Tensor:
        """Return n_pos, n_neg and the largest weight of each class, (tasks, 4), on the CPU."""
        n_tasks, n = self.scores.shape
        if n == 0:
            return torch.zeros(n_tasks, 4, dtype=torch.float64, device="cpu")
        classes = self.of_class(True), self.of_class(False)
        counts = [rows.count_nonzero(1).double() for rows in classes]
        largest = [torch.ones_like(counts[0])] * 2
        if self.weights is not None:
            largest = [self.weights.where(rows, 0.0).amax(1) for rows in classes]
        return torch.stack([*counts, *largest], 1).cpu()

    def of_class(self, positive: bool | Tensor) -> Tensor:
        """Return which rows are of this class, (tasks, n)."""
        mask = self.labels if positive is True else self.labels == positive
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
    processes: Processes,
    rows: Rows,
    summaries: Tensor,
    evaluate: Evaluate,
    *,
    mean: bool,
    grad: bool,
) -> GlobalLoss:
    """Return the loss over the pairs of all ranks.

    Parameters
    ----------
    processes : Processes
    rows : Rows
        The rows of this rank.
    summaries : (ranks, tasks, 4)
        `Rows.summary` of each rank.
    evaluate : callable
        The loss of one batch.
    mean, grad : bool
        Whether to divide by the total pair weight, and whether a rank needs the gradient.
    """
    scores, rank = rows.scores, processes.rank
    device, (n_tasks, n) = scores.device, scores.shape
    wide = torch.float64 if scores.dtype is torch.float64 else torch.float32
    totals, heaviest = summaries[..., :2].sum(0), summaries[..., 2:].amax(0)
    pos_is_small = totals[:, 0] <= totals[:, 1]
    # The numbers of rows of the smaller and of the larger class, (ranks, tasks).
    n_small = summaries[..., 0].where(pos_is_small, summaries[..., 1]).long()
    n_large = summaries[..., 1].where(pos_is_small, summaries[..., 0]).long()
    if not n_small.any():
        return no_loss(scores)

    if rows.weights is not None:  # relative to the largest: their products may be out of range
        of_pos, of_neg = heaviest.where(heaviest > 0.0, 1.0).to(device).unbind(1)
        of_row = torch.where(rows.labels, of_pos[:, None], of_neg[:, None])
        rows = rows._replace(weights=rows.weights / of_row)
    sent = rows.of_class(pos_is_small.to(device)[:, None]).reshape(-1).nonzero().squeeze(1)
    n_others = n_small.clone()
    n_others[rank] = 0
    others = _gather_small(processes, rows, sent, n_small, n_others.tolist())
    # For each task: pair weight relative to that of all pairs with the largest weights, and mean.
    local = scores.new_zeros((n_tasks, 2), dtype=torch.float64)
    grads = [scores.new_zeros(n + count, dtype=wide) for count in n_others.sum(0).tolist()]
    for k in range(n_tasks):
        if n_large[rank, k] and totals[k].all():
            batch = _batch(rows, others, k, bool(pos_is_small[k]))
            value, pair_weight, of_task = evaluate(*batch)
            local[k, 0], local[k, 1] = pair_weight / totals[k].prod().item(), value
            grads[k] = grads[k] if of_task is None else of_task.to(wide)
    shares, values = processes.gather(local).unbind(2)
    pair_weight = shares.sum(0)
    if mean:
        factor = 1.0 / pair_weight.where(pair_weight > 0.0, 1.0)
    else:
        factor = (totals.prod(1) * heaviest.prod(1)).to(device)
    shares = shares * factor  # at most 1 for the mean, so that no product overflows
    value = (shares * values).sum(0)
    if not grad:
        return GlobalLoss(value, pair_weight, None)
    # Factors of sums may be beyond the range of float32.
    dtype = wide if mean else torch.float64
    own_grad = torch.stack([of_task[:n] for of_task in grads]).to(dtype)
    own_grad *= shares[rank, :, None].to(dtype)
    received = _exchange_grads(processes, [g[n:] for g in grads], n_others, len(sent))
    of_others = shares[[other for other in range(processes.size) if other != rank]]
    of_rows = of_others.repeat_interleave(n_small[rank].to(device), 1)
    own_grad.view(-1)[sent] += (received.double() * of_rows).sum(0).to(dtype)
    return GlobalLoss(value, pair_weight, own_grad)


def _gather_small(
    processes: Processes, rows: Rows, sent: Tensor, n_small: Tensor, n_others: list[list[int]]
) -> list[list[Tensor] | None]:
    """Return scores, weights and groups of the smaller class of all other ranks, for each task.

    `sent` are the indices of the rows of this rank in (tasks, n), and `n_others` the numbers of
    rows to keep, (ranks, tasks).
    """
    groups = None if rows.groups is None else rows.groups.expand(rows.scores.shape)
    columns = (rows.scores, rows.weights, groups)
    messages = [column.reshape(-1)[sent] for column in columns if column is not None]
    received = iter(processes.gather_rows(messages, n_small.sum(1).tolist()))
    others: list[list[Tensor] | None] = []
    for column in columns:
        if column is None:
            others.append(None)
            continue
        of_ranks = [
            torch.split(part[: sum(counts)], counts)
            for part, counts in zip(next(received), n_others, strict=True)
        ]
        others.append([torch.cat(of_task) for of_task in zip(*of_ranks, strict=True)])
    return others


def _batch(
    rows: Rows, others: list[list[Tensor] | None], task: int, pos_is_small: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return scores, classes, weights and groups of this rank's rows, then of the gathered ones."""
    groups = None if rows.groups is None else rows.groups.expand(rows.scores.shape)
    scores, weights, groups = (
        None if own is None or gathered is None else torch.cat((own[task], gathered[task]))
        for own, gathered in zip((rows.scores, rows.weights, groups), others, strict=True)
    )
    x = cast("Tensor", scores)
    n_others = len(x) - rows.scores.shape[1]
    pos = torch.cat((rows.labels[task], rows.labels.new_full((n_others,), pos_is_small)))
    if rows.known is not None:  # a row without a label has no weight
        known = torch.cat((rows.known[task], rows.known.new_ones(n_others)))
        weights = known.double() if weights is None else weights.where(known, 0.0)
    return x, pos, weights, groups


def _exchange_grads(
    processes: Processes, grads: list[Tensor], n_others: Tensor, n_own: int
) -> Tensor:
    """Send every other rank the gradient of its rows; return those of the rows of this rank.

    `grads` are those of the gathered rows of each task. The result has the shape (other ranks, rows
    of the smaller class on this rank).
    """
    counts = n_others.t().tolist()
    by_task = [torch.split(grad, sizes) for grad, sizes in zip(grads, counts, strict=True)]
    message = torch.cat([part for parts in zip(*by_task, strict=True) for part in parts])
    receives = [0 if rank == processes.rank else n_own for rank in range(processes.size)]
    received = processes.exchange(message, n_others.sum(1).tolist(), receives)
    return received.reshape(processes.size - 1, n_own)

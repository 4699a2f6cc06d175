"""Binary pairs of the rows of all ranks, of which only those of the smaller class are exchanged.

Each rank evaluates its own rows of the larger class against all rows of the smaller class. The
pairs of different ranks are disjoint, so values and gradients of the smaller class add up, and the
gradient of the larger class is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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
    """Rows of one rank; a row without a label in a task is of neither class there.

    Attributes
    ----------
    scores : (tasks, n) floating
    pos, neg : (tasks, n) bool
    weights : (tasks, n) float64 or None
    groups : (n,) int64 or None
    """

    scores: Tensor
    pos: Tensor
    neg: Tensor
    weights: Tensor | None
    groups: Tensor | None

    def summary(self) -> Tensor:
        """Return n_pos, n_neg and the largest weight of each class, (tasks, 4), on the CPU."""
        n_tasks, n = self.scores.shape
        if n == 0:
            return torch.zeros(n_tasks, 4, dtype=torch.float64, device="cpu")
        classes = (self.pos, self.neg)
        counts = [of_class.sum(1).double() for of_class in classes]
        if self.weights is None:
            largest = [torch.ones_like(count) for count in counts]
        else:
            largest = [self.weights.where(of_class, 0.0).amax(1) for of_class in classes]
        return torch.stack([*counts, *largest], 1).cpu()


class GlobalLoss(NamedTuple):
    """The loss of all ranks; all fields are float64.

    Attributes
    ----------
    value : (tasks,)
    pair_weight : (tasks,)
        The total pair weight relative to that of rows that all have the largest weight of their
        class; 0 if a task has no pair.
    grad : (tasks, n)
        The gradient in the scores of this rank; zero if not asked for.
    """

    value: Tensor
    pair_weight: Tensor
    grad: Tensor


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
    device, (n_tasks, n) = rows.scores.device, rows.scores.shape
    totals, heaviest = summaries[..., :2].sum(0), summaries[..., 2:].amax(0)
    pos_is_small = totals[:, 0] <= totals[:, 1]
    # The rows of the smaller class of each rank and task, (ranks, tasks).
    n_small = summaries[..., 0].where(pos_is_small, summaries[..., 1]).long()
    value, pair_weight = (rows.scores.new_zeros(n_tasks, dtype=torch.float64) for _ in range(2))
    found_grad = rows.scores.new_zeros((n_tasks, n), dtype=torch.float64)
    if not n_small.any():
        return GlobalLoss(value, pair_weight, found_grad)

    # Relative weights: products of weights beyond the range of floats are common factors.
    heaviest = heaviest.where(heaviest > 0.0, 1.0)
    weights = rows.weights
    if weights is not None:
        of_pos, of_neg = heaviest.to(device).unbind(1)
        weights = weights / torch.where(rows.pos, of_pos[:, None], of_neg[:, None])
    groups = None if rows.groups is None else rows.groups.expand(n_tasks, n)
    is_small = torch.where(pos_is_small.to(device)[:, None], rows.pos, rows.neg)
    own = is_small.reshape(-1).nonzero().squeeze(1)
    sent = [t.reshape(-1)[own] for t in (rows.scores, weights, groups) if t is not None]
    columns = gather_rows(ranks, sent, n_small.sum(1).tolist())
    by_task = _order_by_task(n_small).to(device)
    received = iter(column[by_task].split(n_small.sum(0).tolist()) for column in columns)
    small_scores = next(received)
    small_weights = [None] * n_tasks if weights is None else next(received)
    small_groups = [None] * n_tasks if groups is None else next(received)

    n_pairs = totals.prod(1).tolist()
    task_grads = []
    for k in range(n_tasks):
        large = (rows.neg if pos_is_small[k] else rows.pos)[k].nonzero().squeeze(1)
        small_grad = torch.zeros_like(small_scores[k], dtype=torch.float64)
        if len(large) and len(small_grad):
            positive = torch.arange(len(large) + len(small_grad), device=device) >= len(large)
            local_value, local_weight, local_grad = evaluate(
                torch.cat((rows.scores[k, large], small_scores[k])),
                positive == bool(pos_is_small[k]),
                _joined(weights, k, large, small_weights[k]),
                _joined(groups, k, large, small_groups[k]),
            )
            # At most 1, so that no product overflows that a single process would not have.
            share = local_weight.double() / n_pairs[k]
            value[k], pair_weight[k] = local_value.double() * share, share
            if local_grad is not None:
                found_grad[k, large], small_grad = (local_grad.double() * share).split(
                    [len(large), len(small_grad)]
                )
        task_grads.append(small_grad)

    parts = [value, pair_weight]
    if grad:
        small_grads = torch.empty_like(by_task, dtype=torch.float64)
        small_grads[by_task] = torch.cat(task_grads)
        parts.append(small_grads)
    total = ranks.sum(torch.cat(parts))
    value, pair_weight = total[:n_tasks], total[n_tasks : 2 * n_tasks]
    if grad:
        before = 2 * n_tasks + int(n_small[: ranks.rank].sum())
        found_grad.view(-1)[own] = total[before : before + len(own)]
    if mean:
        factor = 1.0 / pair_weight.where(pair_weight > 0.0, 1.0)
    else:
        factor = (totals.prod(1) * heaviest.prod(1)).to(device)
    return GlobalLoss(value * factor, pair_weight, found_grad * factor[:, None])


def _order_by_task(counts: Tensor) -> Tensor:
    """Return the order that sorts rows by task if they are sorted by rank and then by task."""
    n_ranks, n_tasks = counts.shape
    task = torch.arange(n_tasks, device="cpu").repeat(n_ranks).repeat_interleave(counts.reshape(-1))
    return task.argsort(stable=True)


def _joined(own: Tensor | None, task: int, rows: Tensor, gathered: Tensor | None) -> Tensor | None:
    """Return these rows of this rank, followed by the gathered rows."""
    return None if own is None or gathered is None else torch.cat((own[task, rows], gathered))

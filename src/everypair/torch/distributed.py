r"""The loss over the pairs of all ranks, for data-parallel training.

Ranks agree that all have valid input (`collectives/agreement.py`), then exchange the rows of the
smaller class. Each rank evaluates its own rows together with those of the smaller class of all
other ranks, so every pair is evaluated once: on the rank that has its row of the larger class.
There, the gradient of the larger class is complete. The gradient of the smaller class is the sum of
what all ranks computed for it. Pairs that are not binary, and partial AUC, need all rows.

All of this happens in the forward pass, which computes the gradient too. The backward pass does not
communicate, so it cannot interfere with DDP or FSDP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from zlib import crc32

import torch
from torch import Tensor

from everypair.surrogates import Surrogate
from everypair.torch import _dispatch, _inputs
from everypair.torch._autograd import over_tasks, recorded
from everypair.torch._compat import skip_compiler
from everypair.torch._inputs import Labels, kept_weights
from everypair.torch._options import LossOptions, encoded, loss_options
from everypair.torch.collectives.agreement import agree
from everypair.torch.collectives.processes import Processes, processes_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["global_pair_loss"]

Gradients = Literal["average", "sum"]


def global_pair_loss(
    scores: Tensor,
    labels: Labels,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float | None = None,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
    check: bool = True,
    pairs: Literal["binary", "ordered", "survival"] = "binary",
    censoring: Literal["harrell", "uno"] = "harrell",
    max_fpr: float | None = None,
    min_tpr: float | None = None,
    process_group: ProcessGroup | None = None,
    gradients: Gradients = "average",
) -> Tensor:
    r"""Average a surrogate over all pairs of the rows of all ranks.

    .. math:: \frac{1}{n_+ n_-} \sum_{i \in P} \sum_{j \in N} \phi(m - (s_i - s_j))

    P and N are the positive and negative rows of all ranks of the group. All ranks of the group
    must call it, equally often and in the same order.

    Parameters
    ----------
    scores, labels, surrogate, margin, weights, reduction, pairs, censoring, max_fpr, min_tpr
        Those of `pair_loss`, with the rows of this rank: (n,) or (n, tasks). The number of rows may
        differ between ranks and may be 0. A rank may have one class only.
    groups : (n,) tensor of whole numbers, optional
        Only pairs inside a group count. A number means the same group on all ranks.
    check : bool
        Whether to raise on bad values; on all ranks, if one rank has a bad value.
    process_group : ProcessGroup, optional
        The ranks that form the global batch. The default is the group of all processes.
    gradients : {"average", "sum"}
        How gradients of the parameters are combined over ranks after the backward pass. DDP and
        FSDP average them, so the gradient is multiplied by the number of ranks; the average is then
        the gradient of the loss. With "sum" the gradient is not multiplied, for a training loop
        that adds gradients up.

    Returns
    -------
    Tensor
        The global loss, the same on all ranks; shape and dtype are those of `pair_loss`.

    Raises
    ------
    ValueError
        On all ranks, if an argument on one of them is not as described or options differ.
    RuntimeError
        If there is no process group, or this process is not in it.

    See Also
    --------
    everypair.torch.PairLoss : Takes `process_group` as well.

    Notes
    -----
    Each rank sends O(min(n_pos, n_neg)) numbers, of the class with fewer rows in the global batch
    (for each task). With `pairs` other than "binary", and with `max_fpr` or `min_tpr`, all rows are
    gathered and each rank computes the whole loss: O(n) numbers.

    The host waits for the device, because the numbers of rows must be known. `torch.compile` breaks
    the graph at this function. A second derivative raises an error.

    Examples
    --------
    A group of a single process:

    >>> import torch, torch.distributed as dist
    >>> from everypair.torch.distributed import global_pair_loss
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> global_pair_loss(torch.tensor([0.5, 2.0, 0.0, 1.0]), torch.tensor([1, 1, 0, 0])).item()
    0.625
    >>> dist.destroy_process_group()
    """

    def options() -> LossOptions:
        return loss_options(surrogate, margin, reduction, check, pairs, censoring, max_fpr, min_tpr)

    return global_loss_and_pair_weight(
        scores, labels, weights, groups, options, gradients, process_group
    )[0]


class Rows(NamedTuple):
    """Rows of one rank.

    Attributes
    ----------
    scores : (tasks, n) floating
    labels : (tasks, n)
        Bools, whether a row is positive, if only the smaller class is exchanged.
    weights : (tasks, n) float64 or None
        Those without a label have the weight 0 in binary pairs.
    groups : (tasks, n) int64 or None
    """

    scores: Tensor
    labels: Tensor
    weights: Tensor | None
    groups: Tensor | None

    def summary(self) -> Tensor:
        """Return n_pos, n_neg and the largest weight of each class, (tasks, 4), on the CPU."""
        n_tasks, n = self.scores.shape
        if n == 0:
            return torch.zeros(n_tasks, 4, dtype=torch.float64, device="cpu")
        classes = self.labels, ~self.labels
        counts = [rows.count_nonzero(1).double() for rows in classes]
        largest = [torch.ones_like(counts[0])] * 2
        if self.weights is not None:
            largest = [self.weights.where(rows, 0.0).amax(1) for rows in classes]
        return torch.stack([*counts, *largest], 1).cpu()


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


def _no_loss(scores: Tensor) -> GlobalLoss:
    """Return the loss of tasks without a pair, for scores (tasks, n)."""
    zeros = scores.new_zeros(len(scores), dtype=torch.float64)
    return GlobalLoss(zeros, zeros, None)


@skip_compiler
def global_loss_and_pair_weight(
    scores: Tensor,
    labels: Labels,
    weights: Tensor | None,
    groups: Tensor | None,
    checked_options: Callable[[], LossOptions],
    gradients: str,
    process_group: ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    """Return the reduced loss and `GlobalLoss.pair_weight`."""
    processes = processes_of(process_group)

    def check() -> tuple[tuple[Rows, LossOptions, Tensor], str, list[float]]:
        check_gradients(gradients)
        rows, options = _checked(scores, labels, weights, groups, checked_options())
        summary = torch.tensor([[len(scores), 0, 0, 0]], device="cpu")
        if not _needs_all_rows(options):
            summary = rows.summary()
        text = f"{_description(scores, rows, weights, options)}, gradients={gradients!r}"
        wants_grad = scores.requires_grad and torch.is_grad_enabled()
        facts = [float(wants_grad), float(rows.weights is not None), *summary[0].tolist()]
        return (rows, options, summary), text, facts

    (rows, options, summary), facts = agree(processes, check, n_facts=6)
    grad, has_weights = (any(of_rank[k] for of_rank in facts) for k in range(2))
    summaries = torch.tensor(facts, dtype=torch.float64, device="cpu")[:, None, 2:]
    if _needs_all_rows(options):
        n_rows = summaries[:, 0, 0].int().tolist()
        result = _loss_of_all_rows(processes, rows, options, n_rows, grad)
    else:
        if has_weights and rows.weights is None:  # another rank has rows without a label
            rows = rows._replace(weights=torch.ones_like(rows.scores, dtype=torch.float64))
        summaries = summaries if len(summary) == 1 else processes.gather(summary)
        result = _minority_loss(processes, rows, summaries, options, grad)
    value = result.value.to(_inputs.value_dtype(scores), copy=True).reshape(scores.shape[1:])
    of_scores = torch.zeros_like(scores)
    if result.grad is not None:
        factor = processes.size if gradients == "average" else 1
        whole = _inputs.clamped((result.grad * factor, None, None), scores)[0]
        of_scores = cast("Tensor", whole).t().reshape(scores.shape)
    value = recorded(scores, (value, None, (of_scores,), _grad))
    return over_tasks(value, result.pair_weight, scores, options), result.pair_weight


def _grad(scores: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient that was computed with the loss, for every backward."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            "a loss over the pairs of all ranks cannot be differentiated twice; got "
            "create_graph=True. Use pair_loss on the rows of one process."
        )
    return grad


def _needs_all_rows(options: LossOptions) -> bool:
    """Return whether all rows are exchanged, not only those of the smaller class."""
    return options.pairs != "binary" or options.rates is not None


def _checked(
    scores: Tensor, labels: Labels, weights: Tensor | None, groups: Tensor | None,
    options: LossOptions,
) -> tuple[Rows, LossOptions]:  # fmt: skip
    """Check the tensors of this rank and return them with rows in the last of two dimensions."""
    target, weights, options = _inputs.checked(
        scores, labels, weights, groups, options, of_rank=True
    )

    def in_tasks(tensor: Tensor) -> Tensor:
        rows = tensor[None] if tensor.dim() == 1 else tensor.t()
        return rows.expand(scores.shape[1:].numel(), -1)

    x, y = in_tasks(scores.detach()), in_tasks(target)
    w = None if weights is None else in_tasks(weights).double()
    g = None if groups is None else in_tasks(groups).long()
    known_labels, known_weights = y, w
    if options.missing and bool(y.isnan().any()):
        known_labels, known_weights = _inputs.without_missing(y, w)
    if options.check is not False:
        _inputs.check_values(x, known_labels, known_weights, options.pairs)
    if _needs_all_rows(options):
        return Rows(x, y.to(_inputs.LABEL_DTYPES[y.dtype]), w, g), options
    return Rows(x, y > 0, known_weights, g), options


def check_gradients(gradients: str) -> str:
    """Check how gradients are combined over ranks and return it."""
    if gradients not in ("average", "sum"):
        raise ValueError(f"gradients must be 'average', as with DDP, or 'sum'; got {gradients!r}.")
    return gradients


def _description(scores: Tensor, rows: Rows, weights: Tensor | None, options: LossOptions) -> str:
    """Return what must be the same on all ranks."""
    columns = {"weights": weights, "groups": rows.groups}
    tensors = " and ".join(name for name, tensor in columns.items() if tensor is not None)
    labels = f"labels of type {rows.labels.dtype}, " if _needs_all_rows(options) else ""
    shape = ", ".join(["n", *map(str, scores.shape[1:])])
    reduction = "none" if options.by_task else "mean" if options.mean else "sum"
    return (
        f"scores of type {scores.dtype} and shape ({shape}), {labels}"
        f"{tensors or 'no weights or groups'}, margin={options.margin}, "
        f"surrogate={crc32(encoded(options.terms).encode())}, reduction={reduction!r}, "
        f"pairs={options.pairs!r}, (max_fpr, min_tpr)={options.rates}"
    )


def _loss_of_all_rows(
    processes: Processes, rows: Rows, options: LossOptions, n_rows: list[int], grad: bool
) -> GlobalLoss:
    """Gather all rows and return the loss over all pairs, for pairs that are not binary."""
    if not any(n_rows):
        return _no_loss(rows.scores)
    weights = None if rows.weights is None else rows.weights.t()
    groups = None if rows.groups is None else rows.groups[0]
    received = processes.gather_rows((rows.scores.t(), rows.labels.t(), weights, groups), n_rows)
    x, y, w, g = (None if of_ranks is None else torch.cat(of_ranks) for of_ranks in received)
    x, y = cast("Tensor", x), cast("Tensor", y)
    if options.rates is not None:
        w = kept_weights(x, y, w, g, options.rates)
    w = None if w is None else w.t()
    result = _dispatch.evaluate(x.t(), y.t(), w, g, options._replace(check=False), grad=grad)
    begin = sum(n_rows[: processes.rank])
    end = begin + n_rows[processes.rank]
    rows_grad = None if result.grad is None else result.grad[:, begin:end]
    return GlobalLoss(result.value.double(), cast("Tensor", result.pair_weight), rows_grad)


def _minority_loss(
    processes: Processes, rows: Rows, summaries: Tensor, options: LossOptions, grad: bool
) -> GlobalLoss:
    """Exchange the rows of the smaller class and return the loss over binary pairs.

    `summaries` are `Rows.summary` of each rank, (ranks, tasks, 4).
    """
    scores, rank = rows.scores, processes.rank
    device, (n_tasks, n), wide = scores.device, scores.shape, _inputs.value_dtype(scores)
    totals, heaviest = summaries[..., :2].sum(0), summaries[..., 2:].amax(0)
    pos_is_small = totals[:, 0] <= totals[:, 1]
    # The rows of the smaller class of each task: how many a rank has, and how many come from it.
    n_small = summaries[..., 0].where(pos_is_small, summaries[..., 1]).long()
    if not n_small.any():
        return _no_loss(scores)
    n_others = n_small.clone()
    n_others[rank] = 0
    if rows.weights is not None:  # relative to the largest: their products may be out of range
        of_pos, of_neg = heaviest.where(heaviest > 0.0, 1.0).to(device)[..., None].unbind(1)
        rows = rows._replace(weights=rows.weights / torch.where(rows.labels, of_pos, of_neg))
    sent = (rows.labels == pos_is_small.to(device)[:, None]).reshape(-1).nonzero().squeeze(1)
    columns = rows.scores, rows.weights, rows.groups
    messages = [None if column is None else column.reshape(-1)[sent] for column in columns]
    received = processes.gather_rows(messages, n_small.sum(1).tolist())
    others = [None if of_ranks is None else _by_task(of_ranks, n_others) for of_ranks in received]
    # For each task: pair weight relative to that of all pairs with the largest weights, and mean.
    local = scores.new_zeros((n_tasks, 2), dtype=torch.float64)
    grads = [scores.new_zeros(n + count, dtype=wide) for count in n_others.sum(0).tolist()]
    of_means = LossOptions(options.terms, check=False)
    for k in range(n_tasks):
        if totals[k].all():
            x, w, g = (
                None if column is None or tail is None else torch.cat((column[k], tail[k]))
                for column, tail in zip(columns, others, strict=True)
            )
            x = cast("Tensor", x)
            of_others = rows.labels.new_full((len(x) - n,), bool(pos_is_small[k]))
            pos = torch.cat((rows.labels[k], of_others))
            result = _dispatch.evaluate(x, pos, w, g, of_means, grad=grad)
            of_all_pairs = cast("Any", result.pair_weight) / totals[k].prod().item()
            local[k, 0], local[k, 1] = of_all_pairs, result.value
            grads[k] = grads[k] if result.grad is None else result.grad
    shares, values = processes.gather(local).unbind(2)
    pair_weight = shares.sum(0)
    if options.mean:
        factor = 1.0 / pair_weight.where(pair_weight > 0.0, 1.0)
    else:
        factor = (totals.prod(1) * heaviest.prod(1)).to(device)
    shares = shares * factor  # at most 1 for the mean, so that no product overflows
    value = (shares * values).sum(0)
    if not grad:
        return GlobalLoss(value, pair_weight, None)
    # Factors of sums may be beyond the range of float32.
    dtype = wide if options.mean else torch.float64
    own_grad = torch.stack([of_task[:n] for of_task in grads]).to(dtype)
    own_grad *= shares[rank, :, None].to(dtype)
    # Every other rank gets the gradient of its rows, all tasks of one rank after the other.
    parts = [torch.split(grads[k][n:], n_others[:, k].tolist()) for k in range(n_tasks)]
    message = torch.cat([part for of_rank in zip(*parts, strict=True) for part in of_rank])
    receives = [0 if other == rank else len(sent) for other in range(processes.size)]
    back = processes.exchange(message, n_others.sum(1).tolist(), receives).double()
    from_others = shares[[other for other in range(processes.size) if other != rank]]
    of_rows = from_others.repeat_interleave(n_small[rank].to(device), 1)
    own_grad.view(-1)[sent] += (back.reshape(of_rows.shape) * of_rows).sum(0).to(dtype)
    return GlobalLoss(value, pair_weight, own_grad)


def _by_task(of_ranks: list[Tensor], counts: Tensor) -> list[Tensor]:
    """Return the values of each task: those of the tasks of each rank, `counts` (ranks, tasks).

    A rank without a count sent rows as well, but they are not needed.
    """
    parts = [
        torch.split(part[: sum(n)], n) for part, n in zip(of_ranks, counts.tolist(), strict=True)
    ]
    return [torch.cat(of_task) for of_task in zip(*parts, strict=True)]

r"""The loss over the pairs of all ranks, for data-parallel training.

Ranks agree that all have valid input (`collectives/agreement.py`), then exchange the rows of the
smaller class (`collectives/minority.py`). All of this happens in the forward pass, which computes
the gradient too. The backward pass does not communicate, so it cannot interfere with DDP or FSDP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast
from zlib import crc32

import torch
from torch import Tensor
from torch.autograd import Function

from everypair.surrogates import Surrogate
from everypair.torch import _dispatch, _inputs
from everypair.torch._compat import skip_compiler
from everypair.torch._inputs import Labels, kept_weights
from everypair.torch._options import LossOptions, encoded, loss_options
from everypair.torch.collectives.agreement import agree
from everypair.torch.collectives.minority import GlobalLoss, Rows, minority_loss, no_loss
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
        summary = torch.zeros(1, 4) if _needs_all_rows(options) else rows.summary()
        text = f"{_description(scores, rows, options)}, gradients={gradients!r}"
        wants_grad = scores.requires_grad and torch.is_grad_enabled()
        facts = [float(len(scores)), float(wants_grad), *summary[0].tolist()]
        return (rows, options, summary), text, facts

    (rows, options, summary), facts = agree(processes, check, n_facts=6)
    grad = any(of_rank[1] for of_rank in facts)
    if _needs_all_rows(options):
        n_rows = [int(of_rank[0]) for of_rank in facts]
        result = _loss_of_all_rows(processes, rows, options, n_rows, grad)
    else:
        numbers = [of_rank[2:] for of_rank in facts]
        summaries = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        summaries = summaries[:, None] if len(summary) == 1 else processes.gather(summary)
        of_means = LossOptions(options.terms, check=False)

        def evaluate(x: Tensor, pos: Tensor, w: Tensor | None, g: Tensor | None) -> Any:
            return _dispatch.evaluate(x, pos, w, g, of_means, grad=grad)[:3]

        mean = options.mean
        result = minority_loss(processes, rows, summaries, evaluate, mean=mean, grad=grad)
    value = _recorded(scores, result, processes.size if gradients == "average" else 1)
    if scores.dim() == 2 and not options.by_task:
        value = value.sum()
        if options.mean:
            value = value / (result.pair_weight > 0.0).sum().clamp(min=1)
    return value, result.pair_weight


def _needs_all_rows(options: LossOptions) -> bool:
    """Return whether all rows are exchanged, not only those of the smaller class."""
    return options.pairs != "binary" or options.rates is not None


def _loss_of_all_rows(
    processes: Processes, rows: Rows, options: LossOptions, n_rows: list[int], grad: bool
) -> GlobalLoss:
    """Gather all rows and return the loss over all pairs, for pairs that are not binary."""
    if not any(n_rows):
        return no_loss(rows.scores)
    weights = None if rows.weights is None else rows.weights.t()
    columns = (rows.scores.t(), rows.labels.t(), weights, rows.groups)
    received = iter(processes.gather_rows([t for t in columns if t is not None], n_rows))
    x, y, w, g = (None if t is None else torch.cat(next(received)) for t in columns)
    x, y = cast("Tensor", x), cast("Tensor", y)
    w = kept_weights(x, y, w, g, options)
    w = None if w is None else w.t()
    result = _dispatch.evaluate(x.t(), y.t(), w, g, options._replace(check=False), grad=grad)
    begin = sum(n_rows[: processes.rank])
    end = begin + n_rows[processes.rank]
    own = None if result.grad is None else result.grad[:, begin:end]
    return GlobalLoss(result.value.double(), cast("Tensor", result.pair_weight), own)


class _Recorded(Function):
    """Record the loss, and the gradient that was computed with it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return value

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "a loss over the pairs of all ranks cannot be differentiated twice; got "
                "create_graph=True. Use pair_loss on the rows of one process."
            )
        return ctx.saved_tensors[0] * factor, None, None  # the engine rounds to the scores' type


def _recorded(scores: Tensor, result: GlobalLoss, factor: int) -> Tensor:
    """Return the loss of each task, () or (tasks,), with its gradient times a factor."""
    value = result.value.to(_inputs.value_dtype(scores), copy=True).reshape(scores.shape[1:])
    grad = torch.zeros_like(scores)
    if result.grad is not None:
        whole = _inputs.clamped((result.grad * factor, None, None), scores)[0]
        grad = cast("Tensor", whole).t().reshape(scores.shape)
    return cast("Callable[..., Tensor]", _Recorded.apply)(scores, value, grad)


def _checked(
    scores: Tensor, labels: Labels, weights: Tensor | None, groups: Tensor | None,
    options: LossOptions,
) -> tuple[Rows, LossOptions]:  # fmt: skip
    """Check the tensors of this rank and return them with rows in the last of two dimensions."""
    target, weights, options = _inputs.checked(
        scores, labels, weights, groups, options, may_be_empty=True
    )
    known = None
    if options.missing:
        known = ~target.isnan()
        known = None if bool(known.all()) else known
    if options.check is not False:
        complete = target if known is None else target.where(known, 1.0)
        batch = _inputs.in_rows(scores.detach(), complete, weights, None)
        _inputs.check_values(*batch[:3], options.pairs)
    if _needs_all_rows(options):
        target = target.to(_inputs.LABEL_DTYPES[target.dtype])
    elif target.dtype is not torch.bool:
        target = target > 0
    x = _in_tasks(scores.detach())
    rows = Rows(
        x,
        _in_tasks(target).expand(x.shape),
        None if known is None else _in_tasks(known),
        None if weights is None else _in_tasks(weights).double().expand(x.shape),
        None if groups is None else groups.reshape(-1).long(),
    )
    return rows, options


def check_gradients(gradients: str) -> str:
    """Check how gradients are combined over ranks and return it."""
    if gradients not in ("average", "sum"):
        raise ValueError(f"gradients must be 'average', as with DDP, or 'sum'; got {gradients!r}.")
    return gradients


def _in_tasks(tensor: Tensor) -> Tensor:
    """Return a tensor (n,) or (n, tasks) as (tasks, n)."""
    return tensor[None] if tensor.dim() == 1 else tensor.t()


def _description(scores: Tensor, rows: Rows, options: LossOptions) -> str:
    """Return what must be the same on all ranks."""
    tensors = [name for name in ("weights", "groups") if getattr(rows, name) is not None]
    labels = f"labels of type {rows.labels.dtype}, " if _needs_all_rows(options) else ""
    shape = ", ".join(["n", *map(str, scores.shape[1:])])
    reduction = "none" if options.by_task else "mean" if options.mean else "sum"
    return (
        f"scores of type {scores.dtype} and shape ({shape}), {labels}"
        f"{' and '.join(tensors) or 'no weights or groups'}, margin={options.margin}, "
        f"surrogate={crc32(encoded(options.terms).encode())}, reduction={reduction!r}, "
        f"pairs={options.pairs!r}, (max_fpr, min_tpr)={options.rates}"
    )

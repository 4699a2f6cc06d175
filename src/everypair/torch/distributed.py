r"""The loss over the pairs of all ranks, for data-parallel training.

Ranks agree that all have valid input (`collectives/agreement.py`), then exchange the rows of the
smaller class (`collectives/minority.py`). All of this happens in the forward pass, which computes
the gradient too. The backward pass does not communicate, so it cannot interfere with DDP or FSDP.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from zlib import crc32

import torch
from torch import Tensor
from torch.autograd import Function

from everypair.surrogates import PairTerm, Surrogate
from everypair.torch import _dispatch, _inputs
from everypair.torch._compat import skip_compiler
from everypair.torch._inputs import Labels, kept_weights
from everypair.torch._options import LossOptions, loss_options
from everypair.torch.collectives.agreement import agree
from everypair.torch.collectives.minority import ClassRows, GlobalLoss, minority_loss, no_loss
from everypair.torch.collectives.ranks import Ranks, ranks_of
from everypair.torch.collectives.rows import gather_rows

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


class _Batch(NamedTuple):
    """Checked rows and options of this rank."""

    scores: Tensor  # (tasks, n), detached
    labels: Tensor  # (tasks, n)
    weights: Tensor | None  # (tasks, n) float64
    groups: Tensor | None  # (n,) int64
    options: LossOptions

    def classes(self) -> ClassRows:
        """Return the rows with their classes."""
        pos = self.labels if self.labels.dtype is torch.bool else self.labels > 0
        known = ~self.labels.isnan() if self.options.missing else None
        if known is not None and bool(known.all()):
            known = None
        return ClassRows(self.scores, pos, known, self.weights, self.groups)


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
    ranks = ranks_of(process_group)

    def checked() -> tuple[_Batch, ClassRows, Tensor]:
        check_gradients(gradients)
        batch = _checked(scores, labels, weights, groups, checked_options())
        classes = batch.classes()
        return batch, classes, classes.summary()

    def described(found: tuple[_Batch, ClassRows, Tensor]) -> tuple[str, list[float]]:
        text = f"{_description(scores, found[0])}, gradients={gradients!r}"
        wants_grad = scores.requires_grad and torch.is_grad_enabled()
        return text, [float(len(scores)), float(wants_grad), *found[2][0].tolist()]

    (batch, classes, summary), facts = agree(ranks, checked, described, n_facts=6)
    n_rows = [int(given[0]) for given in facts]
    grad = any(given[1] for given in facts)
    options = batch.options
    if options.pairs != "binary" or options.rates is not None:
        found = _loss_of_all_rows(ranks, batch, n_rows, grad)
    else:
        summaries = torch.tensor([given[2:] for given in facts], dtype=torch.float64, device="cpu")
        summaries = summaries[:, None] if len(summary) == 1 else ranks.gather(summary)
        of_means = LossOptions(options.terms, check=False)

        def evaluate(x: Tensor, pos: Tensor, w: Tensor | None, g: Tensor | None) -> Any:
            return _dispatch.evaluate(x, pos, w, g, of_means, grad=grad)[:3]

        found = minority_loss(ranks, classes, summaries, evaluate, mean=options.mean, grad=grad)
    value = _recorded(scores, found, ranks.size if gradients == "average" else 1)
    if scores.dim() == 2 and not options.by_task:
        value = value.sum()
        if options.mean:
            value = value / (found.pair_weight > 0.0).sum().clamp(min=1)
    return value, found.pair_weight


def _loss_of_all_rows(ranks: Ranks, batch: _Batch, n_rows: list[int], grad: bool) -> GlobalLoss:
    """Gather all rows and return the loss over all pairs, for pairs that are not binary."""
    n = batch.scores.shape[1]
    if not any(n_rows):
        return no_loss(batch.scores)
    weights = None if batch.weights is None else batch.weights.t()
    columns = (batch.scores.t(), batch.labels.t(), weights, batch.groups)
    received = iter(gather_rows(ranks, [t for t in columns if t is not None], n_rows))
    x, y, w, g = (None if t is None else torch.cat(next(received)) for t in columns)
    x, y = cast("Tensor", x), cast("Tensor", y)
    w = kept_weights(x, y, w, g, batch.options)
    unchecked = batch.options._replace(check=False)
    w = None if w is None else w.t()
    found = _dispatch.evaluate(x.t(), y.t(), w, g, unchecked, grad=grad)
    begin = sum(n_rows[: ranks.rank])
    own = None if found.grad is None else found.grad[:, begin : begin + n]
    pair_weight = cast("Tensor", found.pair_weight)
    return GlobalLoss(found.value.double(), pair_weight, own)


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


def _recorded(scores: Tensor, found: GlobalLoss, factor: int) -> Tensor:
    """Return the loss of each task, () or (tasks,), with its gradient times a factor."""
    value = found.value.to(_inputs.value_dtype(scores), copy=True).reshape(scores.shape[1:])
    grad = torch.zeros_like(scores)
    if found.grad is not None:
        whole = _inputs.clamped((found.grad * factor, None, None), scores)[0]
        grad = cast("Tensor", whole).t().reshape(scores.shape)
    return cast("Callable[..., Tensor]", _Recorded.apply)(scores, value, grad)


def _checked(
    scores: Tensor, labels: Labels, weights: Tensor | None, groups: Tensor | None,
    options: LossOptions,
) -> _Batch:  # fmt: skip
    """Check the tensors of this rank."""
    target, weights, options = _inputs.checked(
        scores, labels, weights, groups, options, may_be_empty=True
    )
    x, y = _in_tasks(scores.detach()), _in_tasks(target)
    w = None if weights is None else _in_tasks(weights)
    if options.check is not False:
        known = target.nan_to_num(nan=1.0) if options.missing else target
        rows = _inputs.in_rows(scores.detach(), known, weights, None)
        _inputs.check_values(*rows[:3], options.pairs)
    y = y.to(_inputs.LABEL_DTYPES[y.dtype]).expand(x.shape)
    w = None if w is None else w.double().expand(x.shape)
    g = None if groups is None else groups.reshape(-1).long()
    return _Batch(x, y, w, g, options)


def check_gradients(gradients: str) -> str:
    """Check how gradients are combined over ranks and return it."""
    if gradients not in ("average", "sum"):
        raise ValueError(f"gradients must be 'average', as with DDP, or 'sum'; got {gradients!r}.")
    return gradients


def _in_tasks(tensor: Tensor) -> Tensor:
    """Return a tensor (n,) or (n, tasks) as (tasks, n)."""
    return tensor[None] if tensor.dim() == 1 else tensor.t()


def _description(scores: Tensor, batch: _Batch) -> str:
    """Return what must be the same on all ranks."""
    options = batch.options
    tensors = [name for name in ("weights", "groups") if getattr(batch, name) is not None]
    exchanges_all = options.pairs != "binary" or options.rates is not None
    labels = f"labels of type {batch.labels.dtype}, " if exchanges_all else ""
    shape = ", ".join(["n", *map(str, scores.shape[1:])])
    reduction = "none" if options.by_task else "mean" if options.mean else "sum"
    return (
        f"scores of type {scores.dtype} and shape ({shape}), {labels}"
        f"{' and '.join(tensors) or 'no weights or groups'}, reduction={reduction!r}, "
        f"pairs={options.pairs!r}, (max_fpr, min_tpr)={options.rates}, "
        f"margin={options.margin}, surrogate={_checksum(options.terms)}"
    )


@lru_cache(maxsize=32)
def _checksum(terms: tuple[PairTerm, ...]) -> int:
    """Return a number for the terms of a surrogate."""
    return crc32(repr(terms).encode())

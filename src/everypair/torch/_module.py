"""The loss over every pair, as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn
from torch.autograd import Function

from everypair import surrogates
from everypair._inputs import check_margin
from everypair.torch._autograd import is_transformed
from everypair.torch._functional import loss_and_pair_weight
from everypair.torch._inputs import check_reduction

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from everypair.surrogates import Surrogate

__all__ = ["PairLoss"]


class PairLoss(nn.Module):
    """Average a surrogate over every (positive, negative) pair of a batch.

    Parameters
    ----------
    surrogate, margin, reduction, check
        Those of `pair_loss`.

    Attributes
    ----------
    n_one_class : () int64 tensor
        How many batches had no pair, each task counting for itself: they teach nothing. A buffer,
        so it is in the `state_dict`. Reading it on an accelerator waits for the device.

    See Also
    --------
    pair_loss : The same as a function, with all parameters explained.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import PairLoss
    >>> criterion = PairLoss()
    >>> model = torch.nn.Linear(3, 1)
    >>> inputs, labels = torch.randn(8, 3), torch.tensor([1, 0, 0, 0, 1, 0, 0, 0])
    >>> loss = criterion(model(inputs), labels)
    >>> loss.backward()
    >>> criterion(model(inputs), torch.zeros(8)).item(), criterion.n_one_class.item()
    (0.0, 1)
    """

    n_one_class: Tensor

    def __init__(
        self,
        *,
        surrogate: str | Surrogate = "squared_hinge",
        margin: float = 1.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        check: bool | None = None,
    ) -> None:
        super().__init__()
        self.surrogate = surrogates.get(surrogate)
        self.margin = check_margin(margin)
        self.reduction = check_reduction(reduction)
        self.check = check
        self.register_buffer("n_one_class", torch.zeros((), dtype=torch.int64))

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Return the loss; see `pair_loss` for shapes and types."""
        counter = None
        if scores.is_cuda and not torch.compiler.is_compiling():
            counter = self._counter_on(scores.device)
        loss, pair_weight = loss_and_pair_weight(
            scores,
            labels,
            weights,
            groups,
            self.surrogate.at_knots(self.margin),
            self.reduction,
            self.check,
            counter,
        )
        if pair_weight is None:
            return loss
        # A float is what the quickest way returns, and what it would take longest to wrap.
        if type(pair_weight) is not float:
            self._count(cast("Tensor", pair_weight))
        elif pair_weight == 0.0:
            self.n_one_class.add_(1)
        return loss

    def extra_repr(self) -> str:
        """Return the knobs, for the module's representation."""
        return (
            f"surrogate={self.surrogate.name!r}, margin={self.margin}, reduction={self.reduction!r}"
        )

    def _counter_on(self, device: torch.device) -> Tensor:
        if self.n_one_class.device != device:
            # Losses are seldom moved to the model's device: the counter follows the scores.
            self.n_one_class = self.n_one_class.to(device)
        return self.n_one_class

    def _count(self, pair_weight: Tensor) -> None:
        counter = self._counter_on(pair_weight.device)
        if is_transformed():
            _counted(counter, pair_weight)
        else:
            one_class = pair_weight == 0.0
            counter.add_(one_class if one_class.dim() == 0 else one_class.sum())


class _Count(Function):
    """Counting under transforms, which refuse to change a tensor that they did not make."""

    @staticmethod
    def forward(counter: Tensor, pair_weight: Tensor) -> Tensor:
        # A counter of an ensemble has its leading dimensions in common with the pair weights.
        per_counter = pair_weight.reshape(*counter.shape, -1)
        return counter.add_((per_counter == 0.0).sum(-1)).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], counter: Tensor, pair_weight: Tensor
    ) -> tuple[Tensor, int | None]:
        counted, weighed = in_dims
        if weighed is None:
            pair_weight = pair_weight.expand(info.batch_size, *pair_weight.shape)
        else:
            pair_weight = pair_weight.movedim(weighed, 0)
        if counted is None:
            return _counted(counter, pair_weight), None
        return _counted(counter.movedim(counted, 0), pair_weight), 0


_counted = cast("Callable[..., Tensor]", _Count.apply)

"""The public module `PairLoss`, which counts batches without a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from everypair import surrogates
from everypair.inputs.pair_options import check_margin
from everypair.surrogates import Surrogate
from everypair.torch._autograd import loss_and_pair_weight
from everypair.torch._compat import is_transformed
from everypair.torch._inputs import Labels
from everypair.torch._options import LossOptions, encoded, loss_options
from everypair.torch.distributed import Gradients, check_gradients, global_loss_and_pair_weight

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_OPTIONS = ("surrogate", "margin", "reduction", "check", "pairs", "censoring", "max_fpr", "min_tpr")


class PairLoss(nn.Module):
    r"""Average a surrogate over all pairs of a batch that should be in order.

    .. math:: \frac{1}{n_+ n_-} \sum_{i \in P} \sum_{j \in N} \phi(m - (s_i - s_j))

    Parameters
    ----------
    surrogate, margin, reduction, check, pairs, censoring, max_fpr, min_tpr
        Those of `pair_loss`.
    process_group : ProcessGroup or "world", optional
        Compute the loss over the pairs of all ranks of this group, or of all processes. The default
        is the loss over the pairs of this process. Every rank must call the module equally often.
        With a group, values are checked unless `check` is False.
    gradients : {"average", "sum"}
        How gradients are combined over the ranks of `process_group`; see
        `everypair.torch.distributed.global_pair_loss`. DDP and FSDP average them.

    Attributes
    ----------
    n_one_class : () int64 tensor
        The number of batches without a pair, which have no gradient; each task counts as a batch.
        It is a buffer that moves with the module but is not in its `state_dict`, so a checkpoint
        of a model with another loss can be loaded. Reading it on an accelerator waits for the
        device.

    See Also
    --------
    pair_loss : The same as a function, which describes all parameters.
    everypair.torch.distributed.global_pair_loss : The same over the pairs of all ranks.

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
        margin: float | None = None,
        reduction: Literal["mean", "sum", "none"] = "mean",
        check: bool | None = None,
        pairs: Literal["binary", "ordered", "survival"] = "binary",
        censoring: Literal["harrell", "uno"] = "harrell",
        max_fpr: float | None = None,
        min_tpr: float | None = None,
        process_group: ProcessGroup | Literal["world"] | None = None,
        gradients: Gradients = "average",
    ) -> None:
        super().__init__()
        self.surrogate = surrogates.get(surrogate)
        self.margin = check_margin(margin, self.surrogate.default_margin)
        self.reduction, self.check = reduction, check
        self.pairs, self.censoring = pairs, censoring
        self.max_fpr, self.min_tpr = max_fpr, min_tpr
        self._options = self._checked_options()
        if isinstance(process_group, str) and process_group != "world":
            raise ValueError(
                f"process_group must be a ProcessGroup, 'world' or None; got {process_group!r}. "
                "Pass 'world' for all processes."
            )
        self.process_group, self.gradients = process_group, check_gradients(gradients)
        counter = torch.zeros((), dtype=torch.int64)
        self.register_buffer("n_one_class", counter, persistent=False)

    def forward(
        self,
        scores: Tensor,
        labels: Labels,
        weights: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Return the loss; see `pair_loss` for shapes and types."""
        if self.process_group is None:
            on_gpu = getattr(scores, "is_cuda", False)  # other backends leave the counting to us
            one_class = self._counter_on(scores.device) if on_gpu else None
            loss, pair_weight = loss_and_pair_weight(
                scores, labels, weights, groups, self._options, one_class
            )
        else:
            loss, pair_weight = global_loss_and_pair_weight(
                scores, labels, weights, groups, self._checked_options, self.gradients,
                None if self.process_group == "world" else self.process_group,
            )  # fmt: skip
        if pair_weight is not None:
            self._count(pair_weight)
        return loss

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; options may be changed at any time."""
        before: Any = self.__dict__.get(name)
        super().__setattr__(name, value)
        if name in _OPTIONS and "_options" in self.__dict__:
            try:
                self._options = self._checked_options()
            except ValueError:
                super().__setattr__(name, before)
                raise

    def _checked_options(self) -> LossOptions:
        options = loss_options(*(getattr(self, name) for name in _OPTIONS))
        return options if options.text else options._replace(text=encoded(options.terms))

    def extra_repr(self) -> str:
        """Return the options, for the module's representation."""
        options = f"margin={self.margin}, reduction={self.reduction!r}"
        if self.pairs != "binary":
            options += f", pairs={self.pairs!r}"
        if self.censoring != "harrell":
            options += f", censoring={self.censoring!r}"
        for name in ("max_fpr", "min_tpr"):
            rate = getattr(self, name)
            options += "" if rate is None else f", {name}={rate}"
        if self.process_group is not None:
            group = "'world'" if self.process_group == "world" else "..."
            options += f", process_group={group}"
        return f"surrogate={self.surrogate.name!r}, {options}"

    def _counter_on(self, device: torch.device) -> Tensor:
        """Return the counter, moved to the device of the scores if it is on another one.

        Tensors on the meta device have no values. A counter there starts at 0 on the first other
        device, and scores there are not counted.
        """
        if self.n_one_class.device != device:
            if device.type == "meta":
                return torch.zeros_like(self.n_one_class, device=device)
            if self.n_one_class.is_meta:
                self.n_one_class = torch.zeros_like(self.n_one_class, device=device)
            self.n_one_class = self.n_one_class.to(device)
        return self.n_one_class

    def _count(self, pair_weight: Tensor | float) -> None:
        if isinstance(pair_weight, float):
            if pair_weight == 0.0:
                self._counter_on(torch.device("cpu")).add_(1)
            return
        counter = self._counter_on(pair_weight.device)
        if not torch.compiler.is_compiling() and is_transformed():
            _count_transformed(counter, pair_weight)
        else:
            one_class = pair_weight == 0.0
            counter.add_(one_class if one_class.dim() == 0 else one_class.sum())


class _Count(Function):
    """Counting under transforms, which do not allow an ordinary tensor to change in place."""

    @staticmethod
    def forward(counter: Tensor, pair_weight: Tensor) -> Tensor:
        # An ensemble has one counter per member; their dimensions lead those of the pair weights.
        per_counter = pair_weight.reshape(*counter.shape, -1)
        return counter.add_((per_counter == 0.0).sum(-1)).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], counter: Tensor, pair_weight: Tensor
    ) -> tuple[Tensor, int | None]:
        counter_dim, weight_dim = in_dims
        if weight_dim is None:
            pair_weight, weight_dim = pair_weight.expand(info.batch_size, *pair_weight.shape), 0
        pair_weight = pair_weight.movedim(weight_dim, 0)
        if counter_dim is None:
            return _count_transformed(counter, pair_weight), None
        return _count_transformed(counter.movedim(counter_dim, 0), pair_weight), 0


_count_transformed = cast("Callable[..., Tensor]", _Count.apply)

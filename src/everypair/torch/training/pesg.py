"""The optimiser of the AUC margin loss; its steps equal those of LibAUC 2.0.1.

For each v among the model's parameters, a and b (Yuan et al., ICCV 2021, Algorithm 1)::

    g = clamp(grad v, -clip_value, clip_value) + epoch_decay (v - v_ref) + weight_decay v
    u = (1 - momentum) u + momentum g
    v = v - lr u

and then, with the new a and b::

    alpha = clip(alpha + lr (2 (margin + b - a) - 2 alpha), 0, 999)

`PESG.update_regularizer` moves v_ref to the mean of v since its last call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from everypair.torch.training.aucm import AUCMLoss

_REFERENCE_STD = 0.01
_LARGEST_ALPHA = 999.0


class PESG(Optimizer):
    """Proximal epoch stochastic gradient, for `AUCMLoss`.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        The model's parameters, or parameter groups with their own options.
    loss : AUCMLoss
        Its `a`, `b` and `alpha` are updated too; they are the last parameter group.
    lr : float
        The learning rate of the parameters and of the dual variable.
    momentum : float
        The weight of the *new* gradient, as in LibAUC: 1 is plain gradient descent, and so is 0.
    clip_value : float
        Each entry of a gradient is clamped to ``[-clip_value, clip_value]``.
    weight_decay : float
        The strength of the pull towards zero.
    epoch_decay : float
        The strength of the pull towards the reference point.
    seed : int
        Seeds a generator of its own for the reference, which starts at random near zero. The
        numbers are those that LibAUC draws after ``torch.manual_seed(seed)``.

    Raises
    ------
    ValueError
        If an option is out of range, or the loss has no `a`, `b` and `alpha`.

    See Also
    --------
    everypair.torch.PairLoss : Works with any optimiser.

    Notes
    -----
    The state takes three copies of the parameters, or one if `epoch_decay` is 0. Unlike LibAUC's,
    this optimiser has parameter groups, a `state_dict` that resumes exactly (save
    `loss.state_dict()` with it), and allows `epoch_decay=0`. It has no ``mode="adam"``.

    The reference of a group that is added later starts at the values of its parameters.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import AUCMLoss
    >>> model, loss = torch.nn.Linear(4, 1), AUCMLoss()
    >>> optimizer = PESG(model.parameters(), loss, lr=0.1)
    >>> X, y = torch.randn(8, 4), torch.tensor([1, 0] * 4)
    >>> optimizer.zero_grad()
    >>> loss(torch.sigmoid(model(X)), y).backward()
    >>> optimizer.step()
    >>> optimizer.update_regularizer(decay_factor=10)  # for example twice in a training
    >>> optimizer.param_groups[0]["lr"]
    0.01
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        loss: AUCMLoss,
        lr: float = 0.1,
        *,
        momentum: float = 0.9,
        clip_value: float = 1.0,
        weight_decay: float = 1e-5,
        epoch_decay: float = 2e-3,
        seed: int = 0,
    ) -> None:
        missing = [name for name in ("a", "b", "alpha", "margin") if not hasattr(loss, name)]
        if missing:
            raise ValueError(
                f"loss must be an AUCMLoss; got {type(loss).__name__} without "
                f"{', '.join(missing)}. Use another optimiser for other losses."
            )
        self._loss = loss
        defaults = {"lr": lr, "momentum": momentum, "clip_value": clip_value}
        defaults |= {"weight_decay": weight_decay, "epoch_decay": epoch_decay}
        super().__init__(params, defaults)
        self.add_param_group({"params": [loss.a, loss.b, loss.alpha]})
        generator = torch.Generator().manual_seed(seed)
        for group in self.param_groups:
            if group["epoch_decay"] > 0:
                for v in self._primal(group):
                    start = torch.empty(v.shape, dtype=torch.float32)
                    start.normal_(0.0, _REFERENCE_STD, generator=generator)
                    self.state[v]["reference"] = start.to(device=v.device, dtype=v.dtype)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Check and add parameters with their own options."""
        for name in self.defaults:
            given = param_group.get(name, self.defaults[name])
            if not given >= 0.0 or (name == "momentum" and given > 1.0):
                rule = "between 0 and 1" if name == "momentum" else "at least 0"
                raise ValueError(f"{name} must be {rule}; got {given!r}.")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Descend in the parameters, a and b, then ascend in alpha; return the closure's value."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            ready = [v for v in self._primal(group) if v.grad is not None]
            started = [v for v in ready if "momentum_buffer" in self.state[v]]
            new = [v for v in ready if "momentum_buffer" not in self.state[v]]
            for parameters in filter(None, (started, new)):
                self._descend(parameters, group)
        self._ascend()
        return value

    def update_regularizer(self, decay_factor: float | None = None) -> None:
        """Start a new stage: move the reference to the mean of the parameters in the last stage.

        Parameters
        ----------
        decay_factor : float, optional
            Divide the learning rate of every group by this.
        """
        if decay_factor is not None and not decay_factor > 0.0:
            raise ValueError(f"decay_factor must be larger than 0; got {decay_factor!r}.")
        for group in self.param_groups:
            if decay_factor is not None:
                group["lr"] = group["lr"] / decay_factor
            for v in self._primal(group):
                state = self.state[v]
                if "n_summed" in state:
                    # In place, because a captured CUDA graph keeps these tensors, and without
                    # reading the count, which would wait for the device.
                    total, n, reference = state["sum"], state["n_summed"], state["reference"]
                    reference.copy_(torch.where(n > 0, total / n, reference))
                    total.zero_()
                    n.zero_()

    def _primal(self, group: dict[str, Any]) -> list[Tensor]:
        """Return the parameters of a group that are minimised: all but alpha."""
        return [v for v in group["params"] if v is not self._loss.alpha]

    def _descend(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Step in parameters that either all have a momentum buffer or all have none yet."""
        states = [self.state[v] for v in parameters]
        clip, decay = group["clip_value"], group["epoch_decay"]
        grads = [cast("Tensor", v.grad) for v in parameters]
        g = list(torch._foreach_clamp_max(torch._foreach_clamp_min(grads, -clip), clip))
        if decay > 0:
            for v, state in zip(parameters, states, strict=True):
                if "reference" not in state:
                    state["reference"] = v.detach().clone()
            pull = torch._foreach_sub(parameters, [state["reference"] for state in states])
            torch._foreach_add_(g, torch._foreach_mul(pull, decay))
        torch._foreach_add_(g, torch._foreach_mul(parameters, group["weight_decay"]))
        momentum = group["momentum"]
        if momentum > 0:
            if "momentum_buffer" in states[0]:
                u = [state["momentum_buffer"] for state in states]
                torch._foreach_mul_(u, 1 - momentum)
                torch._foreach_add_(u, g, alpha=momentum)
                g = u
            else:
                for state, first in zip(states, g, strict=True):
                    state["momentum_buffer"] = first.clone()
        torch._foreach_sub_(parameters, torch._foreach_mul(g, group["lr"]))
        if decay > 0:
            for v, state in zip(parameters, states, strict=True):
                if "sum" not in state:
                    state["sum"] = torch.zeros_like(v)
                    state["n_summed"] = torch.zeros((), device=v.device)
            torch._foreach_add_([state["sum"] for state in states], parameters)
            torch._foreach_add_([state["n_summed"] for state in states], 1.0)

    def _ascend(self) -> None:
        a, b, alpha = self._loss.a, self._loss.b, self._loss.alpha
        if alpha.grad is None:
            return
        groups = self.param_groups
        lr = next(group["lr"] for group in groups if any(v is alpha for v in group["params"]))
        grad = 2 * (self._loss.margin + b - a) - 2 * alpha
        alpha.copy_((alpha + lr * grad).clamp(0.0, _LARGEST_ALPHA))

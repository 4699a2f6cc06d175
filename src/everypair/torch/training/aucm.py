"""The AUC margin loss and its optimiser, a baseline for the pair losses.

Losses and steps equal those of LibAUC 2.0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from everypair.inputs import binary, pair_options
from everypair.torch._inputs import check_data, check_scores

_REFERENCE_STD = 0.01
_LARGEST_ALPHA = 999.0


class AUCMLoss(nn.Module):
    """The AUC margin loss of LibAUC, version 1.

    It optimises AUC through a min-max problem instead of through pairs (Yuan et al., Large-scale
    Robust Deep AUC Maximization, ICCV 2021)::

        (1-p) mean[(h-a)^2 1+] + p mean[(h-b)^2 1-]
            + 2 alpha (p (1-p) m + mean[p h 1- - (1-p) h 1+]) - p (1-p) alpha^2

    It is minimised in the scores h and in a, b, and maximised in alpha >= 0. Train it with `PESG`,
    which updates the variables `a`, `b` and `alpha` along with the model.

    Parameters
    ----------
    margin : float
        The lead in score that a positive should have over a negative; at least 0.
    positive_share : float, optional
        The share p of positives in the data. The default is that of each batch.

    Attributes
    ----------
    a, b : Parameter
        The centres of the positives' and of the negatives' scores; trained with the model.
    alpha : Parameter
        The dual variable: it rises while `a` leads `b` by less than the margin.

    Notes
    -----
    The value belongs to a saddle-point problem: it can be negative, is not comparable between batch
    sizes, and should not be monitored. Use `EpochMonitor` instead.

    LibAUC passes it probabilities, ``torch.sigmoid(logits)``; do the same to compare with LibAUC.

    A batch with one class has loss 0 and zero gradient unless `positive_share` is given; then its
    scores still move towards `a` or `b`.

    Examples
    --------
    >>> import torch
    >>> loss = AUCMLoss()
    >>> scores = torch.tensor([0.9, 0.2, 0.6], requires_grad=True)
    >>> round(loss(scores, torch.tensor([1, 0, 0])).item(), 4)
    0.2244
    """

    def __init__(self, margin: float = 1.0, *, positive_share: float | None = None) -> None:
        super().__init__()
        self.margin = pair_options.check_margin(margin)
        if positive_share is not None and not 0.0 < positive_share < 1.0:
            raise ValueError(
                f"positive_share must be between 0 and 1; got {positive_share!r}. "
                "Leave it out to use the share of each batch."
            )
        self.positive_share = positive_share
        self.a = nn.Parameter(torch.zeros(()))
        self.b = nn.Parameter(torch.zeros(()))
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the value of the min-max objective at these scores, a scalar.

        Parameters
        ----------
        scores : (n,) or (n, 1) floating
        labels : (n,) or (n, 1)
            Coded {0, 1}, {-1, +1} or bool.
        """
        check_scores(scores, "scores")
        check_data(scores, labels)
        rows = labels.reshape(-1)
        # Checking values is not possible while compiling, and waits for an accelerator.
        if labels.is_cpu and not torch.compiler.is_compiling():
            binary.positive_rows(binary.labels_from(rows))
        h = scores.reshape(-1).to(torch.promote_types(scores.dtype, torch.float32))
        is_pos = (rows > 0).to(h.dtype)
        is_neg = 1.0 - is_pos
        p = is_pos.mean() if self.positive_share is None else self.positive_share
        a, b, alpha = (v.to(h.dtype) for v in (self.a, self.b, self.alpha))
        spread = (1 - p) * ((h - a) ** 2 * is_pos).mean() + p * ((h - b) ** 2 * is_neg).mean()
        lead = p * (1 - p) * self.margin + (p * h * is_neg - (1 - p) * h * is_pos).mean()
        return spread + 2 * alpha * lead - p * (1 - p) * alpha**2

    def extra_repr(self) -> str:
        """Return the options, for the module's representation."""
        return f"margin={self.margin}, positive_share={self.positive_share}"


class PESG(Optimizer):
    """Proximal epoch stochastic gradient, for `AUCMLoss`.

    For each v among the model's parameters, a and b (Yuan et al., ICCV 2021, Algorithm 1)::

        g = clamp(grad v, -clip_value, clip_value) + epoch_decay (v - v_ref) + weight_decay v
        u = (1 - momentum) u + momentum g
        v = v - lr u

    and then, with the new a and b::

        alpha = clip(alpha + lr (2 (margin + b - a) - 2 alpha), 0, 999)

    `update_regularizer` moves v_ref to the mean of v since its last call.

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

    See Also
    --------
    everypair.torch.PairLoss : Works with any optimiser.

    Notes
    -----
    The state takes three copies of the parameters, or one if `epoch_decay` is 0. Unlike LibAUC's,
    this optimiser has parameter groups, a `state_dict` that resumes exactly (save
    `loss.state_dict()` with it), and allows `epoch_decay=0`. It has no ``mode="adam"``. The
    reference of a group that is added later starts at the values of its parameters.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import AUCMLoss, PESG
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
            value = param_group.get(name, self.defaults[name])
            if not value >= 0.0 or (name == "momentum" and value > 1.0):
                rule = "between 0 and 1" if name == "momentum" else "at least 0"
                raise ValueError(f"{name} must be {rule}; got {value!r}.")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Descend in the parameters, a and b, then ascend in alpha; return the closure's value."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            self._descend(group)
        a, b, alpha = self._loss.a, self._loss.b, self._loss.alpha
        if alpha.grad is not None:
            groups = self.param_groups
            (lr,) = (g["lr"] for g in groups if any(v is alpha for v in g["params"]))
            grad = 2 * (self._loss.margin + b - a) - 2 * alpha
            alpha.copy_((alpha + lr * grad).clamp(0.0, _LARGEST_ALPHA))
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
            for state in (self.state[v] for v in self._primal(group)):
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

    def _descend(self, group: dict[str, Any]) -> None:
        parameters = [v for v in self._primal(group) if v.grad is not None]
        if not parameters:
            return
        states = [self.state[v] for v in parameters]
        clip, decay = group["clip_value"], group["epoch_decay"]
        g = torch._foreach_clamp_min([cast("Tensor", v.grad) for v in parameters], -clip)
        torch._foreach_clamp_max_(g, clip)
        torch._foreach_add_(g, torch._foreach_mul(parameters, group["weight_decay"]))
        if decay > 0:
            for v, state in zip(parameters, states, strict=True):
                if "sum" not in state:
                    state.setdefault("reference", v.detach().clone())
                    state["sum"] = torch.zeros_like(v)
                    state["n_summed"] = torch.zeros((), device=v.device)
            pull = torch._foreach_sub(parameters, [state["reference"] for state in states])
            torch._foreach_add_(g, pull, alpha=decay)
        u = [state.setdefault("momentum_buffer", v) for state, v in zip(states, g, strict=True)]
        torch._foreach_lerp_(u, g, group["momentum"] or 1.0)
        torch._foreach_sub_(parameters, torch._foreach_mul(u, group["lr"]))
        if decay > 0:
            torch._foreach_add_([state["sum"] for state in states], parameters)
            torch._foreach_add_([state["n_summed"] for state in states], 1.0)

"""Stochastic average gradient over a fixed partition of the data into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from everypair.torch._inputs import check_integer


class SAG(Optimizer):
    """Stochastic average gradient: converges like full-batch descent at the cost of one batch.

    It stores the last gradient of every batch and steps along their average (Schmidt, Le Roux and
    Bach, Minimizing Finite Sums with the Stochastic Average Gradient, 2017, Algorithm 1)::

        d = d - y_i + g_i,   y_i = g_i,   w = w - lr (d / m + weight_decay w)

    where g_i is the gradient of batch i, y_i the stored one, d the sum of all stored gradients, and
    m the number of batches seen so far.

    The objective is the mean over batches of the loss of a batch. The batches are fixed: batch
    `index` must hold the same rows every time. They may come in any order; a random one is best.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        Parameters or parameter groups.
    n_batches : int
        The number of batches in the partition.
    lr : float
        With a convex objective whose batches' gradients are L-Lipschitz, 1 / (16 L) is safe and
        1 / L usually works.
    weight_decay : float
        Adds ``weight_decay / 2 * |w|^2`` to the objective, exactly.

    Notes
    -----
    Memory: ``n_batches + 1`` copies of the parameters, on their device. This suits linear models
    and small networks: a million float32 parameters in 100 batches take 404 MB.

    With dropout, augmentation or batch normalisation the stored gradients belong to other
    functions, and SAG has no convergence guarantee; nor has it with too large a learning rate.

    Examples
    --------
    >>> import torch
    >>> from everypair.torch import PairLoss
    >>> model, loss = torch.nn.Linear(4, 1), PairLoss()
    >>> batches = [(torch.randn(8, 4), torch.tensor([1, 0] * 4)) for _ in range(5)]
    >>> optimizer = SAG(model.parameters(), n_batches=5, lr=0.1)
    >>> for index in torch.randperm(5).tolist():
    ...     X, y = batches[index]
    ...     optimizer.zero_grad()
    ...     loss(model(X), y).backward()
    ...     optimizer.step(index=index)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        n_batches: int,
        lr: float = 0.01,
        *,
        weight_decay: float = 0.0,
    ) -> None:
        self.n_batches = check_integer("n_batches", n_batches, at_least=1)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Check and add parameters with their own options."""
        for name in self.defaults:
            value = param_group.get(name, self.defaults[name])
            if not value >= 0.0:
                raise ValueError(f"{name} must be at least 0; got {value!r}.")
        param_group["seen"] = [False] * self.n_batches
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, *, index: int | None = None) -> Any:
        """Replace the stored gradient of one batch, and step along the average of all.

        Parameters
        ----------
        closure : callable, optional
            Recomputes loss and gradient of the batch, and returns the loss.
        index : int
            The batch that the gradients belong to, from 0 to ``n_batches - 1``.
        """
        if not isinstance(index, int) or not 0 <= index < self.n_batches:
            raise ValueError(
                f"index must be a whole number from 0 to {self.n_batches - 1}, the number of the "
                f"batch in the partition; got {index!r}. Call step(index=...)."
            )
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            group["seen"][index] = True
            n_seen = sum(group["seen"])
            for w in group["params"]:
                if w.grad is not None or w in self.state:
                    self._descend(w, index, n_seen, group)
        return value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state of the same partition."""
        for group in state_dict["param_groups"]:
            if len(group["seen"]) != self.n_batches:
                raise ValueError(
                    f"state_dict must be of the same partition; it has {len(group['seen'])} "
                    f"batches, this optimiser {self.n_batches}. Make it with "
                    f"n_batches={len(group['seen'])}."
                )
        super().load_state_dict(state_dict)

    def _descend(self, w: Tensor, index: int, n_seen: int, group: dict[str, Any]) -> None:
        state = self.state[w]
        if not state:
            state["gradients"] = w.new_zeros((self.n_batches, *w.shape))
            state["total"] = torch.zeros_like(w)
        gradient, total = state["gradients"][index], state["total"]
        total.sub_(gradient)
        # A parameter without a gradient does not depend on this batch: its gradient is zero.
        gradient.zero_() if w.grad is None else gradient.copy_(w.grad)
        total.add_(gradient)
        if index == self.n_batches - 1:
            # Sum again about once per pass, so that rounding errors do not accumulate.
            total.copy_(state["gradients"].sum(0))
        w.sub_(group["lr"] * (total / n_seen + group["weight_decay"] * w))

"""Stochastic average gradient over a fixed partition of the data into batches.

It remembers the last gradient of every batch and steps along their average, so that a step costs
one batch but the direction is nearly that of the whole data set (Schmidt, Le Roux and Bach,
Minimizing Finite Sums with the Stochastic Average Gradient, 2017, Algorithm 1)::

    d = d - y_i + g_i,   y_i = g_i,   w = w - lr (d / m + weight_decay w)

where m is the number of batches seen so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["SAG"]


class SAG(Optimizer):
    """Stochastic average gradient: the speed of full-batch descent at the price of one batch.

    The objective is the mean over batches of the loss of a batch. The batches are fixed: batch
    `index` must hold the same rows whenever it comes, in whatever order the batches come (a random
    one is best).

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
        Adds ``weight_decay / 2 * |w|^2`` to the objective, exactly (it needs no memory).

    Raises
    ------
    ValueError
        If a knob is out of range, or `step` gets no index or one beyond the partition.

    Notes
    -----
    Memory: ``n_batches + 1`` copies of the parameters, on their device. That is nothing for linear
    models and small networks, and too much for large ones: a million float32 parameters in 100
    batches take 404 MB.

    Dropout, augmentation and batch normalisation make the remembered gradients those of another
    function; SAG then loses its guarantee, as does any learning rate that is too large.

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
        if not isinstance(n_batches, int) or n_batches < 1:
            raise ValueError(f"n_batches must be a whole number of at least 1; got {n_batches!r}.")
        self.n_batches = n_batches
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own knobs, checked."""
        for name in self.defaults:
            given = param_group.get(name, self.defaults[name])
            if not given >= 0.0:
                raise ValueError(f"{name} must be at least 0; got {given!r}.")
        param_group["seen"] = [False] * self.n_batches
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None, *, index: int | None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], *, index: int | None = None) -> float: ...

    def step(
        self, closure: Callable[[], float] | None = None, *, index: int | None = None
    ) -> float | None:
        """Replace the remembered gradient of one batch, and step along the average of all.

        Parameters
        ----------
        closure : callable, optional
            Computes loss and gradient of the batch anew, and returns the loss.
        index : int
            Which batch the gradients are of, from 0 to ``n_batches - 1``.
        """
        if not isinstance(index, int) or not 0 <= index < self.n_batches:
            raise ValueError(
                f"index must be a whole number from 0 to {self.n_batches - 1}, the place of the "
                f"batch in the partition; got {index!r}. Call step(index=...)."
            )
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        with torch.no_grad():
            for group in self.param_groups:
                group["seen"][index] = True
                n_seen = sum(group["seen"])
                for w in group["params"]:
                    if w.grad is not None or w in self.state:
                        self._descend(w, index, n_seen, group)
        return value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, of the same partition."""
        for group in state_dict["param_groups"]:
            if len(group["seen"]) != self.n_batches:
                raise ValueError(
                    f"state_dict must be of the same partition; it has {len(group['seen'])} "
                    f"batches, this optimiser {self.n_batches}."
                )
        super().load_state_dict(state_dict)

    def _descend(self, w: Tensor, index: int, n_seen: int, group: dict[str, Any]) -> None:
        state = self.state[w]
        if not state:
            state["gradients"] = w.new_zeros((self.n_batches, *w.shape))
            state["total"] = torch.zeros_like(w)
            state["n_updates"] = 0
        remembered, total = state["gradients"][index], state["total"]
        total.sub_(remembered)
        # A parameter that this batch does not touch has gradient zero there.
        remembered.zero_() if w.grad is None else remembered.copy_(w.grad)
        total.add_(remembered)
        state["n_updates"] += 1
        if state["n_updates"] % self.n_batches == 0:
            # Updates leave rounding errors behind; one sum a pass keeps them from piling up.
            total.copy_(state["gradients"].sum(0))
        w.sub_(group["lr"] * (total / n_seen + group["weight_decay"] * w))

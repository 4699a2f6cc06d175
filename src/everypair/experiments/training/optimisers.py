"""Optimisers, as data: how each one is made, what it asks of the batches, and how it steps.

>>> sorted(OPTIMISERS)
['adam', 'lbfgs', 'momentum', 'pesg', 'sag', 'sgd']
>>> check("squared_hinge", "lbfgs", batch=50)
Traceback (most recent call last):
    ...
everypair.experiments.errors.UserError: batch must be 0 (all rows at once) with the optimiser
lbfgs; got 50. ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from everypair.experiments.errors import UserError
from everypair.experiments.plan import FULL_BATCH, Settings
from everypair.experiments.registry import Registry
from everypair.experiments.training.objectives import OBJECTIVES
from everypair.torch import PESG, SAG, AUCMLoss

__all__ = ["OPTIMISERS", "Optimiser", "Task", "check"]

Gradient = Callable[[], Tensor]
"""Computes the gradient of a batch anew, leaves it in the parameters and returns the loss."""

LBFGS_ITERATIONS = 5
"""In one epoch: few enough that the best epoch is found nearly to the iteration."""

SAG_MEMORY = 2 * 2**30
"""Bytes of remembered gradients that are still sensible."""


@dataclass(frozen=True)
class Task:
    """What an optimiser may want to know about the training that it is for."""

    rate: float
    n_batches: int
    seed: int
    settings: Settings


def _plain_step(optimiser: Optimizer, gradient: Gradient, index: int) -> None:
    gradient()
    optimiser.step()


def _sag_step(optimiser: Optimizer, gradient: Gradient, index: int) -> None:
    gradient()
    cast("SAG", optimiser).step(index=index)


def _closure_step(optimiser: Optimizer, gradient: Gradient, index: int) -> None:
    optimiser.step(cast("Callable[[], float]", gradient))


def _nothing(optimiser: Optimizer, settings: Settings) -> None:
    pass


@dataclass(frozen=True)
class Optimiser:
    """A way to minimise a loss.

    Attributes
    ----------
    make : callable
        From the model's parameters, the loss module and the task, a torch optimiser.
    full_batch : bool
        Whether it only works on all rows at once.
    fixed_batches : bool
        Whether the batches are the same in every epoch; their order is new each time.
    step : callable
        Of the torch optimiser, a function that computes the gradient of the batch, and the place of
        the batch in the epoch's plan: does one step.
    end_epoch : callable
        Of the torch optimiser and the settings: what is due after every epoch.
    """

    make: Callable[[list[Tensor], nn.Module, Task], Optimizer]
    full_batch: bool = False
    fixed_batches: bool = False
    step: Callable[[Optimizer, Gradient, int], None] = _plain_step
    end_epoch: Callable[[Optimizer, Settings], None] = _nothing


def _sgd(parameters: list[Tensor], objective: nn.Module, task: Task) -> Optimizer:
    return torch.optim.SGD(parameters, lr=task.rate)


def _momentum(parameters: list[Tensor], objective: nn.Module, task: Task) -> Optimizer:
    return torch.optim.SGD(parameters, lr=task.rate, momentum=0.9)


def _adam(parameters: list[Tensor], objective: nn.Module, task: Task) -> Optimizer:
    # Its count of steps lives on the device, where a captured graph can advance it.
    return torch.optim.Adam(parameters, lr=task.rate, capturable=parameters[0].is_cuda)


def _lbfgs(parameters: list[Tensor], objective: nn.Module, task: Task) -> Optimizer:
    return torch.optim.LBFGS(
        parameters, lr=task.rate, max_iter=LBFGS_ITERATIONS, line_search_fn="strong_wolfe"
    )


def _sag(parameters: list[Tensor], objective: nn.Module, task: Task) -> Optimizer:
    needed = (task.n_batches + 1) * sum(p.numel() * p.element_size() for p in parameters)
    if needed > SAG_MEMORY:
        raise UserError(
            f"optimiser sag must remember one gradient for each of {task.n_batches} batches: "
            f"{needed / 2**30:.1f} GiB for this model. Take larger batches, or a smaller model."
        )
    return SAG(parameters, task.n_batches, lr=task.rate)


def _pesg(parameters: list[Tensor], objective: nn.Module, task: Task) -> Optimizer:
    saddle = next(m for m in objective.modules() if isinstance(m, AUCMLoss))
    # The authors decayed the weights of this baseline alone; as corrected, nobody's are.
    decay = 1e-4 if task.settings.protocol == "paper" else 0.0
    return PESG(parameters, saddle, lr=task.rate, weight_decay=decay, seed=task.seed)


def _refresh_reference(optimiser: Optimizer, settings: Settings) -> None:
    # The authors never did, so that the weights stayed tied to where PESG's reference began.
    if settings.protocol == "corrected":
        cast("PESG", optimiser).update_regularizer()


OPTIMISERS: Registry[Optimiser] = Registry(
    "optimiser",
    {
        "sgd": Optimiser(_sgd),
        "momentum": Optimiser(_momentum),
        "adam": Optimiser(_adam),
        "lbfgs": Optimiser(_lbfgs, full_batch=True, step=_closure_step),
        "sag": Optimiser(_sag, fixed_batches=True, step=_sag_step),
        "pesg": Optimiser(_pesg, end_epoch=_refresh_reference),
    },
)
"""From the name of an optimiser to what it is."""


def check(loss: str, optimiser: str, *, batch: int) -> None:
    """Refuse what cannot be trained together.

    Raises
    ------
    UserError
        If a name is unknown, the optimiser is none for this loss, or not for this batch size.
    """
    able = OBJECTIVES.find(loss).optimisers
    chosen = OPTIMISERS.find(optimiser)
    if optimiser not in able:
        raise UserError(
            f"optimiser must be one of {', '.join(able)} for the loss {loss}; got {optimiser!r}."
        )
    if batch < 0 or (chosen.full_batch and batch != FULL_BATCH):
        rule = "0 (all rows at once)" if chosen.full_batch else "at least 1, or 0 for all rows"
        raise UserError(
            f"batch must be {rule} with the optimiser {optimiser}; got {batch}. "
            "Give --batch 0, or another optimiser."
        )

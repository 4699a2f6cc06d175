"""The table of optimisers: how each one is made, how it steps, and which batches it needs.

>>> sorted(OPTIMISERS)
['adam', 'lbfgs', 'momentum', 'pesg', 'sag', 'sgd', 'solam']
>>> check("squared_hinge", "lbfgs", batch=50)
Traceback (most recent call last):
    ...
everypair.experiments.errors.UserError: batch must be 0 (all rows at once) with the optimiser
lbfgs; got 50. ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from everypair.experiments.errors import UserError
from everypair.experiments.plan import FULL_BATCH, Settings
from everypair.experiments.registry import Registry
from everypair.experiments.training.objectives import OBJECTIVES
from everypair.torch import PESG, SAG, AUCMLoss

Gradient = Callable[[], Tensor]
"""Computes the gradient of a batch, stores it in the parameters and returns the loss."""

LBFGS_ITERATIONS = 5
"""Iterations of L-BFGS in one epoch. They are few, because models are compared once an epoch."""

SAG_MEMORY = 2 * 2**30
"""The largest number of bytes that SAG may use for stored gradients."""


@dataclass(frozen=True)
class TrainingTask:
    """The properties of a training that an optimiser may depend on."""

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


@dataclass(frozen=True)
class Optimiser:
    """A way to minimise a loss.

    Attributes
    ----------
    make : callable
        Takes the model's parameters, the loss module and a `TrainingTask`, and returns a torch
        optimiser.
    full_batch : bool
        Whether every batch must hold all rows.
    fixed_batches : bool
        Whether the batches must be the same in every epoch; their order still changes.
    step : callable
        Does one step. Takes the torch optimiser, a function that computes the gradient of the
        batch, and the place of the batch in the epoch.
    end_epoch : callable
        Called with the torch optimiser and the settings after every epoch.
    """

    make: Callable[[list[Tensor], nn.Module, TrainingTask], Optimizer]
    full_batch: bool = False
    fixed_batches: bool = False
    step: Callable[[Optimizer, Gradient, int], None] = _plain_step
    end_epoch: Callable[[Optimizer, Settings], None] = lambda optimiser, settings: None


def _rate(parameters: list[Tensor], task: TrainingTask) -> float:
    """Return the rate; a tensor if a captured CUDA graph has to read a rate that changes."""
    if task.settings.schedule == "constant" or not parameters[0].is_cuda:
        return task.rate
    return cast("float", torch.tensor(task.rate, device=parameters[0].device))


def _sgd(momentum: float) -> Callable[[list[Tensor], nn.Module, TrainingTask], Optimizer]:
    def make(parameters: list[Tensor], objective: nn.Module, task: TrainingTask) -> Optimizer:
        # One kernel for all parameters on a GPU; the only form of SGD that reads a tensor's rate.
        fused = True if parameters[0].is_cuda else None
        return SGD(parameters, _rate(parameters, task), momentum=momentum, fused=fused)

    return make


def _adam(parameters: list[Tensor], objective: nn.Module, task: TrainingTask) -> Optimizer:
    # On a GPU the step count is kept on the device, where a captured CUDA graph can advance it.
    rate, on_gpu = _rate(parameters, task), parameters[0].is_cuda
    return torch.optim.Adam(parameters, lr=rate, capturable=on_gpu, fused=on_gpu or None)


def _lbfgs(parameters: list[Tensor], objective: nn.Module, task: TrainingTask) -> Optimizer:
    return torch.optim.LBFGS(
        parameters, lr=task.rate, max_iter=LBFGS_ITERATIONS, line_search_fn="strong_wolfe"
    )


def _sag(parameters: list[Tensor], objective: nn.Module, task: TrainingTask) -> Optimizer:
    needed = (task.n_batches + 1) * sum(p.numel() * p.element_size() for p in parameters)
    if needed > SAG_MEMORY:
        raise UserError(
            f"optimiser sag stores one gradient for each of {task.n_batches} batches: "
            f"{needed / 2**30:.1f} GiB for this model. Use larger batches, or a smaller model."
        )
    return SAG(parameters, task.n_batches, lr=task.rate)


def _pesg(parameters: list[Tensor], objective: nn.Module, task: TrainingTask) -> Optimizer:
    saddle = next(m for m in objective.modules() if isinstance(m, AUCMLoss))
    # The authors' code has weight decay for PESG only; protocol "corrected" has none.
    decay = 1e-4 if task.settings.protocol == "paper" else 0.0
    rate = _rate(parameters, task)
    return PESG(parameters, saddle, lr=rate, weight_decay=decay, seed=task.seed)


def _solam(parameters: list[Tensor], objective: nn.Module, task: TrainingTask) -> Optimizer:
    saddle = next(m for m in objective.modules() if isinstance(m, AUCMLoss))
    descent: dict[str, Any] = {"params": [*parameters, saddle.a, saddle.b]}
    ascent: dict[str, Any] = {"params": [saddle.alpha], "maximize": True}
    fused = True if parameters[0].is_cuda else None
    return SGD([descent, ascent], _rate(parameters, task), fused=fused)


def _refresh_reference(optimiser: Optimizer, settings: Settings) -> None:
    # The authors' code never updated PESG's reference point; protocol "paper" keeps that.
    if settings.protocol == "corrected":
        cast("PESG", optimiser).update_regularizer()


OPTIMISERS: Registry[Optimiser] = Registry(
    "optimiser",
    {
        "sgd": Optimiser(_sgd(momentum=0.0)),
        "momentum": Optimiser(_sgd(momentum=0.9)),
        "adam": Optimiser(_adam),
        "lbfgs": Optimiser(_lbfgs, full_batch=True, step=_closure_step),
        "sag": Optimiser(_sag, fixed_batches=True, step=_sag_step),
        "pesg": Optimiser(_pesg, end_epoch=_refresh_reference),
        "solam": Optimiser(_solam),
    },
)
"""The optimisers by name."""


def scheduled_rate(rate: float, epoch: int, settings: Settings) -> float:
    """Return the rate of an epoch; epochs count from 1.

    With the schedule "cosine" it falls from `rate` in the first epoch towards 0 after the last:
    rate (1 + cos(pi (epoch - 1) / epochs)) / 2.

    >>> halved = Settings(epochs=4, schedule="cosine")
    >>> [round(scheduled_rate(1.0, epoch, halved), 3) for epoch in (1, 2, 3, 4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    if settings.schedule == "constant":
        return rate
    return rate * (1 + math.cos(math.pi * (epoch - 1) / settings.epochs)) / 2


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the rate of all parameters, in place if it is a tensor that a CUDA graph reads."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def check(loss: str, optimiser: str, *, batch: int, warm_start: int = 0) -> None:
    """Raise UserError if a name is unknown or the optimiser cannot use this loss or batch size."""
    entry = OBJECTIVES.find(loss)
    able, package = entry.optimisers, entry.package
    if package and find_spec(package[0]) is None:
        raise UserError(
            f"the loss {loss} needs the package {package[1]}; install it with pip install "
            f"{package[1]}, or leave {loss} out of --losses."
        )
    chosen = OPTIMISERS.find(optimiser)
    if optimiser not in able:
        raise UserError(
            f"optimiser must be one of {', '.join(able)} for the loss {loss}; got {optimiser!r}."
        )
    if batch < 0 or (chosen.full_batch and batch != FULL_BATCH):
        rule = "0 (all rows at once)" if chosen.full_batch else "at least 1, or 0 for all rows"
        raise UserError(
            f"batch must be {rule} with the optimiser {optimiser}; got {batch}. "
            "Give --batch full, or another optimiser."
        )
    if warm_start and (chosen.full_batch or chosen.fixed_batches):
        raise UserError(
            f"warm_start must be 0 with the optimiser {optimiser}, which keeps earlier "
            f"gradients; got {warm_start}. Leave out --warm-start, or take another optimiser."
        )

"""One trial: train a model with a loss, measure every epoch, keep the best one.

A trial flows: seed -> weights and batches -> `Learner.step` for each batch -> `Measuring` after
each epoch -> a `Record` and the weights of the epoch with the greatest validation AUC.

>>> from everypair.experiments.data import sources, splits
>>> from everypair.experiments.plan import Cell
>>> digits = splits.split(sources.load("digits"), imratio=0.1, seed=0, protocol="corrected")
>>> trial = Trial(Cell("digits", 0.1, "squared_hinge", "sgd", seed=0), batch=50, rate=0.01)
>>> record, state = train(trial, Settings(model="linear", epochs=2), digits)
>>> record.state, record.history["epoch"], record.test_auc > 0.75
('finished', [0.0, 1.0, 2.0], True)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch._dynamo  # by itself it would come with the first step, on the clock of the first trial
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from everypair.experiments.data import augment
from everypair.experiments.plan import Record, Settings, Trial
from everypair.experiments.seeds import derived, isolated
from everypair.experiments.training import models, optimisers
from everypair.experiments.training.batches import Batch, Batches
from everypair.experiments.training.measuring import Measured, Measuring
from everypair.experiments.training.objectives import OBJECTIVES, ends_in_sigmoid
from everypair.experiments.training.optimisers import OPTIMISERS, Optimiser, Task

if TYPE_CHECKING:
    from everypair.experiments.data.splits import Part, Split

__all__ = ["Learner", "Progress", "inputs_of", "learner_for", "train"]

State = dict[str, Tensor]


@dataclass
class Learner:
    """A model with its loss and its optimiser; the optimiser holds the parameters of both."""

    model: nn.Module
    objective: nn.Module
    kind: Optimiser
    optimiser: Optimizer

    def step(
        self, inputs: Tensor, labels: Tensor, groups: Tensor | None = None, index: int = 0
    ) -> None:
        """Do one step on a batch, without waiting for the device (L-BFGS does wait).

        `inputs` are prepared, and `index` is the place of the batch in the epoch's plan.
        """

        def gradient() -> Tensor:
            self.optimiser.zero_grad()
            loss: Tensor = self.objective(self.model(inputs), labels, groups)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        self.kind.step(self.optimiser, gradient, index)


def learner_for(trial: Trial, settings: Settings, subtrain: Part, *, n_batches: int) -> Learner:
    """Return a trial's model, loss and optimiser before the first step, on the data's device."""
    cell = trial.cell
    device = subtrain.labels.device
    model = models.build(
        settings.model,
        tuple(subtrain.inputs.shape[1:]),
        sigmoid=ends_in_sigmoid(cell.loss, settings),
        seed=derived(cell.seed, "weights"),
    ).to(device)
    objective = OBJECTIVES.find(cell.loss).make(settings, subtrain.labels).to(device)
    kind = OPTIMISERS.find(cell.optimiser)
    task = Task(trial.rate, n_batches, cell.seed, settings)
    return Learner(model, objective, kind, kind.make(list(model.parameters()), objective, task))


def inputs_of(part: Part, batch: Batch) -> Tensor:
    """Return what the model takes for a batch: augmented where the batch has random numbers."""
    chosen = part.inputs.index_select(0, batch.rows)
    if batch.numbers is None:
        return augment.prepare(chosen)
    return augment.apply(chosen, batch.numbers)


@dataclass
class Progress:
    """What a trial has left so far: its history, and its best epoch by validation AUC."""

    trial: Trial
    history: dict[str, list[float]] = field(default_factory=dict)
    best_epoch: int = -1
    best_state: State = field(default_factory=dict)
    best_scores: NDArray[np.float32] | None = None

    def add(self, measured: Measured, model: nn.Module) -> None:
        """Add an epoch; keep a copy of the weights if none before was as good."""
        best = self.history["validation_auc"][self.best_epoch] if self.history else -1.0
        for name, value in measured.row.items():
            self.history.setdefault(name, []).append(value)
        if measured.row["validation_auc"] > best:
            self.best_epoch = len(self.history["epoch"]) - 1
            self.best_state = {
                name: value.detach().to("cpu", copy=True)
                for name, value in model.state_dict().items()
            }
            self.best_scores = measured.test_scores

    def record(
        self,
        measuring: Measuring,
        *,
        diverged_at: int | None,
        seconds: float,
        device: str,
        n_one_class: int,
    ) -> Record:
        """Return what the store keeps."""
        best = self.best_epoch
        nothing = best < 0
        return Record(
            self.trial,
            state="finished" if diverged_at is None else "diverged",
            history=self.history,
            best_epoch=best,
            validation_auc=float("nan") if nothing else self.history["validation_auc"][best],
            test_auc=float("nan") if nothing else self.history["test_auc"][best],
            roc=([], []) if self.best_scores is None else measuring.roc(self.best_scores),
            diverged_at=diverged_at,
            reason="" if diverged_at is None else _reason(self.trial, diverged_at),
            seconds=seconds,
            device=device,
            n_one_class=n_one_class,
        )


def train(
    trial: Trial,
    settings: Settings,
    split: Split,
    *,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> tuple[Record, State]:
    """Train one model and return what it left.

    Weights, the order of the rows and the augmentation follow from the trial's seed alone, so that
    trials which differ in loss, rate or batch size differ in nothing else.

    Parameters
    ----------
    trial : Trial
    settings : Settings
    split : Split
        Moved to the device if it is not there; ``split.to(device)`` once for many trials is faster.
    device : str or torch.device
    on_epoch : callable, optional
        Gets each epoch's row of the history as soon as it is measured. What it raises, ends the
        training.

    Returns
    -------
    Record
        Diverged if scores or losses stopped being finite; it then has the epochs before.
    dict
        The model's state at the best epoch, on the CPU.

    Raises
    ------
    UserError
        If model, loss, optimiser and batch size do not go together.
    """
    start = time.perf_counter()
    device = torch.device(device)
    cell = trial.cell
    optimisers.check(cell.loss, cell.optimiser, batch=trial.batch)
    # Of cuDNN's algorithms, those that give the same numbers again.
    repeatable = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with isolated(derived(cell.seed, "dropout"), device), repeatable:
        split = split.to(device)
        subtrain = split.subtrain
        batches = Batches(
            subtrain.labels,
            subtrain.groups,
            size=trial.batch,
            settings=settings,
            seed=cell.seed,
            fixed=OPTIMISERS.find(cell.optimiser).fixed_batches,
            augmented=split.augmentation.subtrain,
        )
        learner = learner_for(trial, settings, subtrain, n_batches=len(batches))
        measuring = Measuring(split, seed=cell.seed)
        progress = Progress(trial)
        diverged_at = None
        for epoch in range(settings.epochs + 1):
            if epoch:
                for batch in batches.epoch(epoch):
                    inputs = inputs_of(subtrain, batch)
                    learner.step(inputs, batch.labels, batch.groups, batch.place)
                learner.kind.end_epoch(learner.optimiser, settings)
            measured = measuring(epoch, learner.model, learner.objective)
            if measured is None:
                diverged_at = epoch
                break
            progress.add(measured, learner.model)
            if on_epoch is not None:
                on_epoch(measured.row)
        record = progress.record(
            measuring,
            diverged_at=diverged_at,
            seconds=time.perf_counter() - start,
            device=str(device),
            n_one_class=batches.n_one_class,
        )
    return record, progress.best_state


def _reason(trial: Trial, epoch: int) -> str:
    return (
        f"scores or losses were no longer finite after epoch {epoch}; take a rate smaller than "
        f"{trial.rate:g}, for example {trial.rate / 10:g}"
    )

"""Train one model with one loss, measure it after every epoch and keep the best epoch.

Data flow: seed -> weights and batches -> `TrialRun.step` for each batch -> `TrialRun.finish_epoch`
after each epoch -> a `Record` and the weights of the epoch with the greatest validation AUC.

>>> from everypair.experiments import Cell, load_dataset, split
>>> digits = split(load_dataset("digits"), imratio=0.1, seed=0, protocol="corrected")
>>> trial = Trial(Cell("digits", 0.1, "squared_hinge", "sgd", seed=0), batch=50, rate=0.01)
>>> record, state = train(trial, Settings(model="linear", epochs=2), digits)
>>> record.state, record.history["epoch"], record.test_auc > 0.75
('finished', [0.0, 1.0, 2.0], True)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch._dynamo  # imported early, so that the first trial's time does not include it
from torch import Tensor, nn

from everypair.experiments.data import augment
from everypair.experiments.data.splits import Split
from everypair.experiments.plan import FULL_BATCH, Record, Settings, Trial
from everypair.experiments.seeds import derived, isolated
from everypair.experiments.training import models, optimisers
from everypair.experiments.training.batches import Batches, MiniBatch
from everypair.experiments.training.measuring import Measured, Measuring, Roc
from everypair.experiments.training.objectives import OBJECTIVES, WarmStartLoss, ends_in_sigmoid
from everypair.experiments.training.optimisers import OPTIMISERS, TrainingTask
from everypair.torch import large_batch_backward

CHUNK_ROWS = 8192
"""Rows of a full batch that are in memory at once, with their activations."""

State = dict[str, Tensor]
"""The weights of a model by name, as ``state_dict()`` returns them."""


class TrialRun:
    """The training of one trial: model, loss, optimiser, batches, history and best epoch.

    See `train` for the parameters. `diverged_at` is the first epoch after which a score or a loss
    was not finite, or None.
    """

    def __init__(
        self, trial: Trial, settings: Settings, split: Split, device: torch.device
    ) -> None:
        cell = trial.cell
        warm_start, sigmoid = settings.warm_start, ends_in_sigmoid(cell.loss, settings)
        optimisers.check(cell.loss, cell.optimiser, batch=trial.batch, warm_start=warm_start)
        split = split.to(device)
        self.trial, self.settings, self.subtrain = trial, settings, split.subtrain
        self._entry = OBJECTIVES.find(cell.loss)
        if self._entry.resample:
            self.subtrain = self._entry.resample(self.subtrain, derived(cell.seed, "resample"))
        self._kind = OPTIMISERS.find(cell.optimiser)
        self.batches = Batches(
            self.subtrain.labels,
            self.subtrain.groups,
            size=trial.batch,
            settings=settings,
            seed=cell.seed,
            fixed=self._kind.fixed_batches,
            augmented=split.augmentation.subtrain,
        )
        self._model = models.build(
            settings.model,
            tuple(self.subtrain.inputs.shape[1:]),
            sigmoid=sigmoid,
            seed=derived(cell.seed, "weights"),
            bf16=settings.precision == "bf16",
        ).to(device)
        objective = self._entry.make(settings, self.subtrain.labels)
        self._objective = objective.to(device)
        # The loss of the steps; the objective is measured in all epochs.
        self._step_loss = WarmStartLoss(sigmoid=sigmoid) if warm_start else self._objective
        task = TrainingTask(trial.rate, len(self.batches), cell.seed, settings)
        self.optimiser = self._kind.make([*self._model.parameters()], self._objective, task)
        self._measuring = Measuring(split, seed=cell.seed, sample=settings.subtrain_sample)
        self._measured: Measured  # set by `send`, of the epoch that `finish_epoch` has to complete
        # A copy of the weights when they were measured: the next steps may run before `finish`.
        self._state = {name: w.detach().clone() for name, w in self._model.state_dict().items()}
        self._history: dict[str, list[float]] = {}
        self._best_epoch = -1
        self._best_state: State = {}
        self._n_one_class = 0
        self.diverged_at: int | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Set the rate and the loss of the steps of an epoch."""
        rate = optimisers.scheduled_rate(self.trial.rate, epoch, self.settings)
        if rate != self.trial.rate:
            optimisers.set_rate(self.optimiser, rate)
        if epoch > self.settings.warm_start:
            self._step_loss = self._objective
        self._entry.begin_epoch(self._objective, epoch, self.settings)

    def step(self, batch: MiniBatch) -> None:
        """Do one step on a batch, without waiting for the device (full batches do wait).

        Full batches of more than `CHUNK_ROWS` rows go through the model in chunks.
        """
        inputs = augment.prepare(self.subtrain.inputs.index_select(0, batch.rows), batch.numbers)
        labels, groups = batch.labels, batch.groups
        if self.trial.batch != FULL_BATCH or len(labels) <= CHUNK_ROWS:
            self.step_with(self._model, inputs, labels, groups, batch.place)
            return

        def gradient() -> Tensor:
            self.optimiser.zero_grad()
            loss, chunk = self._step_loss, CHUNK_ROWS
            return large_batch_backward(
                self._model, loss, inputs, labels, groups=groups, chunk=chunk
            )

        self._kind.step(self.optimiser, gradient, batch.place)

    def step_with(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        groups: Tensor | None = None,
        place: int = 0,
    ) -> None:
        """Do one step on prepared inputs; `place` is that of the batch in the epoch.

        `model` is the model or another form of it with the same parameters, such as a compiled one.
        """

        def gradient() -> Tensor:
            self.optimiser.zero_grad()
            loss: Tensor = self._step_loss(model(inputs), labels, groups)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        self._kind.step(self.optimiser, gradient, place)

    def start_epoch_end(self, epoch: int) -> None:
        """Measure subtrain and validation and copy the weights, without waiting for the device.

        The whole subtrain part is measured after the last epoch, a sample of it after the others.
        """
        self.end_steps(epoch)
        whole = epoch == self.settings.epochs
        numbers = self._measuring.numbers(epoch, whole=whole)
        device = self.subtrain.labels.device
        placed = {name: None if x is None else x.to(device) for name, x in numbers.items()}
        self.send(epoch, self._measuring.scores(self._model, placed, whole=whole), whole=whole)
        self.copy_weights()

    def end_steps(self, epoch: int) -> None:
        """Let the optimiser end the epoch, and note how many batches had one class so far."""
        if epoch:
            self._kind.end_epoch(self.optimiser, self.settings)
        self._n_one_class = self.batches.n_one_class

    def send(self, epoch: int, scores: dict[str, Tensor], *, whole: bool) -> None:
        """Compute the losses of the scores and send both to the CPU, without waiting."""
        self._measured = self._measuring.start(epoch, scores, self._objective, whole=whole)

    def copy_weights(self) -> None:
        """Copy the weights on the device, for `finish_epoch`."""
        live = self._model.state_dict()
        for name, copy in self._state.items():
            copy.copy_(live[name])

    def finish_epoch(self) -> dict[str, float] | None:
        """Wait for the measurements; return the epoch's row of the history, None if it diverged.

        The copied weights are kept if the validation AUC is greater than ever before. The untrained
        network, epoch 0, is measured but not kept.
        """
        row = self._measuring.finish(self._measured)
        epoch = self._measured.epoch
        if row is None:
            self.diverged_at = epoch
            return None
        best = -1.0
        if self._best_epoch >= 0:
            best = self._history["validation_auc"][self._best_epoch]
        for name, value in row.items():
            self._history.setdefault(name, []).append(value)
        if epoch > 0 and row["validation_auc"] > best:
            self._best_epoch = epoch
            self._best_state = {name: w.clone() for name, w in self._state.items()}
        return row

    def result(self, seconds: float) -> tuple[Record, State]:
        """Score the test part by the model of the best epoch; return the record and its weights."""
        best, test_auc = self._best_epoch, float("nan")
        roc: Roc = ([], [])
        if best >= 0:
            self._model.load_state_dict(self._best_state)
            if (found := self._measuring.test_result(self._model, best)) is None:
                self.diverged_at, best = best, -1
            else:
                test_auc, roc = found
        validation_auc = self._history["validation_auc"][best] if best >= 0 else float("nan")
        rate, reason = self.trial.rate, ""
        if self.diverged_at is not None:
            reason = (
                f"scores or losses were no longer finite after epoch {self.diverged_at}; take a "
                f"rate smaller than {rate:g}, for example {rate / 10:g}"
            )
        record = Record(
            self.trial,
            state="diverged" if reason else "finished",
            history=self._history,
            best_epoch=best,
            validation_auc=validation_auc,
            test_auc=test_auc,
            roc=roc,
            diverged_at=self.diverged_at,
            reason=reason,
            seconds=seconds,
            device=str(self.subtrain.labels.device),
            n_one_class=self._n_one_class,
        )
        return record, {name: w.cpu() for name, w in self._best_state.items()}


def train(
    trial: Trial,
    settings: Settings,
    split: Split,
    *,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> tuple[Record, State]:
    """Train one model.

    Weights, the order of the rows and the augmentation follow from the trial's seed alone. Trials
    that differ in loss, rate or batch size differ in nothing else.

    Parameters
    ----------
    trial : Trial
    settings : Settings
    split : Split
        Moved to the device if it is not there; ``split.to(device)`` once for many trials is faster.
    device : str or torch.device
    on_epoch : callable, optional
        Called with each epoch's row of the history. An exception that it raises ends the training.

    Returns
    -------
    Record
        State "diverged" if scores or losses stopped being finite; it holds the epochs before that.
    dict
        The model's state at the best epoch, on the CPU.

    Raises
    ------
    UserError
        If model, loss, optimiser and batch size do not go together.
    """
    start = time.perf_counter()
    device = torch.device(device)
    with repeatable(trial.cell.seed, device):
        run = TrialRun(trial, settings, split, device)
        for epoch in range(settings.epochs + 1):
            if epoch:
                run.begin_epoch(epoch)
                for batch in run.batches.epoch(epoch):
                    run.step(batch)
            run.start_epoch_end(epoch)
            row = run.finish_epoch()
            if row is None:
                break
            if on_epoch is not None:
                on_epoch(row)
        return run.result(time.perf_counter() - start)


@contextmanager
def repeatable(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators for dropout, and use deterministic cuDNN algorithms."""
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with isolated(derived(seed, "dropout"), device), flags:
        yield

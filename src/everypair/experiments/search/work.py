"""Run trials in a worker process: load the data, split, train, save the model or its scores.

A process loads the data once, and keeps the splits that it used last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Record, Settings, TableFile, Trial
from everypair.experiments.search._workers import OnEpoch, Work, cores
from everypair.experiments.training import winner

if TYPE_CHECKING:
    from everypair.experiments.contenders.parts import Parts
    from everypair.experiments.data.sources import Dataset
    from everypair.experiments.data.splits import Split
    from everypair.experiments.training.trial import State

GRAPH_TRIALS = 16
"""Trials in one CUDA graph. On an H200, more than about eight do not train more trials an hour."""

_KEPT_SPLITS = 8  # the seeds of trials in one graph have splits of their own


@dataclass(frozen=True)
class Training:
    """Train one trial after another on a device; see `_workers.Work`."""

    settings: Settings
    device: str = "cpu"
    folder: str | None = None  # in which the best model of each trial is saved
    width: int = 1

    def group_key(self, trial: Trial) -> object:
        """Return the trial itself: each is run alone."""
        return trial

    def __call__(self, trials: Sequence[Trial], on_epoch: OnEpoch) -> Iterator[Record]:
        """Train each trial; its best model is in the folder before its record is yielded."""
        from everypair.experiments.training.trial import train

        for trial in trials:
            split = self.split(trial)
            record, state = train(
                trial, self.settings, split, device=self.device, on_epoch=on_epoch
            )
            self.keep(record, state, split)
            yield record

    def split(self, trial: Trial) -> Split:
        """Return the data of a trial, on the device."""
        cell = trial.cell
        return _split(self.settings, cell.data, cell.imratio, cell.seed, self.device)

    def keep(self, record: Record, state: State, split: Split) -> None:
        """Save the best model of a trial, if there is one and a folder was given."""
        from everypair.experiments.training import saved

        if self.folder is None or record.best_epoch < 0:
            return
        path = winner.path_of(self.folder, record.trial)
        try:
            saved.save(
                path,
                model_state=state,
                settings=self.settings,
                trial=record.trial,
                input_shape=tuple(split.subtrain.inputs.shape[1:]),
                encoder=split.encoder,
                validation_auc=record.validation_auc,
            )
        except OSError as error:  # the other trials would fail in the same way
            raise UserError(
                f"{path} could not be written: {error.strerror or error}. Correct that, or name "
                "another folder with --out; the same command continues, what is finished is kept."
            ) from error


@dataclass(frozen=True)
class SideBySide(Training):
    """Train trials at once as branches of one CUDA graph.

    They differ in seed and rate, and with `mixed` also in loss and optimiser. Mixed groups fill a
    GPU better if there are few trials of each loss, but an error of one loss ends the whole group.
    """

    width: int = GRAPH_TRIALS
    compiled: bool = False  # whether torch.compile fuses the kernels of the networks
    mixed: bool = False

    def group_key(self, trial: Trial) -> object:
        """Return what the trials of one graph have in common."""
        from everypair.experiments.training.side_by_side import can_share_a_graph

        cell = trial.cell
        if not can_share_a_graph(trial):
            return trial
        shared = cell.data, cell.imratio, trial.batch
        return shared if self.mixed else (*shared, cell.loss, cell.optimiser)

    def __call__(self, trials: Sequence[Trial], on_epoch: OnEpoch) -> Iterator[Record]:
        """Train the trials; all records come together."""
        from everypair.experiments.training.side_by_side import train_together

        if len(trials) == 1:
            yield from super().__call__(trials, on_epoch)
            return
        splits = [self.split(trial) for trial in trials]
        found = train_together(
            trials,
            self.settings,
            splits,
            device=self.device,
            on_epoch=lambda trial, row: on_epoch(row),
            compiled=self.compiled,
        )
        for (record, state), split in zip(found, splits, strict=True):
            self.keep(record, state, split)
            yield record


@dataclass(frozen=True)
class CrossValidation:
    """Run trials of models for tables; see `everypair.experiments.contenders`."""

    settings: Settings
    folder: str  # for the held-out scores of each trial
    width: int = 1

    def group_key(self, trial: Trial) -> object:
        """Return the trial itself: each is run alone."""
        return trial

    def __call__(self, trials: Sequence[Trial], on_epoch: OnEpoch) -> Iterator[Record]:
        """Run each trial; its held-out scores are in the folder before its record is yielded."""
        from everypair.experiments.contenders import cross_validation, ranking

        for trial in trials:
            parts = _table_parts(self.settings, trial.cell.data, trial.cell.seed)
            record, scores = cross_validation.run(trial, parts)
            ranking.save_scores(self.folder, trial, scores)
            yield record


@lru_cache(maxsize=1)
def _table_parts(settings: Settings, data: str, seed: int) -> Parts:
    from everypair.experiments.contenders.parts import parts_of

    return parts_of(_dataset(data, settings.table, settings.fingerprint), seed)


@lru_cache(maxsize=1)
def _dataset(name: str, table: TableFile | None, fingerprint: str) -> Dataset:
    """Load the data, and refuse them if they are not those that the experiment began with."""
    from everypair.experiments.data import sources

    dataset = sources.load(name, table=table)
    if fingerprint and dataset.fingerprint != fingerprint:
        raise UserError(
            f"{table.path if table else name} has changed since the experiment began on it, and "
            "trials on different rows cannot be compared. What is finished is kept. Restore the "
            "data and run the same command again, or name another folder with --out to begin anew."
        )
    return dataset


@lru_cache(maxsize=_KEPT_SPLITS)
def _split(settings: Settings, data: str, imratio: float, seed: int, device: str) -> Split:
    from everypair.experiments.data import splits

    dataset = _dataset(data, settings.table, settings.fingerprint)
    split = splits.split(dataset, imratio=imratio, seed=seed, protocol=settings.protocol)
    return split.to(device)


def work_for(
    settings: Settings,
    device: str,
    folder: str | None,
    *,
    families: bool = False,
    together: int = GRAPH_TRIALS,
    mixed: bool = False,
    compiled: bool = False,
) -> tuple[Work, int]:
    """Return the work that suits a device, and the number of processes to run it.

    `families` asks for models for tables instead of networks. At most `together` trials are in one
    CUDA graph; see `SideBySide` for `mixed` and `compiled`. On a CPU each trial is run alone.
    """
    if families:
        return CrossValidation(settings, folder or "."), cores()
    if device.startswith("cuda"):
        return SideBySide(settings, device, folder, together, compiled, mixed), 1
    return Training(settings, device, folder), cores() if device == "cpu" else 1

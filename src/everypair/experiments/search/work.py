"""What a worker process does with a trial: load, split, train, save.

Data are loaded once a process, and a split is kept while trials use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Record, Settings, TableFile, Trial
from everypair.experiments.search._workers import Work, cores
from everypair.experiments.training import winner

if TYPE_CHECKING:
    from everypair.experiments.data.sources import Dataset
    from everypair.experiments.data.splits import Split
    from everypair.experiments.training.trial import State

__all__ = ["SideBySide", "Training", "work_for"]

TOGETHER = 16
"""Trials in one CUDA graph: from about eight on, an H200 trains no more of them an hour."""

_SPLITS = 8  # kept at once: those of the seeds that are trained together


@dataclass(frozen=True)
class Training:
    """Train one trial after another on a device; see `_workers.Work`.

    Parameters
    ----------
    settings : Settings
    device : str
    folder : str, optional
        Where each trial's best model is saved.
    """

    settings: Settings
    device: str = "cpu"
    folder: str | None = None
    width: int = 1

    def together(self, trial: Trial) -> object:
        """Return the trial: each is run alone."""
        return trial

    def __call__(
        self, trials: Sequence[Trial], on_epoch: Callable[[dict[str, float]], None]
    ) -> Iterator[Record]:
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
        """Save a trial's best model, if it has one and there is a folder for it."""
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
        except OSError as error:  # which awaits the other trials too
            raise UserError(
                f"{path} could not be written: {error.strerror or error}. Mend that, or name "
                "another folder with --out; the same command continues, what is finished is kept."
            ) from error


@dataclass(frozen=True)
class SideBySide(Training):
    """Train trials that differ in seed and rate only at once, as branches of one CUDA graph."""

    width: int = TOGETHER

    def together(self, trial: Trial) -> object:
        """Return what trials of one graph share."""
        from everypair.experiments.training.side_by_side import can_share_a_graph

        cell = trial.cell
        if not can_share_a_graph(trial):
            return trial
        return cell.data, cell.imratio, cell.loss, cell.optimiser, trial.batch

    def __call__(
        self, trials: Sequence[Trial], on_epoch: Callable[[dict[str, float]], None]
    ) -> Iterator[Record]:
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
        )
        for (record, state), split in zip(found, splits, strict=True):
            self.keep(record, state, split)
            yield record


@lru_cache(maxsize=1)
def _dataset(name: str, table: TableFile | None) -> Dataset:
    from everypair.experiments.data import sources

    return sources.load(name, table=table)


@lru_cache(maxsize=_SPLITS)
def _split(settings: Settings, data: str, imratio: float, seed: int, device: str) -> Split:
    from everypair.experiments.data import splits

    dataset = _dataset(data, settings.table)
    split = splits.split(dataset, imratio=imratio, seed=seed, protocol=settings.protocol)
    return split.to(device)


def work_for(settings: Settings, device: str, folder: str | None) -> tuple[Work, int]:
    """Return what suits a device, and on how many processes."""
    if device.startswith("cuda"):
        return SideBySide(settings, device, folder), 1
    return Training(settings, device, folder), cores() if device == "cpu" else 1

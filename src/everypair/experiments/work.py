"""What a worker process does with a trial: load, split, train, save.

Data are loaded once a process, and a split is kept while trials use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from everypair.experiments import winner
from everypair.experiments._workers import Work, cores
from everypair.experiments.plan import Record, Settings, TableFile, Trial

if TYPE_CHECKING:
    from everypair.experiments.sources import Dataset
    from everypair.experiments.splits import Split

__all__ = ["Training", "work_for"]

_SPLITS = 2  # at once: neighbours in the grid share theirs


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
        from everypair.experiments import saved, training

        for trial in trials:
            cell = trial.cell
            split = _split(self.settings, cell.data, cell.imratio, cell.seed, self.device)
            record, state = training.train(
                trial, self.settings, split, device=self.device, on_epoch=on_epoch
            )
            if self.folder is not None and record.best_epoch >= 0:
                saved.save(
                    winner.path_of(self.folder, trial),
                    model_state=state,
                    settings=self.settings,
                    trial=trial,
                    input_shape=tuple(split.subtrain.inputs.shape[1:]),
                    encoder=split.encoder,
                    validation_auc=record.validation_auc,
                )
            yield record


@lru_cache(maxsize=1)
def _dataset(name: str, table: TableFile | None) -> Dataset:
    from everypair.experiments import sources

    return sources.load(name, table=table)


@lru_cache(maxsize=_SPLITS)
def _split(settings: Settings, data: str, imratio: float, seed: int, device: str) -> Split:
    from everypair.experiments import splits

    dataset = _dataset(data, settings.table)
    split = splits.split(dataset, imratio=imratio, seed=seed, protocol=settings.protocol)
    return split.to(device)


def work_for(settings: Settings, device: str, folder: str | None) -> tuple[Work, int]:
    """Return what suits a device, and on how many processes."""
    return Training(settings, device, folder), cores() if device == "cpu" else 1

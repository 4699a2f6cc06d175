"""Keep the best model of an experiment, and remove the others.

Every trial's model is saved as soon as it is trained. Among trials that differ in the seed only,
the one with the greatest validation AUC is kept. At the end the configuration with the greatest
mean validation AUC over the seeds wins, and its model becomes ``model.pt``. Validation AUCs of
different imratios are measured on different rows, so only one imratio takes part: 0 (the data as
they are) if it was run, else the largest, which has the most positives.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from everypair.experiments.plan import Record, Trial

FILE_NAME = "model.pt"
_FOLDER = "models"


def path_of(folder: str | Path, trial: Trial) -> Path:
    """Return the file in which a trial's model is saved.

    >>> from everypair.experiments.plan import Cell
    >>> path_of("runs", Trial(Cell("digits", 0.1, "square", "sgd", 0), batch=50, rate=0.5)).name
    'digits-imratio0.1-square-sgd-batch50-rate0.5-seed0.pt'
    """
    cell = trial.cell
    name = (
        f"{cell.data}-imratio{cell.imratio:g}-{cell.loss}-{cell.optimiser}"
        f"-batch{trial.batch}-rate{trial.rate!r}-seed{cell.seed}.pt"
    )
    return Path(folder) / _FOLDER / name


class BestSeeds:
    """Removes models while the experiment runs, so that each configuration keeps one seed.

    `folder` is that of the experiment, and `records` are the trials that are finished already.
    """

    def __init__(self, folder: str | Path, records: Iterable[Record] = ()) -> None:
        self._folder = folder
        self._best: dict[Trial, Record] = {}  # by configuration
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add a finished trial, and remove the worse of two models of its configuration."""
        best = self._best.setdefault(_configuration(record), record)
        if best.trial == record.trial:
            return
        better, worse = _best_first([best, record])
        self._best[_configuration(record)] = better
        path_of(self._folder, worse.trial).unlink(missing_ok=True)


def choose(records: Iterable[Record]) -> list[Record]:
    """Return the trials of the winning configuration, the best seed first.

    Only configurations with the largest number of seeds take part, all at one imratio.
    """
    able = [record for record in records if math.isfinite(record.validation_auc)]
    shares = {record.trial.cell.imratio for record in able}
    imratio = 0.0 if 0.0 in shares else max(shares, default=0.0)
    runs: dict[Trial, list[Record]] = defaultdict(list)
    for record in able:
        if record.trial.cell.imratio == imratio:
            runs[_configuration(record)].append(record)
    if not runs:
        return []
    most = max(map(len, runs.values()))
    complete = [same for same in runs.values() if len(same) == most]
    won = max(complete, key=lambda same: sum(record.validation_auc for record in same) / most)
    return _best_first(won)


def keep_winner(folder: str | Path, records: Iterable[Record]) -> Path | None:
    """Move the winner to ``model.pt`` and remove the others.

    Returns None if the winner is not in this folder: in an experiment on several machines each
    model stays on the machine that trained it.
    """
    from everypair.experiments.training import saved

    folder = Path(folder)
    target = folder / FILE_NAME
    won = choose(records)
    here = [path_of(folder, record.trial) for record in won]
    found = next((path for path in here if path.is_file()), None)
    if found is not None:
        os.replace(found, target)
    elif target.is_file() and saved.load(target).trial not in [record.trial for record in won]:
        target.unlink()
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)
    return target if target.is_file() else None


def _configuration(record: Record) -> Trial:
    """Return the trial with the seed -1: equal for trials that differ in the seed only."""
    return replace(record.trial, cell=replace(record.trial.cell, seed=-1))


def _best_first(records: list[Record]) -> list[Record]:
    """Sort by validation AUC, the greatest first and NaN last."""
    return sorted(records, key=lambda r: (math.isnan(r.validation_auc), -r.validation_auc))

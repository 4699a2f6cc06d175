"""Made-up work for worker processes, without data and torch.

The name of a trial's loss selects its behaviour: see `BEHAVIOUR`. Every run of a trial is written
to a log file, so that tests can count the runs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from everypair.experiments.errors import UserError
from everypair.experiments.plan import Grid, Record, Settings

SETTINGS = Settings()


def grid(*losses, seeds=2, rates=(0.1, 1.0), batches=(10, 50)):
    return Grid(
        data="digits",
        imratios=(0.1,),
        losses=losses,
        batches=batches,
        seeds=tuple(range(seeds)),
        rates=dict.fromkeys(losses, rates),
    )


@dataclass(frozen=True)
class StandIn:
    log: str
    seconds: float = 0.0
    width: int = 1

    def together(self, trial):
        return trial.cell.loss, trial.batch

    def __call__(self, trials, on_epoch):
        for trial in trials:
            with open(self.log, "a") as log:
                log.write(f"{len(trials)} {trial!r}\n")
        time.sleep(self.seconds)
        for trial in trials:
            on_epoch({"epoch": 1.0, "validation_auc": 0.5})
            BEHAVIOUR.get(trial.cell.loss, lambda trial: None)(trial)
            value = 0.5 + 0.1 * trial.rate + trial.batch / 1000 + trial.cell.seed / 100
            yield Record(
                trial,
                "finished",
                {"epoch": [0.0]},
                0,
                validation_auc=value,
                test_auc=value,
                roc=([], []),
            )


def _raise(error):
    raise error


BEHAVIOUR = {
    "raises": lambda trial: _raise(KeyError("no such pixel")),
    "dies": lambda trial: os.kill(os.getpid(), signal.SIGKILL),
    "mistake": lambda trial: _raise(UserError("the file is gone")),
    "full": lambda trial: _raise(OSError(28, "No space left on device")),
    "lasts": lambda trial: time.sleep(60),
}


def runs(log):
    """Return which trials ran, one line for each time."""
    return [line.partition(" ")[2] for line in Path(log).read_text().splitlines()]


def main():
    """Run a grid in a separate process: stand_in.py FOLDER LOSS,... SECONDS."""
    from everypair.experiments.search import runner, store

    folder, losses, seconds = sys.argv[1:]
    with store.open(folder, create=True) as opened:
        work = StandIn(f"{folder}.log", float(seconds))
        runner.run(grid(*losses.split(",")), SETTINGS, opened, work=work, workers=2)


if __name__ == "__main__":
    main()

"""Stand-ins for work that need neither data nor torch, and processes that use them.

The name of a trial's loss says what the trial does. Each run of a trial is written to a log, so
that tests can see which trials ran, and how often.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
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
    mixed: bool = False

    def group_key(self, trial):
        return (None if self.mixed else trial.cell.loss), trial.batch

    def __call__(self, trials, on_epoch):
        for trial in trials:
            append(self.log, f"{len(trials)} {trial!r}")
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


def append(log, line):
    with open(log, "a") as file:
        file.write(f"{line}\n")


def runs(log):
    """Return which trials ran, one line for each time."""
    return [line.partition(" ")[2] for line in Path(log).read_text().splitlines()]


def process(target, *arguments):
    """Start a process that has the store imported already: kill -9 tests need many of them."""
    context = multiprocessing.get_context("forkserver")
    search = "everypair.experiments.search"
    context.set_forkserver_preload([__name__, f"{search}.runner", f"{search}.store"])
    started = context.Process(target=target, args=arguments)
    started.start()
    return started


def run_waiting_trials(opened, log):
    """Claim, run and finish trials until none waits; return them."""
    taken = []
    while claim := opened.claim():
        [record] = StandIn(log)([claim.trial], lambda row: None)
        assert opened.finish(claim, record)
        taken.append(claim.trial)
    return taken


def claim_and_die(where, grid, host):
    """Claim a trial on a machine of a given name, then be killed."""
    from everypair.experiments.search import store

    if host:
        socket.gethostname = lambda: host
    opened = store.open(where, create=True)
    opened.prepare(grid, SETTINGS)
    assert opened.claim() is not None
    os.kill(os.getpid(), signal.SIGKILL)


def run_study(where, grid, log, kept, seconds, workers=2):
    """Run a grid, and write each record that the store has accepted to a file.

    The workers are forked, which takes milliseconds: this process has no other threads.
    """
    from everypair.experiments.search import _workers, runner, store

    _workers.multiprocessing = multiprocessing.get_context("fork")
    _workers.multiprocessing.get_context = lambda _: _workers.multiprocessing

    def on_event(event):
        if event.record is not None:
            append(kept, repr(event.record.trial))

    with store.open(where, create=True) as opened:
        work = StandIn(log, seconds)
        runner.run(grid, SETTINGS, opened, work=work, workers=workers, on_event=on_event)


def main():
    """Run a grid in a separate process: stand_in.py FOLDER LOSS,... SECONDS."""
    from everypair.experiments.search import runner, store

    folder, losses, seconds = sys.argv[1:]
    with store.open(folder, create=True) as opened:
        work = StandIn(f"{folder}.log", float(seconds))
        runner.run(grid(*losses.split(",")), SETTINGS, opened, work=work, workers=2)


if __name__ == "__main__":
    main()

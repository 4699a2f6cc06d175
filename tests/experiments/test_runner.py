"""A grid runs to its end, once, whatever happens to the processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everypair.experiments import runner, store
from everypair.experiments._owners import _began
from everypair.experiments.errors import UserError
from tests.experiments import stand_in

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def workers_find_the_tests(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def run(tmp_path):
    events = []

    def run(*losses, width=1, workers=2, **knobs):
        grid = stand_in.grid(*losses, **knobs)
        work = stand_in.StandIn(str(tmp_path / "log"), width=width)
        with store.open(str(tmp_path), create=True) as opened:
            try:
                runner.run(
                    grid,
                    stand_in.SETTINGS,
                    opened,
                    work=work,
                    workers=workers,
                    on_event=events.append,
                )
            finally:
                run.counts = opened.counts()
            return opened.records()

    run.events, run.grid, run.log = events, stand_in.grid, tmp_path / "log"
    return run


def test_runs_every_trial_once_in_two_processes(run):
    records = run("square")
    grid = run.grid("square")
    assert [record.trial for record in records] == grid.trials()
    assert sorted(stand_in.runs(run.log)) == sorted(map(repr, grid.trials()))
    assert [event.kind for event in run.events if event.kind != "epoch"] == (
        ["begin"] + ["record"] * 8 + ["end"]
    )
    assert run.events[-1].counts == store.Counts(0, 0, 8)
    before = len(run.events)
    assert run("square") == records
    assert [event.kind for event in run.events[before:]] == ["begin", "end"]
    assert len(stand_in.runs(run.log)) == 8


def test_a_trial_that_raises_has_failed_and_the_grid_goes_on(run):
    records = run("raises", "square", seeds=1, batches=(10,))
    assert [record.state for record in records] == ["failed"] * 2 + ["finished"] * 2
    assert "KeyError: 'no such pixel' (stand_in.py:" in records[0].reason


def test_a_process_that_dies_twice_over_a_trial_fails_it(run):
    records = run("dies", "square", seeds=1, batches=(10,), rates=(0.1,))
    assert [record.state for record in records] == ["failed", "finished"]
    assert "SIGKILL" in records[0].reason
    assert len(stand_in.runs(run.log)) == 3
    assert "died" in [event.kind for event in run.events]


@pytest.mark.parametrize(
    ("loss", "said"), [("mistake", "the file is gone"), ("full", "the disk is full")]
)
def test_what_the_user_has_to_mend_ends_the_run_and_nothing_is_lost(run, loss, said):
    with pytest.raises(UserError, match=said):
        run("square", loss, seeds=1, batches=(10,), workers=1)
    assert run.counts == store.Counts(waiting=2, running=0, finished=2)


def test_trials_that_go_together_are_run_together(run):
    run("square", "logistic", width=3, workers=1, batches=(10,))
    together = [line.split(" ")[0] for line in run.log.read_text().splitlines()]
    assert sorted(together) == ["1"] * 2 + ["3"] * 6  # of 4 trials for each loss


@pytest.fixture
def start():
    started = []

    def start(folder, losses="square", seconds=0.3):
        command = ["-m", "tests.experiments.stand_in", str(folder), losses, str(seconds)]
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(log, lines):
    until = time.monotonic() + 30
    while not log.exists() or len(log.read_text().splitlines()) < lines:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_killed_in_the_middle_it_continues_where_it_was(start, tmp_path):
    folder, log = tmp_path / "store", tmp_path / "store.log"
    victim = start(folder)
    wait_for(log, 4)  # two are done or nearly so, and two are running
    victim.kill()
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert 1 <= len(read(folder)) < 8
    assert start(folder, seconds=0).communicate()[1] == ""
    trials = stand_in.grid("square").trials()
    uninterrupted = stand_in.StandIn(str(tmp_path / "whole.log"))(trials, lambda row: None)
    assert read(folder) == list(uninterrupted)
    # Only what was running when it was killed ran again.
    assert len(stand_in.runs(log)) <= 8 + 2
    assert len(set(stand_in.runs(log))) == 8


def read(folder):
    with store.open(str(folder)) as opened:
        return opened.records()


def test_workers_end_with_their_parent(start, tmp_path):
    parent = start(tmp_path / "store", "lasts")
    wait_for(tmp_path / "store.log", 2)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    if not children.exists():
        pytest.skip("the system does not list the children of a process")
    workers = [int(pid) for pid in children.read_text().split()]
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 10
    while any(_began(pid) for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_interrupted_it_puts_back_what_is_running(start, tmp_path):
    process = start(tmp_path / "store", "square,lasts", seconds=0)
    wait_for(tmp_path / "store.log", 6)  # the last two of them stay
    process.terminate()
    said = process.communicate(timeout=20)[1]
    assert "KeyboardInterrupt" in said
    with store.open(str(tmp_path / "store")) as opened:
        assert opened.counts() == store.Counts(waiting=12, running=0, finished=4)


def test_two_processes_share_a_store_and_both_see_its_end(start, tmp_path):
    log = tmp_path / "store.log"
    first = start(tmp_path / "store", seconds=0.2)
    second = start(tmp_path / "store", seconds=0.2)
    assert first.communicate()[1] == ""
    assert second.communicate()[1] == ""
    assert sorted(stand_in.runs(log)) == sorted(map(repr, stand_in.grid("square").trials()))
    assert len(read(tmp_path / "store")) == 8

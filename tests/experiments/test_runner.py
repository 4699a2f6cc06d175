"""A grid is run to its end, each trial once, whatever happens to the processes."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from everypair.experiments.commands import _display
from everypair.experiments.commands._display import Display
from everypair.experiments.errors import UserError
from everypair.experiments.plan import Cell, Settings, Trial
from everypair.experiments.search import _workers, runner, store
from everypair.experiments.search._owners import start_time
from everypair.experiments.search.work import SideBySide, Training, work_for
from everypair.experiments.training import saved, winner
from tests.experiments import stand_in

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def workers_find_the_tests(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def run(tmp_path):
    events = []

    def run(*losses, workers=2, work=(), options=(), **knobs):
        grid = stand_in.grid(*losses, **knobs)
        with store.open(str(tmp_path), create=True) as opened:
            try:
                runner.run(
                    grid,
                    stand_in.SETTINGS,
                    opened,
                    work=stand_in.StandIn(str(tmp_path / "log"), **dict(work)),
                    workers=workers,
                    on_event=events.append,
                    **dict(options),
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


def test_a_trial_that_raises_has_failed_and_the_others_run(run):
    records = run("raises", "square", seeds=1, batches=(10,))
    assert [record.state for record in records] == ["failed"] * 2 + ["finished"] * 2
    assert "KeyError: 'no such pixel' (stand_in.py:" in records[0].reason


def test_a_trial_fails_when_its_process_died_twice(run):
    records = run("dies", "square", seeds=1, batches=(10,), rates=(0.1,))
    assert [record.state for record in records] == ["failed", "finished"]
    assert "SIGKILL" in records[0].reason
    assert len(stand_in.runs(run.log)) == 3
    assert "died" in [event.kind for event in run.events]


@pytest.mark.parametrize(
    ("loss", "said"), [("mistake", "the file is gone"), ("full", "the disk is full")]
)
def test_an_error_that_the_user_has_to_correct_ends_the_run_and_loses_nothing(run, loss, said):
    with pytest.raises(UserError, match=said):
        run("square", loss, seeds=1, batches=(10,), workers=1)
    assert run.counts == store.Counts(waiting=2, running=0, finished=2)


def sizes(log):
    """Return for each trial with how many it was run together."""
    return [int(line.split(" ")[0]) for line in log.read_text().splitlines()]


def test_trials_with_the_same_group_key_are_run_together(run):
    run("square", "logistic", work={"width": 3}, workers=1, batches=(10,))
    assert sizes(run.log) == [2] * 8  # of 4 trials for each loss: 2 and 2, not 3 and 1


def test_after_a_mixed_group_failed_each_loss_is_run_alone(run):
    work = {"width": 8, "mixed": True}
    records = run("raises", "square", work=work, workers=1, batches=(10,))
    states = {record.trial.cell.loss: record.state for record in records}
    assert states == {"raises": "failed", "square": "finished"}
    assert sizes(run.log) == [8] * 8 + [4] * 8
    [event] = [event for event in run.events if event.kind == "separated"]
    assert "no such pixel" in event.reason
    assert event.counts == store.Counts(waiting=8, running=0, finished=0)
    shown = Console(file=io.StringIO(), width=200)
    Display(shown)(event)
    assert "Each loss is tried alone" in shown.file.getvalue()


def test_each_batch_size_has_its_own_finalists_if_that_is_wanted(run):
    options = {"finalists": 1}
    records = run("square", options=options, workers=1)
    assert [r.trial.batch for r in records if r.trial.cell.seed == 1] == [50]  # the greatest AUC
    assert {event.n_stages for event in run.events} == {2}
    records = run("square", options=options | {"per_batch": True}, workers=1)
    last = [(r.trial.batch, r.trial.rate) for r in records if r.trial.cell.seed == 1]
    assert sorted(last) == [(10, 1.0), (50, 1.0)]
    assert {event.stage for event in run.events if event.n_stages == 4} == {1, 2, 3, 4}


def test_at_its_deadline_a_run_ends_and_its_trials_wait_again(run):
    begin = time.monotonic()
    with pytest.raises(runner.TimeIsUpError):
        run("lasts", seeds=1, options={"deadline": begin + 3})
    assert time.monotonic() < begin + 30  # a trial that lasts would take 60 seconds
    assert run.counts == store.Counts(waiting=4, running=0, finished=0)
    with pytest.raises(runner.TimeIsUpError):
        run("square", seeds=1, options={"deadline": time.monotonic()})
    assert run.counts == store.Counts(waiting=4, running=0, finished=0)
    assert len(run("square", seeds=1)) == 4


def test_a_worker_answers_until_its_parent_closes_the_pipe(monkeypatch, tmp_path):
    monkeypatch.setattr(_workers, "_exit_with_parent", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    monkeypatch.setattr(_workers, "_EPOCH_SECONDS", 0.0)
    here, there = multiprocessing.Pipe()
    losses = ("square", "raises", "mistake", "full")
    for loss in losses:
        here.send(stand_in.grid(loss, seeds=1, rates=(0.1,), batches=(10,)).trials())
    got = []

    def listen():
        got.extend(here.recv() for _ in range(8))
        here.close()

    answers = threading.Thread(target=listen)
    answers.start()
    _workers._run_worker(there, stand_in.StandIn(str(tmp_path / "log")))
    answers.join()
    assert [message.kind for message in got] == [
        *("epoch", "record", "epoch", "failed"),
        *["epoch", "stop"] * 2,
    ]
    assert "no such pixel" in got[3].content[0]
    assert "disk is full" in got[-1].content


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="POSIX only")
def test_ctrl_c_does_not_reach_a_worker_that_is_starting(tmp_path):
    [trial, *_] = stand_in.grid("square").trials()
    with _workers.WorkerPool(1, stand_in.StandIn(str(tmp_path / "log"))) as pool:
        worker = next(pool.idle())
        os.kill(worker.process.pid, signal.SIGINT)
        worker.start([store.Claim(trial, 0)])
        kinds, until = [], time.monotonic() + 30
        while "record" not in kinds and time.monotonic() < until:
            kinds += [message.kind for _, message in pool.messages(1.0)]
    assert set(kinds) <= {"epoch", "record"}
    assert "record" in kinds


def test_a_worker_that_died_while_it_was_idle_is_reported(tmp_path):
    [trial, *_] = stand_in.grid("square").trials()
    with _workers.WorkerPool(1, stand_in.StandIn(str(tmp_path / "log"))) as pool:
        worker = next(pool.idle())
        worker.process.kill()
        worker.process.join()
        worker.start([store.Claim(trial, 0)])
        [(dead, message)] = pool.messages(10.0)
        assert (dead, message.kind) == (worker, "died")
        assert list(dead.claims) == [trial]
        assert pool.workers == []


def test_training_saves_the_model_before_it_yields_the_record(tmp_path):
    grid = stand_in.grid("logistic", seeds=1, rates=(0.5,), batches=(100,))
    settings = Settings(model="linear", epochs=1)
    training, processes = work_for(settings, "cpu", str(tmp_path))
    assert processes == _workers.cores()
    assert training.group_key(grid.trials()[0]) == grid.trials()[0]
    rows = []
    [record] = training(grid.trials(), rows.append)
    assert [row["epoch"] for row in rows] == [0, 1]
    saved_model = saved.load(winner.path_of(tmp_path, record.trial))
    assert saved_model.validation_auc == record.validation_auc
    again = Training(settings)
    [same] = again(grid.trials(), rows.append)
    assert replace(same, seconds=0) == replace(record, seconds=0)


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
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for(log, lines):
    until = time.monotonic() + 30
    while not log.exists() or len(log.read_text().splitlines()) < lines:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_killed_run_continues_where_it_was(start, tmp_path):
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
    while any(start_time(pid) for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_after_sigterm_the_running_trials_wait_again(run):
    def terminate():
        wait_for(run.log, 6)  # four are done, and the last two stay
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
    with pytest.raises(KeyboardInterrupt):
        run("square", "lasts", seeds=1)
    assert run.counts == store.Counts(waiting=4, running=0, finished=4)


def test_a_run_waits_for_the_trials_of_another_process(run, tmp_path):
    grid = run.grid("square", seeds=1)
    with store.open(str(tmp_path), create=True) as elsewhere:
        elsewhere.prepare(grid, stand_in.SETTINGS)
        claim = elsewhere.claim()
        [left] = stand_in.StandIn(str(run.log))([claim.trial], lambda row: None)

        def kinds():
            return [event.kind for event in run.events]

        def finish():
            until = time.monotonic() + 60
            while "waiting" not in kinds() and time.monotonic() < until:
                time.sleep(0.05)
            elsewhere.finish(claim, left)

        threading.Thread(target=finish).start()
        assert len(run("square", seeds=1)) == 4
    assert "waiting" in kinds()
    assert sorted(stand_in.runs(run.log)) == sorted(map(repr, grid.trials()))


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_shows_the_progress(run, terminal):
    shown = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    records = run("raises", "square", seeds=1, batches=(10,), rates=(0.1, 1.0))
    with Display(shown, records[:1]) as display:
        for event in run.events:
            display(event)
        display(replace(run.events[-1], kind="waiting", counts=store.Counts(0, 3, 1)))
        if terminal:
            shown.print(display._picture())
    text = shown.file.getvalue()
    assert "square" in text
    assert "0.6100" in text
    assert "3 failed" in text
    assert ("that other processes run" if terminal else "4 of 4 trials (3 failed).") in text


def test_the_display_names_the_imratio_only_if_rows_were_removed():
    texts = []
    for imratio in (0.1, 0.0):
        trial = Trial(Cell("table", imratio, "logistic", "sgd", 0), 100, 0.01)
        row = {"epoch": 3.0, "validation_auc": 0.75}
        texts.append(Display(Console(), epochs=5)._epoch_text((trial,), row))
    assert texts[0] == "logistic, imratio 0.1: epoch 3 of 5, validation AUC 0.7500"
    assert texts[1] == "logistic: epoch 3 of 5, validation AUC 0.7500"


def test_the_display_counts_the_epochs_of_trials_that_are_trained_together(monkeypatch):
    monkeypatch.setattr(_display, "_LINE_SECONDS", 0.0)
    lines = Console(file=io.StringIO(), width=200)
    bar = Console(file=io.StringIO(), force_terminal=True)
    settings = Settings(model="linear", epochs=2)
    cells = [Cell("digits", 0.1, "squared_hinge", "sgd", seed) for seed in (0, 1)]
    trials = tuple(Trial(cell, 100, 0.01) for cell in cells)
    counts, done = store.Counts(waiting=0, running=2, finished=0), []
    with Display(lines, epochs=2) as printed, Display(bar, epochs=2) as drawn:

        def on_epoch(row):
            event = runner.Event("epoch", counts, row=row, trials=trials)
            printed(event)
            drawn(event)
            done.append(drawn._bar.tasks[0].completed)

        for i, record in enumerate(SideBySide(settings)(trials, on_epoch)):
            counts = store.Counts(waiting=0, running=1 - i, finished=1 + i)
            drawn(runner.Event("record", counts, record, trials=(record.trial,)))
        assert drawn._bar.tasks[0].completed == 2  # no epoch is counted twice
    assert done == [0, 0, 1, 1, 2, 2]  # one event for each trial and epoch
    assert "0 of 2 trials. squared hinge, imratio 0.1, 2 trials together: epoch 1 of 2, valid" in (
        lines.file.getvalue()
    )


def test_the_display_starts_without_a_best_trial():
    assert Display(Console(file=io.StringIO()))._bests() == "Best validation AUC: none yet"

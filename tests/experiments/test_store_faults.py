"""A store loses no trial and keeps no result twice, whatever happens to its processes."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from everypair.experiments.errors import UserError
from everypair.experiments.search import _database, store
from tests.experiments import stand_in

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs kill -9 and fork")

GRID = stand_in.grid("square")


def test_killed_24_times_a_study_runs_every_trial_and_keeps_each_once(tmp_path):
    where, log, kept = (str(tmp_path / name) for name in ("store", "log", "kept"))
    grid = stand_in.grid("square", rates=tuple(k / 100 for k in range(1, 25)))
    n = len(grid.trials())
    moments = random.Random(0)
    for kill in range(24):
        victim = stand_in.process(stand_in.run_study, where, grid, log, kept, 0.02)
        more = kill % 3  # records to wait for; without any, it is killed while it starts
        wait_for_lines(kept, count_lines(kept) + more)
        time.sleep(moments.uniform(0.0, 0.02 if more else 0.2))
        victim.kill()
        victim.join()
        assert victim.exitcode == -signal.SIGKILL, "the study was over before it was killed"
    last = stand_in.process(stand_in.run_study, where, grid, log, kept, 0.0)
    last.join()
    assert last.exitcode == 0
    with store.open(where) as opened:
        assert opened.counts() == store.Counts(waiting=0, running=0, finished=n)
        records = opened.records()
    whole = stand_in.StandIn(str(tmp_path / "whole"))(grid.trials(), lambda row: None)
    assert records == list(whole)
    accepted = (tmp_path / "kept").read_text().splitlines()
    assert len(set(accepted)) == len(accepted)
    assert len(stand_in.runs(log)) <= n + 24 * 2, "only what was running may run again"


def count_lines(path):
    return len(Path(path).read_text().splitlines()) if os.path.exists(path) else 0


def wait_for_lines(path, n):
    until = time.monotonic() + 30
    while count_lines(path) < n:
        assert time.monotonic() < until
        time.sleep(0.005)


def killed(where, host=None):
    victim = stand_in.process(stand_in.claim_and_die, where, GRID, host)
    victim.join()
    assert victim.exitcode == -signal.SIGKILL


def test_the_trial_of_a_killed_process_waits_again_at_once(tmp_path):
    killed(str(tmp_path))
    with store.open(str(tmp_path), create=True) as opened:
        assert opened.counts() == store.Counts(7, 1, 0)
        opened.prepare(GRID, stand_in.SETTINGS)
        assert opened.counts() == store.Counts(8, 0, 0)


def test_the_trial_of_another_machine_waits_again_when_its_heartbeats_end(tmp_path, monkeypatch):
    killed(str(tmp_path), host="elsewhere")
    with store.open(str(tmp_path), create=True) as opened:
        opened.prepare(GRID, stand_in.SETTINGS)
        assert opened.counts() == store.Counts(7, 1, 0), "it may still be running"
        monkeypatch.setattr(_database, "GRACE_SECONDS", -1)
        assert opened.requeue_dead_trials() == 1
        assert opened.counts() == store.Counts(8, 0, 0)


def test_a_heartbeat_keeps_a_trial_and_a_late_record_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_database, "GRACE_SECONDS", 1)
    opened = [store.open(str(tmp_path), create=True) for _ in range(2)]
    with opened[0] as alive, opened[1] as silent:
        claims = []
        for each in opened:
            each.prepare(GRID, stand_in.SETTINGS)
            claims.append(each.claim())
        time.sleep(2.2)
        alive.beat()
        assert alive.requeue_dead_trials() == 1
        work = stand_in.StandIn(str(tmp_path / "log"))
        records = list(work([claim.trial for claim in claims], lambda row: None))
        assert not silent.finish(claims[1], records[1]), "another process may be running it"
        assert alive.finish(claims[0], records[0])
        assert alive.records() == records[:1]
        assert alive.claim().trial == claims[1].trial


def test_of_several_that_start_at_once_each_adds_and_claims_other_trials(tmp_path):
    def run_all(_):
        with store.open(str(tmp_path), create=True) as opened:
            opened.prepare(GRID, stand_in.SETTINGS)
            return stand_in.run_waiting_trials(opened, str(tmp_path / "log"))

    with ThreadPoolExecutor(4) as pool:
        taken = [trial for trials in pool.map(run_all, range(4)) for trial in trials]
    assert sorted(taken) == sorted(GRID.trials())
    with store.open(str(tmp_path)) as opened:
        assert opened.counts() == store.Counts(0, 0, 8)


def test_interrupted_while_it_prepares_a_store_is_unchanged(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with store.open(str(tmp_path), create=True) as opened:
        monkeypatch.setattr("everypair.experiments.search._layout.check_settings", interrupt)
        with pytest.raises(KeyboardInterrupt):
            opened.prepare(GRID, stand_in.SETTINGS)
        monkeypatch.undo()
        assert opened.counts() == store.Counts(0, 0, 0)
        opened.prepare(GRID, replace(stand_in.SETTINGS, epochs=3))
        assert opened.counts() == store.Counts(8, 0, 0)


@pytest.fixture
def on_connect():
    """Return a function that lets every new connection run a statement, until the test ends."""
    listeners = []

    def add(statement):
        def listener(connection, _):
            connection.execute(statement)

        sa.event.listen(sa.Engine, "connect", listener)
        listeners.append(listener)

    yield add
    for listener in listeners:
        sa.event.remove(sa.Engine, "connect", listener)


def test_when_the_disk_is_full_the_message_says_so_and_nothing_is_lost(tmp_path, on_connect):
    with store.open(str(tmp_path), create=True) as opened:
        opened.prepare(GRID, stand_in.SETTINGS)
        claim = opened.claim()
        [record] = stand_in.StandIn(str(tmp_path / "log"))([claim.trial], lambda row: None)
        opened.finish(claim, record)
    on_connect("pragma max_page_count = 1")  # as many as there are
    with store.open(str(tmp_path), create=True) as opened:
        opened.prepare(GRID, stand_in.SETTINGS)
        claim = opened.claim()
        with pytest.raises(UserError, match=r"The disk is full.*what is finished is kept"):
            opened.finish(claim, replace(record, trial=claim.trial, reason="x" * 10**6))
    with store.open(str(tmp_path)) as opened:
        assert opened.counts() == store.Counts(7, 0, 1)
        assert opened.records() == [record]


def test_a_store_that_cannot_be_written_to_says_so(tmp_path, on_connect):
    with store.open(str(tmp_path), create=True) as opened:
        opened.prepare(GRID, stand_in.SETTINGS)
    on_connect("pragma query_only = on")  # a chmod would not stop root
    with pytest.raises(UserError, match=r"cannot be written to\. Name another folder"):
        store.open(str(tmp_path), create=True)
    with store.open(str(tmp_path)) as opened:
        assert opened.counts() == store.Counts(8, 0, 0)


def test_reading_a_store_writes_nothing(tmp_path, on_connect):
    with store.open(str(tmp_path), create=True) as opened:
        opened.prepare(GRID, stand_in.SETTINGS)
    before = [(path, path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()]
    on_connect("pragma query_only = on")
    with store.open(str(tmp_path)) as opened:
        assert (opened.records(), sum(opened.counts())) == ([], 8)
        assert opened.settings == stand_in.SETTINGS
    after = [(path, path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()]
    assert before == after

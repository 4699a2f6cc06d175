"""Several processes share a grid over one PostgreSQL database, on a server of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from everypair.experiments.errors import UserError
from everypair.experiments.search import _database, store
from tests.experiments import stand_in

pytestmark = pytest.mark.skipif(
    not (shutil.which("initdb") and shutil.which("pg_ctl")),
    reason="PostgreSQL is not here: initdb and pg_ctl are not on the PATH",
)
psycopg = pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")

GRID = stand_in.grid("square")


def ordinary_user():
    """Return the user that runs the server, which refuses root; None: the present user."""
    if os.getuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@pytest.fixture(scope="module")
def url():
    user = ordinary_user()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Other users cannot read the folder of pytest.
    folder = tempfile.mkdtemp(prefix="everypair-postgres-")
    if user:
        shutil.chown(folder, user)
    data = os.path.join(folder, "data")

    def call(*command):
        subprocess.run(
            command, user=user, cwd=folder, check=True, timeout=60, stdout=subprocess.DEVNULL
        )

    try:
        call("initdb", "-D", data, "-U", "tester", "-A", "trust", "-N", "--no-locale", "-E", "UTF8")
        # No sockets in the file system, local connections only, no waiting for the disk.
        options = f"-p {port} -h 127.0.0.1 -k '' -F"
        call("pg_ctl", "-D", data, "-w", "-l", os.path.join(folder, "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://tester@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def new_database(url, name):
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return url.replace("/postgres", f"/{name}")


def test_two_processes_share_a_grid(url, tmp_path):
    log, kept = str(tmp_path / "log"), str(tmp_path / "kept")
    both = [
        stand_in.process(stand_in.run_study, f"{url}#both", GRID, log, kept, 0.05, 1)
        for _ in range(2)
    ]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert sorted(stand_in.runs(log)) == sorted(map(repr, GRID.trials()))
    with store.open(f"{url}#both") as opened:
        assert [record.trial for record in opened.records()] == GRID.trials()
        assert opened.counts() == store.Counts(waiting=0, running=0, finished=8)
        assert opened.settings == stand_in.SETTINGS


@pytest.mark.parametrize("attempt", range(5))
def test_several_that_start_at_once_add_and_claim_each_trial_once(url, tmp_path, attempt):
    where = new_database(url, f"start{attempt}")  # which has no tables yet
    barrier = threading.Barrier(4, timeout=30)

    def run_all(_):
        barrier.wait()
        with store.open(where, create=True) as opened:
            opened.prepare(GRID, stand_in.SETTINGS)
            barrier.wait()
            return stand_in.run_waiting_trials(opened, str(tmp_path / "log"))

    with ThreadPoolExecutor(4) as pool:
        taken = [trial for trials in pool.map(run_all, range(4)) for trial in trials]
    assert sorted(taken) == sorted(GRID.trials())
    with store.open(where) as opened:
        assert opened.counts() == store.Counts(waiting=0, running=0, finished=8)
        assert [record.trial for record in opened.records()] == GRID.trials()


def test_several_that_continue_at_once_with_a_larger_grid_add_each_trial_once(url):
    larger = stand_in.grid("square", seeds=20)
    barrier = threading.Barrier(4, timeout=30)

    def add(_):
        with store.open(f"{url}#larger", create=True) as opened:
            opened.prepare(GRID, stand_in.SETTINGS)
            barrier.wait()
            opened.prepare(larger, stand_in.SETTINGS)
            return sum(opened.counts())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(add, range(4))) == [80] * 4
    with store.open(f"{url}#larger") as opened:
        assert opened.counts() == store.Counts(waiting=80, running=0, finished=0)


def test_of_two_that_start_at_once_with_other_settings_one_is_refused(url):
    barrier = threading.Barrier(2, timeout=30)

    def prepare(epochs):
        with store.open(f"{url}#refused", create=True) as opened:
            barrier.wait()
            try:
                opened.prepare(GRID, replace(stand_in.SETTINGS, epochs=epochs))
            except UserError as refusal:
                return str(refusal)
            return ""

    with ThreadPoolExecutor(2) as pool:
        refusals = sorted(pool.map(prepare, (3, 4)))
    assert refusals[0] == ""
    assert "begun with epochs" in refusals[1]


@pytest.mark.parametrize("host", [None, "elsewhere"])
def test_the_trial_of_a_killed_process_waits_again(url, host, monkeypatch):
    where = f"{url}#killed-{host}"
    victim = stand_in.process(stand_in.claim_and_die, where, GRID, host)
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    with store.open(where, create=True) as opened:
        assert opened.counts() == store.Counts(7, 1, 0)
        opened.prepare(GRID, stand_in.SETTINGS)
        if host:
            assert opened.counts() == store.Counts(7, 1, 0), "it may still be running"
            monkeypatch.setattr(_database, "GRACE_SECONDS", -1)
            assert opened.requeue_dead_trials() == 1
        assert opened.counts() == store.Counts(8, 0, 0)


def test_a_database_that_does_not_exist_is_one_line(url):
    with pytest.raises(UserError, match="createdb"):
        store.open(url.replace("/postgres", "/nowhere"), create=True)


def test_reading_an_empty_database_makes_no_tables(url):
    empty = new_database(url, "empty")
    for _ in range(2):
        with pytest.raises(UserError, match="no experiment store"):
            store.open(empty)

"""The grid on many workers over one PostgreSQL database, on a server of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from everypair.experiments.errors import UserError
from everypair.experiments.search import store
from tests.experiments import stand_in

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (shutil.which("initdb") and shutil.which("pg_ctl")),
    reason="PostgreSQL is not here: initdb and pg_ctl are not on the PATH",
)
pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")


def ordinary_user():
    """Return as whom the server runs, for it refuses to run as root; None: as we are."""
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
    # Not pytest's folder: that is closed to other users.
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
        # No sockets in the file system, nothing to the outside, no waiting for the disk.
        options = f"-p {port} -h 127.0.0.1 -k '' -F"
        call("pg_ctl", "-D", data, "-w", "-l", os.path.join(folder, "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://tester@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


RUN = """
import sys
from everypair.experiments.search import runner, store
from tests.experiments import stand_in
with store.open(sys.argv[1], create=True) as opened:
    work = stand_in.StandIn(sys.argv[2], seconds=0.05)
    runner.run(stand_in.grid("square", seeds=3), stand_in.SETTINGS, opened, work=work, workers=1)
"""


def test_two_processes_share_a_grid(url, tmp_path):
    log = str(tmp_path / "log")
    both = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, f"{url}#both", log],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[1] for process in both] == ["", ""]
    grid = stand_in.grid("square", seeds=3)
    assert sorted(stand_in.runs(log)) == sorted(map(repr, grid.trials()))
    with store.open(f"{url}#both") as opened:
        assert [record.trial for record in opened.records()] == grid.trials()
        assert opened.settings == stand_in.SETTINGS


def test_only_one_gets_a_trial(url):
    grid = stand_in.grid("square")
    with store.open(f"{url}#a", create=True) as one, store.open(f"{url}#a", create=True) as other:
        one.prepare(grid, stand_in.SETTINGS)
        other.prepare(grid, stand_in.SETTINGS)
        taken = [opened.claim().trial for _ in range(4) for opened in (one, other)]
        assert sorted(taken) == sorted(grid.trials())
        assert one.claim() is None


def test_a_machine_that_fell_silent_is_given_up(url):
    import psycopg

    with store.open(f"{url}#silent", create=True) as opened:
        opened.prepare(stand_in.grid("square", seeds=1), stand_in.SETTINGS)
        claim = opened.claim()
        elsewhere = {"host": "elsewhere", "pid": 1, "began": "2"}
        opened._storage.set_trial_user_attr(claim.trial_id, "owner", elsewhere)
        assert opened.put_back_the_dead() == 0
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            connection.execute(
                "update trial_heartbeats set heartbeat = heartbeat - interval '1 day'"
            )
        assert opened.put_back_the_dead() == 1
        assert opened.counts() == store.Counts(waiting=4, running=0, finished=0)


def test_a_database_that_is_not_there_is_one_line(url):
    with pytest.raises(UserError, match="createdb"):
        store.open(url.replace("/postgres", "/nowhere"), create=True)


def test_reading_an_empty_database_makes_no_tables(url):
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("create database empty")
    with pytest.raises(UserError, match="no experiment store"):
        store.open(url.replace("/postgres", "/empty"))

"""Fixtures of all tests of the experiments."""

from __future__ import annotations

import signal
import sqlite3
from unittest import mock

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    """Use one torch thread: the models are small, and tests run in parallel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def heeds_ctrl_c():
    """Restore Python's handler of Ctrl-C, which processes in the background may ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def closed_connections():
    """Fail a test that opens a connection to SQLite and does not close it.

    Python 3.13 and later warn of such a connection when it is freed, which may be in another test.
    """
    connect, opened = sqlite3.connect, []

    class Connection(sqlite3.Connection):
        is_open = True

        def close(self):
            super().close()
            self.is_open = False

    def recorded_connect(*args, **options):
        opened.append(connect(*args, **{"factory": Connection, **options}))
        return opened[-1]

    # SQLAlchemy calls the function of sqlite3.dbapi2.
    with (
        mock.patch("sqlite3.connect", recorded_connect),
        mock.patch("sqlite3.dbapi2.connect", recorded_connect),
    ):
        yield
    assert not [connection for connection in opened if connection.is_open]

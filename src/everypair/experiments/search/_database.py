"""Open the database of a store, and say what is wrong with it in one line.

A folder holds ``study.db`` (SQLite). Anything with ``://`` is handed to Optuna as it is.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everypair.experiments.errors import UserError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["FILE_NAME", "GRACE_SECONDS", "HEARTBEAT_SECONDS", "close", "connect", "storage_errors"]

FILE_NAME = "study.db"
HEARTBEAT_SECONDS = 30
GRACE_SECONDS = 180
"""A process on another machine that has not been heard of for so long is given up."""

_BUSY_SECONDS = 120
_ATTEMPTS = 5


def connect(where: str, *, create: bool) -> tuple[BaseStorage, Any]:
    """Return Optuna's storage and its SQLAlchemy engine.

    Parameters
    ----------
    where : str
        A folder, or a database URL.
    create : bool
        Whether to make what is not there. Where not, nothing is written either, so that a store
        on a read-only disk can be read.
    """
    from optuna import logging as optuna_logging

    optuna_logging.set_verbosity(optuna_logging.WARNING)
    is_url = "://" in where
    if not is_url:
        path = Path(where)
        if create:
            _make_folder(path)
        elif not (path / FILE_NAME).is_file():
            raise UserError(
                f"{where} holds no experiment: there is no {FILE_NAME} in it. Name a folder that "
                "`everypair experiment` wrote, or the URL of its database."
            )
    url = where if is_url else f"sqlite:///{(Path(where) / FILE_NAME).absolute()}"
    # A missing driver is an ImportError, and tables of another version are a RuntimeError.
    with storage_errors(where, ImportError, RuntimeError):
        return _connect(url, create=create)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path} cannot be used for the store: {error.strerror}. Name another folder."
        ) from error


def _connect(url: str, *, create: bool) -> tuple[BaseStorage, Any]:
    from optuna.exceptions import ExperimentalWarning, StorageInternalError
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy.exc import SQLAlchemyError

    sqlite = url.startswith("sqlite")
    knobs: dict[str, Any] = (
        {"connect_args": {"timeout": _BUSY_SECONDS}} if sqlite else {"pool_pre_ping": True}
    )
    for attempt in range(_ATTEMPTS):
        raw = RDBStorage.__new__(RDBStorage)  # at hand to be closed if it cannot be made
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                RDBStorage.__init__(
                    raw,
                    url,
                    engine_kwargs=dict(knobs),
                    heartbeat_interval=HEARTBEAT_SECONDS,
                    grace_period=GRACE_SECONDS,
                    skip_table_creation=not create,
                )
            break
        except BaseException as error:
            if hasattr(raw, "engine"):
                raw.engine.dispose()
            # Two that start at once both make the tables; the slower one finds them there.
            raced = isinstance(error, (SQLAlchemyError, StorageInternalError)) and re.search(
                r"exists|(?i:unique)", _innermost(error)
            )
            if attempt + 1 == _ATTEMPTS or not raced:
                raise
            time.sleep(0.1 * (attempt + 1))
    if sqlite and create:
        _set_up_for_writing(raw.engine)
    return get_storage(raw), raw.engine


def _set_up_for_writing(engine: Any) -> None:
    """Let each transaction take SQLite's write lock when it begins, and be quick.

    Optuna claims a trial by reading its state and then writing it. SQLite has no row locks, so
    that two processes could both read "waiting"; with the lock taken first, only one can. A log
    written ahead spares waiting for the disk at every commit; a power failure then costs the last
    trials, never the file.
    """
    from sqlalchemy import event

    def by_hand(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # or sqlite3 would begin transactions of its own
        with suppress(sqlite3.OperationalError):  # in use in the other mode: right, only slower
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", by_hand)
    event.listen(engine, "begin", begin)
    engine.dispose()  # connections that were opened before the listeners


def close(storage: BaseStorage, engine: Any, *, written: bool) -> None:
    """Let go of the database; of SQLite, the last writer leaves one file that can be copied."""
    storage.remove_session()
    engine.dispose()
    if written and engine.name == "sqlite" and os.path.exists(engine.url.database):
        with suppress(sqlite3.Error), closing(sqlite3.connect(engine.url.database)) as last:
            last.execute("PRAGMA busy_timeout=0")
            last.execute("PRAGMA journal_mode=DELETE")


@contextmanager
def storage_errors(where: str, *others: type[Exception]) -> Iterator[None]:
    """Turn what a database raises into one line."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    expected: tuple[type[Exception], ...] = (SQLAlchemyError, StorageInternalError, *others)
    try:
        yield
    except expected as error:
        raise UserError(_explain(without_password(where), _innermost(error))) from error


def without_password(where: str) -> str:
    """Return a URL that may be shown.

    >>> without_password("postgresql://me:secret@host/db")
    'postgresql://me:***@host/db'
    """
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", where)


_ADVICE = {  # what the database says: what to do
    "disk is full": "The disk is full. Free some space and run the same command again: "
    "what is finished is kept.",
    "No space left": "The disk is full. Free some space and run the same command again: "
    "what is finished is kept.",
    "not a database": "It is no SQLite file. Name another folder.",
    "malformed": "The file is damaged. Name another folder, or restore the file from a copy.",
    "readonly": "It cannot be written to. Name another folder.",
    "unable to open": "It cannot be opened. Name a folder that you may write to.",
    "locked": "Another program has held it for long. Run the same command again when it is done.",
    "no longer compatible": "It was written by another version of Optuna. Name another folder.",
    "no such table": "It is no experiment store. Name one that `everypair experiment` wrote.",
    "relation": "It is no experiment store. Name one that `everypair experiment` wrote.",
    "does not exist": "Check the URL. A PostgreSQL database has to be made first: createdb NAME.",
    "Failed to import DB access module": "Install the driver, for PostgreSQL: "
    "pip install 'psycopg[binary]', with a URL that begins postgresql+psycopg://.",
    "Could not parse": "The URL should look like postgresql+psycopg://user@host/database.",
    "Can't load plugin": "The URL should look like postgresql+psycopg://user@host/database.",
}


def _explain(where: str, said: str) -> str:
    advice = next(
        (advice for part, advice in _ADVICE.items() if part in said),
        "Check that the database runs and that the URL is right.",
    )
    return f"the store {where} cannot be used. {advice} (It says: {said})"


def _innermost(error: BaseException) -> str:
    """Return what was raised first, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return " ".join(said.split())[:300]

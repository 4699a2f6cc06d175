"""The database of a store: its tables, how it is opened, and its errors in one line.

A folder holds ``study.db`` (SQLite). Anything with ``://`` is a URL of SQLAlchemy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from everypair.experiments.errors import UserError
from everypair.experiments.search._layout import check_layout

HEARTBEAT_SECONDS = 30
GRACE_SECONDS = 180
"""A trial whose process has sent no heartbeat for so long is run again."""

NOW = sa.extract("epoch", sa.func.now())
"""The clock of the database, in seconds, since the clocks of the machines may differ."""

_METADATA = sa.MetaData()

EXPERIMENTS = sa.Table(
    "everypair_experiments",
    _METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("layout", sa.Integer, nullable=False),
    sa.Column("settings", sa.Text, nullable=False),  # JSON
)

TRIALS = sa.Table(
    "everypair_trials",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("experiment", sa.Text, nullable=False),
    sa.Column("cell", sa.Text, nullable=False),
    sa.Column("slot", sa.Text, nullable=False),
    sa.Column("search", sa.Text, nullable=False),
    # waiting, running, or the state of the record
    sa.Column("state", sa.Text, nullable=False, default="waiting"),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),  # how often it was claimed
    sa.Column("deaths", sa.Integer, nullable=False, default=0),  # of processes that ran it
    sa.Column("owner", sa.Text),  # see _owners
    sa.Column("heartbeat", sa.Float),
    sa.Column("record", sa.Text),  # JSON; not the type of PostgreSQL, which has no NaN
    sa.UniqueConstraint("experiment", "cell", "slot"),
)


def connect(where: str, experiment: str, *, create: bool) -> sa.Engine:
    """Open a folder or the URL of a database, and check that it holds a store of this layout.

    With `create`, the folder, the file and the tables are made where they are missing. Without it
    nothing is written, so that a store on a read-only disk can be read.
    """
    shown = without_password(where)
    with storage_errors(shown, ImportError, passwords=_passwords(where)):
        path = str(Path(where).absolute() / "study.db")
        try:
            url = sa.make_url(where) if "://" in where else sa.URL.create("sqlite", database=path)
        except ValueError:  # its message may hold a part of the password
            raise UserError(f"the port in the URL of the store is no number. {_URL}") from None
        sqlite = url.get_backend_name() == "sqlite"
        if sqlite and url.database and create:
            folder = Path(url.database).parent
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"{folder} cannot be used for the store: {error.strerror}. Name another folder."
                ) from error
        elif sqlite and not Path(url.database or "").is_file():
            raise UserError(
                f"{shown} holds no experiment: there is no file {url.database}. Name a folder "
                "that `everypair experiment` wrote, or the URL of its database."
            )
        if sqlite:
            engine = sa.create_engine(url, connect_args={"timeout": 120})
            _begin_with(engine, "BEGIN IMMEDIATE" if create else "BEGIN")
        else:
            engine = sa.create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED")
        try:
            _check(engine, experiment, shown, create=create)
        except BaseException:
            engine.dispose()
            raise
        return engine


def _begin_with(engine: sa.Engine, statement: str) -> None:
    """Set the statement that begins a transaction of SQLite.

    ``BEGIN IMMEDIATE`` takes the write lock at once. With ``BEGIN``, a transaction that reads
    before it writes fails if another process has written in between.
    """

    @sa.event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # otherwise the driver begins transactions itself

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql(statement)


_OPTUNA = sa.text(
    "SELECT count(*) FROM study_user_attributes AS mark "
    "JOIN study_user_attributes AS name ON mark.study_id = name.study_id "
    "WHERE mark.key = 'everypair' AND name.key = 'experiment' AND name.value_json = :name"
)


def _check(engine: sa.Engine, experiment: str, where: str, *, create: bool) -> None:
    with engine.begin() as connection:
        tables = sa.inspect(connection).get_table_names()
        old = "study_user_attributes" in tables
        if old and connection.scalar(_OPTUNA, {"name": json.dumps(experiment)}):
            check_layout(1, "{}", where)
        if EXPERIMENTS.name in tables:
            mine = sa.select(EXPERIMENTS).where(EXPERIMENTS.c.name == experiment)
            for row in connection.execute(mine):
                check_layout(row.layout, row.settings, where)
        elif not create:
            raise UserError(
                f"the store {where} cannot be used. It is no experiment store. Name one that "
                "`everypair experiment` wrote."
            )
    if create:
        try:
            _METADATA.create_all(engine)
        except DBAPIError:  # another process made the tables at the same time: now they are there
            _METADATA.create_all(engine)


@contextmanager
def storage_errors(
    where: str, *others: type[Exception], passwords: Sequence[str] = ()
) -> Iterator[None]:
    """Turn an error of the database into a `UserError` of one line without these passwords."""
    expected: tuple[type[Exception], ...] = (SQLAlchemyError, *others)
    try:
        yield
    except expected as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        advices = (advice for part, advice in _ADVICE.items() if re.search(part, cause))
        advice = next(advices, _SERVER if "://" in where else _DISK)
        cause = without_password(cause)
        for password in passwords:
            cause = cause.replace(password, "***")
        raise UserError(f"the store {where} cannot be used. {advice} (It says: {cause})") from error


def without_password(where: str) -> str:
    """Return a URL, or a text with one, that may be shown.

    >>> without_password("postgresql://me:secret@host/db")
    'postgresql://me:***@host/db'
    >>> without_password("postgresql://host/db?user=me&password=se&cret#1")
    'postgresql://host/db?user=me&password=***'
    """
    where = re.sub(r"(://[^:/?@]*):.*@", r"\1:***@", where)
    # All that follows is hidden: a password with & or # that is not escaped has no clear end.
    return re.sub(r"(?i)(pass\w*\s*=).*", r"\1***", where)


def _passwords(where: str) -> list[str]:
    """Return the parts of the passwords in a URL, which a database may quote in its messages."""
    found = re.findall(r"://[^:/?@]*:(.*)@", where)
    found += re.findall(r"(?i)pass\w*\s*=(.*)", where)
    parts = {part for text in found for part in (text, *re.split(r"[@/?#&:=]", text))}
    return sorted((part for part in parts if len(part) > 1), key=len, reverse=True)


_URL = "The URL should look like postgresql+psycopg://user@host/database."
_SERVER = "Check that the database runs and that the URL is right."
_DISK = "Check the disk, its connection and the file, or name a folder on another disk."
_ADVICE = {  # by a pattern of the message of the database
    "disk is full|No space left": "The disk is full. Free some space and run the same command "
    "again: what is finished is kept.",
    "not a database": "It is no SQLite file. Name another folder.",
    "malformed": "The file is damaged. Name another folder, or restore the file from a copy.",
    "readonly": "It cannot be written to. Name another folder.",
    "unable to open": "It cannot be opened. Name a folder that you may write to.",
    "locked": "Another program has held it for long. Run the same command again when it is done.",
    "does not exist": "Check the URL. A PostgreSQL database has to be made first: createdb NAME.",
    "No module named": "Install the driver, for PostgreSQL: pip install 'psycopg[binary]', with a "
    "URL that begins postgresql+psycopg://.",
    "Could not parse|Can't load plugin": _URL,
    "disk I/O error": _DISK,
}

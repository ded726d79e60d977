"""Opening the ledger: SQLite or PostgreSQL by URL, its tables, its version, and its failures in one line."""

from __future__ import annotations

import fcntl
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    insert,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as NoConnection
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from handoff.ledger.undisturbed import undisturbed

SCHEMA_VERSION = 2
BUSY_S = 60.0
"""How long a writer waits for another one's transaction."""
_PAUSE_S = 0.02
_READS = "takeover_reads"

_metadata = MetaData()
_version = Table("takeover_schema", _metadata, Column("version", Integer, primary_key=True))
leases = Table(
    "takeover_leases",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("token", Integer, nullable=False),
    Column("holder", Text, nullable=False),
    Column("process", Text, nullable=False),
    Column("acquired_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("requested", Text),
    Column("place", Text, nullable=False),
)
effects = Table(
    "takeover_effects",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("call", Text, primary_key=True),
    Column("machine_before", Text, nullable=False),
    Column("machine_after", Text),
    Column("result", Text),
    Column("begun_at", Float, nullable=False),
    Column("ended_at", Float),
)
machines = Table(
    "takeover_machines",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("thread", Text, nullable=False, index=True),
    Column("snapshot", Text, nullable=False),
    Column("made_at", Float, nullable=False),
)
handoffs = Table(
    "takeover_handoffs",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("record", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("thread", Text, nullable=False, index=True),
    Column("source", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("successor", Text, nullable=False, index=True),
    Column("state", Text, nullable=False, index=True),
    Column("version", Integer, nullable=False),
    Column("offers", Integer, nullable=False),
    Column("deadline_at", Float),
    Column("reason", Text, nullable=False),
    Column("envelope", Text, nullable=False),
    Column("understanding", Text),
    Column("made_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
)
transitions = Table(
    "takeover_transitions",
    _metadata,
    Column("handoff", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("before", Text),
    Column("after", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
)
keys = Table(
    "takeover_keys",
    _metadata,
    Column("key", Text, primary_key=True),
    Column("asked", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
)
closed = Table(
    "takeover_closed",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("handoff", Text, nullable=False),
    Column("target", Text, nullable=False),
)
"""Threads on which nobody may work any more: handed over, or given up by the handoff that they were begun for."""


class LedgerUnusable(Exception):
    """The database cannot be opened, read or written; one line that says which, why, and what to do."""


class Ledger:
    """One database, open; safe to use from several threads, and by several processes at once."""

    def __init__(self, url: str) -> None:
        """Raises LedgerUnusable, also for a database that a newer program has written."""
        self.url = url
        self._engine = _engine(url)
        self.on_sqlite = self._engine.dialect.name == "sqlite"
        with self.telling():
            self._set_up()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction that nobody else writes in; all of it, or nothing, is done."""
        with undisturbed(), self.telling(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def filing(self) -> Iterator[None]:
        """Keep others from filing and removing snapshots meanwhile, in whichever process."""
        while True:
            with undisturbed(), self.telling(), self._files() as free:
                if free:
                    yield
                    return
            time.sleep(_PAUSE_S)  # holding nothing, so that Ctrl-C ends it, and others get connections

    @contextmanager
    def _files(self) -> Iterator[bool]:
        """Whether nobody else was filing; nobody else is then."""
        if self.on_sqlite:
            with Path(f"{make_url(self.url).database}.files").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                else:
                    yield True
        else:
            with self._engine.begin() as connection:
                yield bool(connection.execute(text("SELECT pg_try_advisory_xact_lock(8402158)")).scalar())

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with undisturbed(), self.telling(), self._engine.connect() as connection:
            yield connection.execution_options(**{_READS: True})

    def now(self, connection: Connection) -> float:
        """Seconds since the epoch, by the clock that all who use this database share."""
        if self.on_sqlite:
            return time.time()
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def close(self) -> None:
        self._engine.dispose()

    def _set_up(self) -> None:
        with self._engine.begin() as connection:
            if not self.on_sqlite:
                # Two processes that both find no tables must not both make them.
                connection.execute(text("SELECT pg_advisory_xact_lock(8402157)"))
            _metadata.create_all(connection)
            found = connection.execute(select(_version.c.version)).scalar()
            if found is None:
                connection.execute(insert(_version).values(version=SCHEMA_VERSION))
            elif found < SCHEMA_VERSION:  # what is new since is tables of their own
                connection.execute(update(_version).values(version=SCHEMA_VERSION))
            elif found > SCHEMA_VERSION:
                raise LedgerUnusable(
                    f"{self._named()}: a newer program made it (schema {found}; this one knows {SCHEMA_VERSION}); "
                    "update the program, or use another database"
                )

    @contextmanager
    def telling(self, *errors: type[Exception]) -> Iterator[None]:
        """Raise LedgerUnusable, in one line, for what a driver raises: these errors, or any of SQLAlchemy's."""
        try:
            yield
        except DBAPIError as error:
            raise LedgerUnusable(f"{self._named()}: {_cause(error.orig)}") from error
        except NoConnection as error:
            raise LedgerUnusable(f"{self._named()}: too many threads use it at once") from error
        except errors as error:
            raise LedgerUnusable(f"{self._named()}: {_cause(error)}") from error

    def _named(self) -> str:
        return make_url(self.url).render_as_string(hide_password=True)


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        shown = re.sub("//[^/]*@", "//***@", url)[:40]
        raise LedgerUnusable(
            f"{shown!r} is no database URL; give sqlite:///FILE or postgresql://…"
        ) from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    options: dict[str, Any] = {}
    if parsed.drivername.startswith("sqlite"):
        options["connect_args"] = {"timeout": BUSY_S, "check_same_thread": False}
        if parsed.database and not Path(parsed.database).parent.is_dir():
            raise LedgerUnusable(f"{parsed.database}: there is no directory {Path(parsed.database).parent}")
    try:
        engine = create_engine(parsed, pool_pre_ping=not parsed.drivername.startswith("sqlite"), **options)
    except (NoSuchModuleError, ImportError) as error:
        raise LedgerUnusable(
            f"{parsed.drivername}: its driver is not installed; pip install 'langgraph-takeover[postgres]', "
            "or give sqlite:///FILE"
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepared)
        event.listen(engine, "begin", _begun)
    return engine


def _begun(connection: Connection) -> None:
    # Only writers that say so at once wait for each other; who only reads waits for nobody.
    reads = connection.get_execution_options().get(_READS)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _prepared(connection: Any, record: Any) -> None:
    # The driver must not begin transactions by itself.
    connection.isolation_level = None
    # Observations are large: small pages would leave an eighth of the file empty. It counts for new files only.
    connection.execute("PRAGMA page_size=16384")
    _to_wal(connection)
    connection.execute("PRAGMA synchronous=NORMAL")


def _locked(error: BaseException) -> bool:
    return (
        isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    )


# SQLite itself gives up at once here: it reads by then, and the writer it would wait for may wait for readers.
@retry(
    retry=retry_if_exception(_locked), wait=wait_fixed(_PAUSE_S), stop=stop_after_delay(BUSY_S), reraise=True
)
def _to_wal(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")


def _cause(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    said = lines[0] if lines else type(error).__name__
    cures = {
        "disk is full": "make room and go on",
        "readonly|unable to open|read-only": "it must be a file that can be written to, in a directory that can be too",
        "not a database|malformed": "it is no SQLite database, or a damaged one; name another file",
        "connection (refused|failed)|could not connect|connection to server": "is the server running, and the URL right?",
        "locked": "another process has held it for too long",
    }
    cure = next((cure for pattern, cure in cures.items() if re.search(pattern, said, re.IGNORECASE)), None)
    return f"{said[:200]}; {cure}" if cure else said[:200]

"""The ledger's tables, its schema version, and the lock for adding and removing snapshots."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    insert,
    make_url,
    select,
    text,
)

from langgraph_takeover.handoff.ledger.database import (
    RETRY_PAUSE_S,
    Database,
    defer_signals,
    repeat_after_loss,
)

SCHEMA_VERSION = 8

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
    Column("state_before", Text, nullable=False),
    Column("state_after", Text),
    Column("result", Text),
    Column("begun_at", Float, nullable=False),
    Column("ended_at", Float),
)
moves = Table(
    "takeover_moves",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("place", Text, primary_key=True),
    Column("call", Text, primary_key=True),
    Column("step", Text, nullable=False),
    Column("state_before", Text, nullable=False),
    Column("state_after", Text, nullable=False),
)
"""In the newest step of a user's graph: which task led the sandbox from which state to which."""
snapshots = Table(
    "takeover_snapshots",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("id", Text, primary_key=True, index=True),
    Column("snapshot", Text, nullable=False),
    Column("parent", Text),
    Column("made_at", Float, nullable=False),
)
"""States of threads' sandboxes; forks of a thread have its ids.

The parent is the state that an act changed to this one, or the merged states.
"""
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
idempotency_keys = Table(
    "takeover_keys",
    _metadata,
    Column("key", Text, primary_key=True),
    Column("asked", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
)
closed_threads = Table(
    "takeover_closed",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("handoff", Text, nullable=False),
    Column("target", Text, nullable=False),
)
"""Closed threads: handed over, or given up by their handoff."""
stops = Table(
    "takeover_stops",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("token", Integer, nullable=False),
    Column("mode", Text, nullable=False),
)
"""Requests to stop the holder of the lease with that token."""
waits = Table(
    "takeover_waits",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("token", Integer, nullable=False),
    Column("until", Float, nullable=False),
)
"""Until when the holder of the lease with that token waits for its model's endpoint."""
calls = Table(
    "takeover_calls",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("token", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
)
"""Model calls of a step that may be billed and are not saved; the token is that of the session that makes them, or 0."""
deletions = Table(
    "takeover_deletions",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("records", Integer, nullable=False),
)
"""Deleted threads whose files may still exist; `records` is 1 if their records are to be removed too."""
traces = Table(
    "takeover_traces",
    _metadata,
    Column("thread", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("parent", Text, nullable=False),
    Column("body", Text, nullable=False),
)
"""Events of agents in users' graphs, in parts; each names the one before."""
DELETE_THREAD = (
    "DELETE FROM takeover_traces WHERE thread = {}",
    "DELETE FROM takeover_effects WHERE thread = {}",
    "DELETE FROM takeover_moves WHERE thread = {}",
    "DELETE FROM takeover_snapshots WHERE thread = {}",
    "DELETE FROM takeover_waits WHERE thread = {}",
    "DELETE FROM takeover_calls WHERE thread = {}",
    "UPDATE takeover_leases SET requested = NULL WHERE thread = {}",
    "INSERT INTO takeover_deletions (thread, records) VALUES ({}, 0) ON CONFLICT (thread) DO NOTHING",
)
"""Statements that delete a thread, in the transaction of a saver; `{}` is the driver's parameter."""


class Ledger(Database):
    """The database of threads, effects, snapshots and handoffs."""

    def __init__(self, url: str) -> None:
        """Raises LedgerUnavailableError; LedgerVersionError for a database of another version."""
        super().__init__(url, _metadata, _version, SCHEMA_VERSION)

    @contextmanager
    def lock_snapshots(self) -> Iterator[None]:
        """Keep other processes from adding and removing snapshots meanwhile."""
        while True:
            with self._try_lock_snapshots() as free:
                if free:
                    yield
                    return
            time.sleep(
                RETRY_PAUSE_S
            )  # without a transaction, so that Ctrl-C ends it, and others get connections

    @contextmanager
    def _try_lock_snapshots(self) -> Iterator[bool]:
        """Whether no other process holds the lock."""
        if self.is_sqlite:
            path = Path(f"{make_url(self.url).database}.files")
            with defer_signals(), self.translate_errors(), path.open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                else:
                    yield True
        else:
            with self.try_advisory_lock(8402158) as is_free:
                yield is_free

    @contextmanager
    def try_advisory_lock(self, number: int) -> Iterator[bool]:
        """Try to hold an advisory lock of PostgreSQL for the block, in a transaction without snapshot; yield whether it is held."""
        with self.write_transaction() as connection:
            yield bool(connection.execute(text(f"SELECT pg_try_advisory_xact_lock({number:d})")).scalar())

    def begin_deletion(self, thread: str) -> None:
        """Note that a thread's records are to be removed once it is deleted."""
        with self.write_transaction() as connection:
            connection.execute(delete(deletions).where(deletions.c.thread == thread))
            connection.execute(insert(deletions).values(thread=thread, records=1))

    @repeat_after_loss(idempotent=True)
    def list_deletions(self) -> dict[str, bool]:
        """List the deleted threads whose files may still exist, and whether their records are to be removed."""
        with self.read_transaction() as connection:
            return {row.thread: bool(row.records) for row in connection.execute(select(deletions))}

    def end_deletions(self, threads: Collection[str]) -> None:
        """Note that nothing is left of deleted threads. Empties SQLite's log, which contains their rows."""
        if self.is_sqlite:
            with self.translate_errors(), closing(self._engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with self.write_transaction() as connection:
            connection.execute(delete(deletions).where(deletions.c.thread.in_(threads)))

    def now(self, connection: Connection) -> float:
        """Return the seconds since the epoch, by the clock of the database."""
        if self.is_sqlite:
            return time.time()
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

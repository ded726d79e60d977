"""A checksum for each checkpoint on SQLite, so that damage raises an error instead of restoring an older or smaller state.

One checksum covers a checkpoint's row, including its parent's id; a second covers the pending writes. A lost checkpoint
leaves its checksum behind, and a lost write changes the second one. Checksums reveal damage, not forgery.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

import ormsgpack

from langgraph_takeover.graph.usage_errors import CheckpointCorruptError

_CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS takeover_checksums (
        thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL, checkpoint_id TEXT NOT NULL, checksum BLOB, writes BLOB,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
    ) WITHOUT ROWID
"""
_CHECKSUM = (
    "takeover_checksum(c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.type, c.checkpoint, "
    "c.metadata)"
)
_WRITES_CHECKSUM = (
    "SELECT takeover_sum(takeover_row(w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.task_path, w.idx, "
    "w.channel, w.type, w.value)) FROM writes w"
)
_KEY_MATCHES = "thread_id = ?1 AND {0}.checkpoint_ns = ?2 AND {0}.checkpoint_id"
_STORE_CHECKPOINT = """
    INSERT INTO takeover_checksums VALUES (?1, ?2, ?3, ?4, NULL) ON CONFLICT DO UPDATE SET checksum = excluded.checksum
"""
_STORE_FIRST_WRITES = f"""
    UPDATE takeover_checksums AS s SET writes = ?4 WHERE s.{_KEY_MATCHES.format("s")} = ?3 AND writes IS NULL
"""
_STORE_WRITES = f"""
    INSERT INTO takeover_checksums VALUES (?1, ?2, ?3, NULL, ({_WRITES_CHECKSUM} WHERE w.{_KEY_MATCHES.format("w")} = ?3))
    ON CONFLICT DO UPDATE SET writes = excluded.writes
"""
# Rows are looked up one by one, as LangGraph does: damage in an index hides a row from only one access path.
_ROW = f"SELECT c.checkpoint_id AS id, c.parent_checkpoint_id AS parent, {_CHECKSUM} AS checksum FROM"
_CHAIN = f"""
    WITH RECURSIVE chain AS (
        {_ROW} checkpoints c WHERE c.{_KEY_MATCHES.format("c")} = ?3
        UNION ALL {_ROW} chain CROSS JOIN checkpoints c ON c.{_KEY_MATCHES.format("c")} = chain.parent
    )
    SELECT chain.id, chain.parent, chain.checksum, s.checksum, s.writes,
        ({_WRITES_CHECKSUM} WHERE w.{_KEY_MATCHES.format("w")} = chain.id)
    FROM chain LEFT JOIN takeover_checksums s ON s.{_KEY_MATCHES.format("s")} = chain.id
"""
_write_key = itemgetter(3, 5)  # task and index
_NEWEST = (
    "SELECT checkpoint_id FROM {} WHERE thread_id = ? AND checkpoint_ns = ? {} ORDER BY checkpoint_id DESC"
)


class ChainKey(NamedTuple):
    """The key of a chain of checkpoints."""

    thread: str
    namespace: str


def prepare_connection(connection: sqlite3.Connection) -> None:
    """Register the checksum functions, and create the table of checksums if it is missing."""
    connection.create_function("takeover_checksum", -1, _compute_checksum, deterministic=True)
    # An aggregate does not refuse damaged text as a function does: the error shows up later, at any other call.
    connection.create_function("takeover_row", -1, _pack_row, deterministic=True)
    connection.create_aggregate("takeover_sum", 1, _WritesChecksum)  # type: ignore[arg-type]
    connection.execute(_CREATE_TABLE)


class WriteRecorder:
    """A cursor that remembers the rows that LangGraph's saver writes, to add checksums without reading them again."""

    def __init__(self, cursor: sqlite3.Cursor, thread: str) -> None:
        self.thread = thread
        self._cursor = cursor
        self._rows: list[Sequence[Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        self._rows = [values]
        return self._cursor.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> sqlite3.Cursor:
        self._rows = list(rows)
        return self._cursor.executemany(statement, self._rows)

    def store_checkpoint_checksum(self) -> None:
        (row,) = self._rows
        self._cursor.execute(_STORE_CHECKPOINT, (*row[:3], _compute_checksum(*row)))

    def store_writes_checksum(self) -> None:
        if not self._rows:
            return
        key = self._rows[0][:3]
        # A second batch may be ignored or replace the first, so the stored rows count.
        alone = len(set(map(_write_key, self._rows))) == len(self._rows)
        if (
            alone
            and self._cursor.execute(_STORE_FIRST_WRITES, (*key, _checksum_writes(self._rows))).rowcount == 1
        ):
            return
        self._cursor.execute(_STORE_WRITES, key)


def check_checkpoint(
    cursor: sqlite3.Cursor, name: str, key: ChainKey, checkpoint: str | None, *, with_ancestors: bool
) -> None:
    """Check a checkpoint (default: the newest); optionally its ancestors, too. Raises CheckpointCorruptError."""
    if checkpoint is None:
        checkpoint, newest = _newest_checkpoint(cursor, key), _newest_with_checksum(cursor, key)
        if checkpoint is None and newest is None:
            return
        if checkpoint != newest:
            gone = max(checkpoint or "", newest or "")
            raise _corruption_error(
                cursor, name, key, gone, "it is missing" if gone == newest else "it has no checksum"
            )
    assert checkpoint is not None
    found = None
    for found in _walk_ancestors(cursor, key, str(checkpoint)):
        if found.problem:
            raise _corruption_error(cursor, name, key, found.id, found.problem)
        if not with_ancestors:
            return
    end = found.parent if found else checkpoint
    if end is not None and _has_checksum(cursor, key, end):
        raise _corruption_error(cursor, name, key, end, "it is missing")


def check_all_checkpoints(cursor: sqlite3.Cursor, name: str, thread: str | None) -> None:
    """Check every checkpoint of a thread, or of all threads. Raises CheckpointCorruptError."""
    scope, values = ("", ()) if thread is None else ("WHERE thread_id = ?", (thread,))
    columns = "SELECT thread_id, checkpoint_ns, checkpoint_id FROM"
    listed = cursor.execute(f"{columns} takeover_checksums {scope}", values).fetchall()
    stored = cursor.execute(f"{columns} checkpoints {scope}", values).fetchall()
    for thread_id, namespace, checkpoint in dict.fromkeys((*stored, *listed)):
        check_checkpoint(
            cursor, name, ChainKey(str(thread_id), str(namespace)), str(checkpoint), with_ancestors=False
        )


class _CheckedCheckpoint(NamedTuple):
    id: str
    parent: str | None
    problem: str
    """The problem; empty without one."""


def _walk_ancestors(cursor: sqlite3.Cursor, key: ChainKey, checkpoint: str) -> Iterator[_CheckedCheckpoint]:
    """Yield the checkpoint and its ancestors, up to the first damaged one."""
    rows = None
    due = checkpoint
    while True:
        try:
            rows = rows or cursor.execute(_CHAIN, (*key, checkpoint))
            row = rows.fetchone()
        except sqlite3.OperationalError as error:
            if "user-defined" not in str(
                error
            ):  # SQLite passed values to our functions that were never written
                raise
            yield _CheckedCheckpoint(due, None, "it cannot be read")
            return
        if row is None:
            return
        id_, parent, now, checksum, writes, writes_now = row
        due, reason = str(parent), ""
        if checksum is None:
            reason = "it has no checksum"
        elif now != checksum:
            reason = "it does not match its checksum"
        elif writes != writes_now:
            reason = "its writes do not match their checksum"
        yield _CheckedCheckpoint(str(id_), parent, reason)
        if reason:
            return


def _newest_checkpoint(cursor: sqlite3.Cursor, key: ChainKey) -> str | None:
    row = cursor.execute(f"{_NEWEST.format('checkpoints', '')} LIMIT 1", key).fetchone()
    return str(row[0]) if row else None


def _newest_with_checksum(cursor: sqlite3.Cursor, key: ChainKey) -> str | None:
    query = _NEWEST.format("takeover_checksums", "AND checksum IS NOT NULL")
    row = cursor.execute(f"{query} LIMIT 1", key).fetchone()
    return str(row[0]) if row else None


def _has_checksum(cursor: sqlite3.Cursor, key: ChainKey, checkpoint: str) -> bool:
    query = (
        f"SELECT 1 FROM takeover_checksums s WHERE s.{_KEY_MATCHES.format('s')} = ?3 AND checksum IS NOT NULL"
    )
    return cursor.execute(query, (*key, checkpoint)).fetchone() is not None


def _corruption_error(
    cursor: sqlite3.Cursor, name: str, key: ChainKey, checkpoint: str, problem: str
) -> CheckpointCorruptError:
    good = _find_last_intact(cursor, key)
    cure = (
        f"fork from the last intact one: resume(..., checkpoint={good!r})"
        if good
        else "no earlier checkpoint is intact: restore the database from a copy, or start a new thread"
    )
    return CheckpointCorruptError(
        f"{name}: thread {key.thread!r}: checkpoint {checkpoint!r:.60} is damaged: {problem} ({cure})"
    )


def _find_last_intact(cursor: sqlite3.Cursor, key: ChainKey) -> str | None:
    """Return the newest checkpoint that is intact with all its ancestors."""
    parents: dict[str, str | None] = {}
    try:
        # From both tables: a damaged index hides checkpoints that can still be looked up.
        rows = [
            row for table in ("checkpoints", "takeover_checksums") for row in _list_ids(cursor, table, key)
        ]
        for id_ in sorted({str(row[0]) for row in rows}, reverse=True):
            found = next(_walk_ancestors(cursor, key, id_), None)
            if found is not None and not found.problem:
                parents[found.id] = found.parent
        for newest in parents:
            at: str | None = newest
            seen: set[str] = set()
            while at is not None and at in parents and at not in seen:
                seen.add(at)
                at = parents[at]
            if at is None or not (
                at in parents or _has_checksum(cursor, key, at) or _exists(cursor, key, at)
            ):
                return newest
    except sqlite3.Error:  # the damage goes further; the error that names the first damage is more useful
        return None
    return None


def _list_ids(cursor: sqlite3.Cursor, table: str, key: ChainKey) -> list[Any]:
    return cursor.execute(_NEWEST.format(table, ""), key).fetchall()


def _exists(cursor: sqlite3.Cursor, key: ChainKey, checkpoint: str) -> bool:
    query = f"SELECT 1 FROM checkpoints c WHERE c.{_KEY_MATCHES.format('c')} = ?3"
    return cursor.execute(query, (*key, checkpoint)).fetchone() is not None


def _compute_checksum(*values: Any) -> bytes:
    """Return the checksum of a row; it covers the type of each value."""
    return sha256(_pack_row(*values)).digest()[:16]


def _pack_row(*values: Any) -> bytes:
    return ormsgpack.packb(values)


def _checksum_writes(writes: list[Sequence[Any]]) -> bytes:
    """Return the checksum of a checkpoint's writes, in any order."""
    return _compute_checksum(*sorted(writes, key=_write_key))


class _WritesChecksum:
    """The SQLite aggregate `takeover_sum`."""

    def __init__(self) -> None:
        self._rows: list[Sequence[Any]] = []

    def step(self, row: bytes) -> None:
        self._rows.append(ormsgpack.unpackb(row))

    def finalize(self) -> bytes | None:
        return _checksum_writes(self._rows) if self._rows else None

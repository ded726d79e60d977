"""A checksum beside each checkpoint on SQLite, so that damage is an error and never an older or a thinner state.

The seal of a checkpoint covers its row, its parent's id among it; a second one covers the pending writes. A vanished
checkpoint leaves its seal behind, and a vanished write no longer adds up. Seals find damage, not forgery.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

import ormsgpack

from handoff.ledger import LedgerUnusable

_TABLE = """
    CREATE TABLE takeover_seals (
        thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL, checkpoint_id TEXT NOT NULL, seal BLOB, writes BLOB,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
    ) WITHOUT ROWID
"""
_SEAL = (
    "takeover_seal(c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.type, c.checkpoint, "
    "c.metadata)"
)
_WRITES = (
    "SELECT takeover_sum(w.thread_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.task_path, w.idx, w.channel, "
    "w.type, w.value) FROM writes w"
)
_OF_THIS = "thread_id = ?1 AND {0}.checkpoint_ns = ?2 AND {0}.checkpoint_id"
_SEAL_CHECKPOINT = """
    INSERT INTO takeover_seals VALUES (?1, ?2, ?3, ?4, NULL) ON CONFLICT DO UPDATE SET seal = excluded.seal
"""
_SEAL_FIRST_WRITES = f"""
    UPDATE takeover_seals AS s SET writes = ?4 WHERE s.{_OF_THIS.format("s")} = ?3 AND writes IS NULL
"""
_SEAL_WRITES = f"""
    INSERT INTO takeover_seals VALUES (?1, ?2, ?3, NULL, ({_WRITES} WHERE w.{_OF_THIS.format("w")} = ?3))
    ON CONFLICT DO UPDATE SET writes = excluded.writes
"""
_SEAL_ALL = f"""
    INSERT INTO takeover_seals SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, {_SEAL},
    ({_WRITES} WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
     AND w.checkpoint_id = c.checkpoint_id)
    FROM checkpoints c WHERE true
"""
# Rows are looked up one by one, as LangGraph looks them up: damage in an index hides a row from one way only.
_ROW = f"SELECT c.checkpoint_id AS id, c.parent_checkpoint_id AS parent, {_SEAL} AS seal FROM"
_CHAIN = f"""
    WITH RECURSIVE chain AS (
        {_ROW} checkpoints c WHERE c.{_OF_THIS.format("c")} = ?3
        UNION ALL {_ROW} chain CROSS JOIN checkpoints c ON c.{_OF_THIS.format("c")} = chain.parent
    )
    SELECT chain.id, chain.parent, chain.seal, s.seal, s.writes, ({_WRITES} WHERE w.{_OF_THIS.format("w")} = chain.id)
    FROM chain LEFT JOIN takeover_seals s ON s.{_OF_THIS.format("s")} = chain.id
"""
_name = itemgetter(3, 5)  # task and index
_NEWEST = (
    "SELECT checkpoint_id FROM {} WHERE thread_id = ? AND checkpoint_ns = ? {} ORDER BY checkpoint_id DESC"
)


class CheckpointCorruptError(LedgerUnusable, ValueError):
    """A checkpoint is not what was written, or has vanished; one line that names the last good one."""


class Place(NamedTuple):
    """Where a chain of checkpoints lies."""

    thread: str
    namespace: str


def prepare(connection: sqlite3.Connection) -> None:
    """Let the connection compute seals; create their table and seal what an earlier program wrote."""
    connection.create_function("takeover_seal", -1, _seal, deterministic=True)
    connection.create_aggregate("takeover_sum", -1, _Sum)  # type: ignore[arg-type]
    known = "SELECT 1 FROM sqlite_master WHERE name = 'takeover_seals'"
    if connection.execute(known).fetchone():
        return
    with closing(connection.cursor()) as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        try:
            if not cursor.execute(known).fetchone():
                cursor.execute(_TABLE)
                cursor.execute(_SEAL_ALL)
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


class Recorder:
    """A cursor that remembers the rows which LangGraph's saver writes by it, to seal them without reading them again."""

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

    def seal_checkpoint(self) -> None:
        (row,) = self._rows
        self._cursor.execute(_SEAL_CHECKPOINT, (*row[:3], _seal(*row)))

    def seal_writes(self) -> None:
        if not self._rows:
            return
        place = self._rows[0][:3]
        # A second batch may be ignored or replace the first: what counts is what is stored then.
        alone = len(set(map(_name, self._rows))) == len(self._rows)
        if alone and self._cursor.execute(_SEAL_FIRST_WRITES, (*place, _sum(self._rows))).rowcount == 1:
            return
        self._cursor.execute(_SEAL_WRITES, place)


def check(cursor: sqlite3.Cursor, name: str, place: Place, checkpoint: str | None, *, chain: bool) -> None:
    """Check a checkpoint, or the newest, and with `chain` its ancestors. Raises CheckpointCorruptError."""
    if checkpoint is None:
        checkpoint, sealed = _newest(cursor, place), _newest_sealed(cursor, place)
        if checkpoint is None and sealed is None:
            return
        if checkpoint != sealed:
            gone = max(checkpoint or "", sealed or "")
            raise _corrupt(
                cursor, name, place, gone, "it has vanished" if gone == sealed else "it has no seal"
            )
    assert checkpoint is not None
    found = None
    for found in _walk(cursor, place, str(checkpoint)):
        if found.reason:
            raise _corrupt(cursor, name, place, found.id, found.reason)
        if not chain:
            return
    end = found.parent if found else checkpoint
    if end is not None and _is_sealed(cursor, place, end):
        raise _corrupt(cursor, name, place, end, "it has vanished")


def check_all(cursor: sqlite3.Cursor, name: str, thread: str | None) -> None:
    """Check every checkpoint of a thread, or of all threads. Raises CheckpointCorruptError."""
    scope, values = ("", ()) if thread is None else ("WHERE thread_id = ?", (thread,))
    columns = "SELECT thread_id, checkpoint_ns, checkpoint_id FROM"
    sealed = cursor.execute(f"{columns} takeover_seals {scope}", values).fetchall()
    there = cursor.execute(f"{columns} checkpoints {scope}", values).fetchall()
    for thread_id, namespace, checkpoint in dict.fromkeys((*there, *sealed)):
        check(cursor, name, Place(str(thread_id), str(namespace)), str(checkpoint), chain=False)


class _Found(NamedTuple):
    id: str
    parent: str | None
    reason: str
    """What is wrong with it; empty if nothing is."""


def _walk(cursor: sqlite3.Cursor, place: Place, checkpoint: str) -> Iterator[_Found]:
    """The checkpoint and its ancestors, up to the first damaged one."""
    rows = None
    due = checkpoint
    while True:
        try:
            rows = rows or cursor.execute(_CHAIN, (*place, checkpoint))
            row = rows.fetchone()
        except sqlite3.OperationalError as error:
            if "user-defined" not in str(error):  # it gave our own functions what nobody wrote
                raise
            yield _Found(due, None, "it cannot be read")
            return
        if row is None:
            return
        id_, parent, now, seal, writes, writes_now = row
        due, reason = str(parent), ""
        if seal is None:
            reason = "it has no seal"
        elif now != seal:
            reason = "it does not match its seal"
        elif writes != writes_now:
            reason = "its writes do not match their seal"
        yield _Found(str(id_), parent, reason)
        if reason:
            return


def _newest(cursor: sqlite3.Cursor, place: Place) -> str | None:
    row = cursor.execute(f"{_NEWEST.format('checkpoints', '')} LIMIT 1", place).fetchone()
    return str(row[0]) if row else None


def _newest_sealed(cursor: sqlite3.Cursor, place: Place) -> str | None:
    asked = _NEWEST.format("takeover_seals", "AND seal IS NOT NULL")
    row = cursor.execute(f"{asked} LIMIT 1", place).fetchone()
    return str(row[0]) if row else None


def _is_sealed(cursor: sqlite3.Cursor, place: Place, checkpoint: str) -> bool:
    asked = f"SELECT 1 FROM takeover_seals s WHERE s.{_OF_THIS.format('s')} = ?3 AND seal IS NOT NULL"
    return cursor.execute(asked, (*place, checkpoint)).fetchone() is not None


def _corrupt(
    cursor: sqlite3.Cursor, name: str, place: Place, checkpoint: str, reason: str
) -> CheckpointCorruptError:
    good = _last_good(cursor, place)
    cure = (
        f"fork from the last good one: resume(..., checkpoint={good!r})"
        if good
        else "no earlier checkpoint is intact: restore the database from a copy, or start a new thread"
    )
    return CheckpointCorruptError(
        f"{name}: thread {place.thread!r}: checkpoint {checkpoint!r:.60} is damaged: {reason}; {cure}"
    )


def _last_good(cursor: sqlite3.Cursor, place: Place) -> str | None:
    """The newest checkpoint that is whole with all its ancestors."""
    parents: dict[str, str | None] = {}
    try:
        # From both tables, because an index that is damaged hides checkpoints that can still be looked up.
        rows = [row for table in ("checkpoints", "takeover_seals") for row in _listed(cursor, table, place)]
        for id_ in sorted({str(row[0]) for row in rows}, reverse=True):
            found = next(_walk(cursor, place, id_), None)
            if found is not None and not found.reason:
                parents[found.id] = found.parent
        for newest in parents:
            at: str | None = newest
            seen: set[str] = set()
            while at is not None and at in parents and at not in seen:
                seen.add(at)
                at = parents[at]
            if at is None or not (
                at in parents or _is_sealed(cursor, place, at) or _is_there(cursor, place, at)
            ):
                return newest
    except sqlite3.Error:  # the damage reaches further; the line that names it is worth more
        return None
    return None


def _listed(cursor: sqlite3.Cursor, table: str, place: Place) -> list[Any]:
    return cursor.execute(_NEWEST.format(table, ""), place).fetchall()


def _is_there(cursor: sqlite3.Cursor, place: Place, checkpoint: str) -> bool:
    asked = f"SELECT 1 FROM checkpoints c WHERE c.{_OF_THIS.format('c')} = ?3"
    return cursor.execute(asked, (*place, checkpoint)).fetchone() is not None


def _seal(*values: Any) -> bytes:
    """The checksum of a row; the type of each value is part of it."""
    return sha256(ormsgpack.packb(values)).digest()[:16]


def _sum(writes: list[Sequence[Any]]) -> bytes:
    """The checksum of a checkpoint's writes, in whatever order they come."""
    return _seal(*sorted(writes, key=_name))


class _Sum:
    """`_sum` for SQLite."""

    def __init__(self) -> None:
        self._rows: list[Sequence[Any]] = []

    def step(self, *values: Any) -> None:
        self._rows.append(values)

    def finalize(self) -> bytes | None:
        return _sum(self._rows) if self._rows else None

"""The store of a directory's snapshots: one SQLite database with blocks and trees by digest."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from langgraph_takeover.sandbox.interface import (
    OutOfDiskError,
    SandboxUnavailableError,
    SnapshotCorruptError,
)

BLOCK_BYTES = 1024**2
"""Bytes of a file that are stored under one digest."""
_WAIT_S = 30.0
"""How long a process waits for another one that uses the same store."""
_FORMAT = 1
_DATABASE = "snapshots.sqlite"
_DIGEST_CHARS = 64
_MIN_FREE_BYTES = 256 * 1024**2
_BYTES_BETWEEN_CHECKS = 64 * 1024**2
_SCHEMA = """
CREATE TABLE store(directory TEXT NOT NULL, settings TEXT NOT NULL);
CREATE TABLE objects(digest TEXT PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE snapshots(number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, facts TEXT NOT NULL, root TEXT NOT NULL);
CREATE TABLE seen(path BLOB PRIMARY KEY, names BLOB, states BLOB, children TEXT, tree TEXT, files INTEGER, left_out TEXT);
CREATE TABLE restore(target TEXT NOT NULL, before TEXT NOT NULL);
"""
EntryKind = Literal["file", "link", "directory", "unsaved"]


class SavedEntry(NamedTuple):
    """One name of a saved directory."""

    kind: EntryKind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    content: str = ""
    """Digests of a file's blocks, a link's target, the digest of a directory's tree, or why nothing is saved."""

    def list_blocks(self) -> list[str]:
        """List the digests of a file's blocks."""
        return [
            self.content[start : start + _DIGEST_CHARS]
            for start in range(0, len(self.content), _DIGEST_CHARS)
        ]


Tree = dict[str, SavedEntry]
"""The names of a directory."""


class SeenDirectory(NamedTuple):
    """A directory as the latest snapshot found it, so that what has not changed is not read again."""

    names: bytes
    states: bytes
    """The state of each name, in the order of the names."""
    children: str
    """What was saved of the directories in it."""
    tree: str
    files: int
    left_out: str
    """Names that were not saved, each with the reason, as JSON."""


class DirectoryStore:
    """An open store. No other process can use it until it is closed."""

    def __init__(self, connection: sqlite3.Connection, location: Path) -> None:
        self._connection = connection
        self._location = location
        self._bytes_before_check = _BYTES_BETWEEN_CHECKS
        self.added_bytes = 0
        """Bytes of file content and trees that were new to the store."""

    @contextlib.contextmanager
    def change(self, *, keep: bool = True) -> Iterator[None]:
        """A transaction: at its end, everything inside is durable, or nothing is if it fails or without `keep`."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            if keep:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def add(self, content: bytes) -> str:
        """Store a block or a tree, if it is new, and return its digest. Raises OutOfDiskError before the disk is full."""
        digest = hashlib.sha256(content).hexdigest()
        added = self._connection.execute("INSERT OR IGNORE INTO objects VALUES (?, ?)", (digest, content))
        if added.rowcount:
            self.added_bytes += len(content)
            self._bytes_before_check -= len(content)
            if self._bytes_before_check < 0:
                self._bytes_before_check = _BYTES_BETWEEN_CHECKS
                disk = os.statvfs(self._location)
                if disk.f_bavail * disk.f_frsize < _MIN_FREE_BYTES:
                    raise _make_disk_full_error(self._location)
        return digest

    def read(self, digest: str) -> bytes:
        """Return a block or a tree. Raises SnapshotCorruptError."""
        row = self._connection.execute("SELECT content FROM objects WHERE digest = ?", (digest,)).fetchone()
        if row is None or hashlib.sha256(row[0]).hexdigest() != digest:
            raise SnapshotCorruptError(
                f"{self._location}: {digest:.12} is {'damaged' if row else 'missing'} (verify lists damaged snapshots)"
            )
        return bytes(row[0])

    def add_tree(self, tree: Tree) -> str:
        """Store a tree and return its digest."""
        return self.add(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode())

    def read_tree(self, digest: str) -> Tree:
        """Return a tree. Raises SnapshotCorruptError."""
        return {name: SavedEntry(*values) for name, values in json.loads(self.read(digest)).items()}

    def add_snapshot(self, snapshot_id: str, facts: str, root: SavedEntry) -> None:
        """Store a snapshot: facts about it as JSON, and its root."""
        values = (snapshot_id, facts, json.dumps(root))
        self._connection.execute("INSERT INTO snapshots(id, facts, root) VALUES (?, ?, ?)", values)

    def list_snapshots(self) -> list[str]:
        """The facts of each snapshot, the oldest first."""
        return [facts for (facts,) in self._connection.execute("SELECT facts FROM snapshots ORDER BY number")]

    def read_root(self, snapshot_id: str) -> SavedEntry:
        """Return the root of a snapshot. Raises SnapshotCorruptError."""
        found = self._connection.execute("SELECT root FROM snapshots WHERE id = ?", (snapshot_id,)).fetchone()
        if found is None:
            raise SnapshotCorruptError(f"{self._location}: snapshot not found: {snapshot_id:.80} (see list)")
        return SavedEntry(*json.loads(found[0]))

    def read_seen(self, settings: str) -> dict[bytes, SeenDirectory]:
        """Return the directories as last seen; none if they were read with other settings."""
        if self._connection.execute("SELECT settings FROM store").fetchone() != (settings,):
            self._connection.execute("DELETE FROM seen")
            self._connection.execute("UPDATE store SET settings = ?", (settings,))
        return {path: SeenDirectory(*row) for path, *row in self._connection.execute("SELECT * FROM seen")}

    def update_seen(self, changed: dict[bytes, SeenDirectory], gone: Iterable[bytes]) -> None:
        """Replace what was seen of some directories."""
        self._connection.executemany("DELETE FROM seen WHERE path = ?", ((path,) for path in gone))
        rows = ((path, *row) for path, row in changed.items())
        self._connection.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def begin_restore(self, target: str, before: str) -> None:
        """Note that the directory is being changed from the snapshot `before` to `target`."""
        self.end_restore()
        self._connection.execute("INSERT INTO restore VALUES (?, ?)", (target, before))

    def end_restore(self) -> None:
        """Note that the directory is not being changed."""
        self._connection.execute("DELETE FROM restore")

    def find_restore(self) -> str:
        """Return the target of an unfinished restore; empty if there is none."""
        found = self._connection.execute("SELECT target FROM restore").fetchone()
        return str(found[0]) if found else ""

    def keep_only(self, snapshot_ids: Collection[str]) -> int:
        """Remove all other snapshots, and what only they need; return the number of bytes freed on disk."""
        database = self._location / _DATABASE
        size = database.stat().st_size
        with self.change():
            known = {found for (found,) in self._connection.execute("SELECT id FROM snapshots")}
            unfinished = self._connection.execute("SELECT target, before FROM restore").fetchall()
            kept = known & {*snapshot_ids, *itertools.chain(*unfinished)}
            self._connection.executemany(
                "DELETE FROM snapshots WHERE id = ?", ((each,) for each in known - kept)
            )
            live: set[str] = set()
            for each in kept:
                self._collect_digests(self.read_root(each), live)
            stored = [digest for (digest,) in self._connection.execute("SELECT digest FROM objects")]
            dead = ((digest,) for digest in stored if digest not in live)
            self._connection.executemany("DELETE FROM objects WHERE digest = ?", dead)
            self._connection.execute("DELETE FROM seen WHERE tree NOT IN (SELECT digest FROM objects)")
        self._connection.executescript("PRAGMA incremental_vacuum")  # `execute` frees one page only
        return size - database.stat().st_size

    def list_damaged(self) -> list[str]:
        """Read everything; return the ids of the snapshots that lack content or have damaged content, the oldest first."""
        sound = {
            digest
            for digest, content in self._connection.execute("SELECT digest, content FROM objects")
            if hashlib.sha256(content).hexdigest() == digest
        }
        damaged = []
        for (snapshot_id,) in self._connection.execute("SELECT id FROM snapshots ORDER BY number").fetchall():
            needed: set[str] = set()
            with contextlib.suppress(SnapshotCorruptError):
                self._collect_digests(self.read_root(snapshot_id), needed)
                if needed <= sound:
                    continue
            damaged.append(snapshot_id)
        return damaged

    def _collect_digests(self, root: SavedEntry, found: set[str]) -> None:
        waiting = [root]
        while waiting:
            entry = waiting.pop()
            if entry.kind == "file":
                found.update(entry.list_blocks())
            elif entry.kind == "directory" and entry.content not in found:
                found.add(entry.content)
                waiting += self.read_tree(entry.content).values()


@contextlib.contextmanager
def open_store(location: Path, directory: Path) -> Iterator[DirectoryStore]:
    """Open the store of a directory's snapshots, or make one; wait at most 30 s for another process.

    Raises SandboxUnavailableError, OutOfDiskError, SnapshotCorruptError.
    """
    try:
        location.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailableError(f"{location}: {error.strerror} (pass another store)") from error
    try:
        with contextlib.closing(_connect(location, str(directory))) as connection:
            yield DirectoryStore(connection, location)
    except sqlite3.DatabaseError as error:
        raise _translate_error(location, error) from error


def _connect(location: Path, directory: str) -> sqlite3.Connection:
    connection = sqlite3.connect(location / _DATABASE, timeout=_WAIT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA synchronous = EXTRA")
        # The lock of the first transaction stays until the connection is closed.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found == 0:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute("INSERT INTO store VALUES (?, '')", (_encode(directory),))
            connection.execute(f"PRAGMA user_version = {_FORMAT}")
        elif found != _FORMAT:
            raise SandboxUnavailableError(
                f"{location}: written by another version (pass another store, or use that version)"
            )
        (owner,) = connection.execute("SELECT directory FROM store").fetchone()
        if owner != _encode(directory):
            raise SandboxUnavailableError(
                f"{location}: has the snapshots of {owner:.300} (pass another store for {_encode(directory):.300})"
            )
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _encode(directory: str) -> str:
    return json.dumps(directory)


def _translate_error(location: Path, error: sqlite3.DatabaseError) -> SandboxUnavailableError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return _make_disk_full_error(location)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return SandboxUnavailableError(
            f"{location}: another process uses the store (wait for it, and try again)"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return SnapshotCorruptError(f"{location}: the store is damaged: {error} (use a copy, or a new store)")
    return SandboxUnavailableError(f"{location}: {error} (make the store readable and writable)")


def _make_disk_full_error(location: Path) -> OutOfDiskError:
    return OutOfDiskError(
        f"{location}: the disk is full; nothing is stored (make room, or prune old snapshots)"
    )

"""Lists of a thread's checkpoints, element by element: a checkpoint that adds to a list stores what it added.

A list becomes a tree of rows whose keys are digests of their content: elements below, and rows of up to 128 digests above
them. Where one row of digests ends depends on the digests alone, so that equal parts of two lists are the same rows.
In the checkpoint, the list is replaced by a dict that names the root.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from operator import is_
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_takeover.graph.checkpoints.inspection import KEY_MATCHES, checkpoint_key, list_needless
from langgraph_takeover.graph.usage_errors import CheckpointCorruptError

Fetch = Callable[[str, Sequence[Any]], Awaitable[Sequence[Sequence[Any]]]]
"""Executes a statement whose values are `?`, and returns its rows."""
_CREATE_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS takeover_list_rows (
        thread_id TEXT NOT NULL, digest {0} NOT NULL, type TEXT NOT NULL, value {0} NOT NULL,
        PRIMARY KEY (thread_id, digest)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS takeover_list_threads (
        thread_id TEXT PRIMARY KEY, token TEXT NOT NULL, written_at DOUBLE PRECISION NOT NULL
    )
    """,
)
"""Of SQLite and PostgreSQL, but for the name of the type of bytes."""
_WRITE_THREAD = """
    INSERT INTO takeover_list_threads VALUES (?, ?, ?)
    ON CONFLICT (thread_id) DO UPDATE SET written_at = excluded.written_at
"""
_DELETE_NEEDLESS_BLOBS = """
    DELETE FROM checkpoint_blobs b WHERE b.thread_id = ? AND NOT EXISTS (
        SELECT 1 FROM checkpoints c WHERE c.thread_id = b.thread_id AND c.checkpoint_ns = b.checkpoint_ns
        AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version
    )
"""
"""Of PostgreSQL, after checkpoints were deleted."""
_READ_TOKEN = "SELECT token FROM takeover_list_threads WHERE thread_id = ?"
_KEY, _ESCAPED = "takeover_list", "takeover_value"
_MIN_LENGTH = 4
"""Shorter lists stay in the checkpoint."""
_MIN_DIGESTS, _MAX_DIGESTS, _LAST_BYTE = 8, 128, 10
"""Limits of a row of digests. Between them, a digest whose first byte is below the third number ends the row."""
_DIGEST_SIZE = 16
_ROWS_PER_STATEMENT = 200
_MAX_ELEMENTS = 50_000
"""How many elements of recent lists are remembered."""
_MAX_CHECKPOINTS = 512
_TABLES_LOCK = 8402160
_ATOMS = frozenset((str, int, float, bool, bytes, type(None)))
_Row = tuple[str, bytes]
"""Type and value."""


class _Elements:
    """Elements with their digests. One that was changed in place since, or may have been, counts as another."""

    def __init__(self) -> None:
        self.digests: list[bytes] = []
        self._values: list[Any] = []
        self._contents: list[Any] = []
        self._copies: list[Any] = []
        """What the contents were when the elements were added."""

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: Any, digest: bytes) -> None:
        content = (vars(value), value.__pydantic_extra__) if isinstance(value, BaseMessage) else value
        if type(value) in _ATOMS:
            content = None  # it cannot change; and a NaN does not equal itself
        try:
            copied = _copy(content)
        except TypeError:  # not JSON-like: a change in place cannot be seen
            content, copied = object(), None
        self._values.append(value)
        self._contents.append(content)
        self._copies.append(copied)
        self.digests.append(digest)

    def take_over(self, values: Sequence[Any]) -> tuple[_Elements, dict[int, bytes]]:
        """Return the first elements, if these values begin with all of them; else their digests by identity."""
        taken, count = _Elements(), len(self)
        if (
            len(values) >= count
            and all(map(is_, self._values, values))
            and self._contents == self._copies  # faster than one by one
        ):
            for name, known in vars(self).items():
                setattr(taken, name, [*known])
            return taken, {}
        known = zip(self._values, self._contents, self._copies, self.digests, strict=True)
        return taken, {id(value): digest for value, content, copied, digest in known if content == copied}


@dataclass
class _StoredList:
    """A list whose rows are in the database since the thread has this token."""

    token: str | None
    root: str = ""
    elements: _Elements = field(default_factory=_Elements)
    nodes: frozenset[bytes] = frozenset()


class EncodedCheckpoint(NamedTuple):
    """A checkpoint without the elements of its lists."""

    config: Mapping[str, Any]
    original: Any
    checkpoint: Any
    lists: dict[str, _StoredList]
    rows: dict[bytes, _Row]
    """Those that are not in the database yet."""

    @property
    def key(self) -> tuple[str, str, str]:
        at = self.config["configurable"]
        return str(at["thread_id"]), str(at.get("checkpoint_ns") or ""), str(self.original["id"])


class ListStore:
    """Stores the lists of one saver's checkpoints, and remembers the rows of recent ones.

    With `notes_time`, the time of each thread's last checkpoint is stored even if it has no lists.
    """

    def __init__(self, *, notes_time: bool = False) -> None:
        self.has_tables, self._notes_time = False, notes_time
        self._lock = threading.Lock()
        self._latest: OrderedDict[tuple[str, str, str], _StoredList] = OrderedDict()
        """By thread, namespace and channel."""
        self._checkpoints: OrderedDict[tuple[str, str, str], dict[str, tuple[Any, str]]] = OrderedDict()
        """Version and root of each list of recent checkpoints."""

    # Writing

    def encode(
        self, serde: Any, config: Mapping[str, Any], checkpoint: Any, *, is_new: bool = False
    ) -> EncodedCheckpoint:
        """Return a checkpoint without the elements of its lists; with `is_new`, no row is taken for stored.

        Then `store` it, and `remember` it after the commit.
        """
        encoded = EncodedCheckpoint(config, checkpoint, {**checkpoint, "channel_values": {}}, {}, {})
        thread, namespace, _ = encoded.key
        parent = (thread, namespace, str(config["configurable"].get("checkpoint_id")))
        with self._lock:
            before = {} if is_new else self._checkpoints.get(parent, {})
        for channel, value in checkpoint["channel_values"].items():
            if isinstance(value, dict) and _KEY in value:
                value = {_KEY: None, _ESCAPED: value}
            elif type(value) is list and len(value) >= _MIN_LENGTH:
                with self._lock:
                    known = None if is_new else self._latest.get((thread, namespace, channel))
                known = known or _StoredList(None)
                version, root = before.get(channel, (None, None))
                if root != known.root or version != checkpoint["channel_versions"].get(channel):
                    known = _store_list(serde, known, value, encoded.rows)
                encoded.lists[channel] = known
                value = {_KEY: known.root}
            encoded.checkpoint["channel_values"][channel] = value
        return encoded

    async def store(self, fetch: Fetch, serde: Any, encoded: EncodedCheckpoint) -> EncodedCheckpoint:
        """Store the new rows, in the transaction that will store the returned checkpoint."""
        thread = encoded.key[0]
        if not encoded.lists and not self._notes_time:
            return encoded
        await fetch(_WRITE_THREAD, (thread, secrets.token_hex(8), time.time()))
        ((token,),) = await fetch(_READ_TOKEN, (thread,))
        if any(each.token not in (None, token) for each in encoded.lists.values()):  # rows were deleted since
            encoded = self.encode(serde, encoded.config, encoded.original, is_new=True)
        for each in encoded.lists.values():
            each.token = token
        await _insert(fetch, thread, encoded.rows)
        return encoded

    def remember(self, encoded: EncodedCheckpoint) -> None:
        """Remember the rows of a checkpoint that is committed."""
        thread, namespace, _ = encoded.key
        versions = encoded.checkpoint["channel_versions"]
        with self._lock:
            self._checkpoints[encoded.key] = {
                channel: (versions.get(channel), each.root) for channel, each in encoded.lists.items()
            }
            while len(self._checkpoints) > _MAX_CHECKPOINTS:
                self._checkpoints.popitem(last=False)
            for channel, each in encoded.lists.items():
                self._remember_list((thread, namespace, channel), each)

    def _remember_list(self, key: tuple[str, str, str], stored: _StoredList) -> None:
        self._latest[key] = stored
        self._latest.move_to_end(key)
        total = sum(len(each.elements) for each in self._latest.values())
        while total > _MAX_ELEMENTS and len(self._latest) > 1:
            total -= len(self._latest.popitem(last=False)[1].elements)

    def forget(self, thread: str) -> None:
        """Forget a thread's rows: a transaction that joined a larger one may not be committed."""
        with self._lock:
            for known in (self._latest, self._checkpoints):
                for key in [each for each in known if each[0] == thread]:
                    del known[key]

    # Reading

    async def decode(
        self, fetch: Fetch, serde: Any, stored: CheckpointTuple, *, is_latest: bool = False
    ) -> CheckpointTuple:
        """Return a stored checkpoint with its lists. Raises CheckpointCorruptError.

        With `is_latest` their elements are remembered: the next checkpoint probably has them too.
        """
        at = stored.config["configurable"]
        thread, namespace = str(at["thread_id"]), str(at.get("checkpoint_ns") or "")
        values = dict(stored.checkpoint["channel_values"])
        tokens = await fetch(_READ_TOKEN, (thread,)) if is_latest else ()
        for channel, value in values.items():
            if not is_encoded(value) or value[_KEY] is None:
                values[channel] = value[_ESCAPED] if is_encoded(value) else value
                continue
            values[channel], digests, nodes = await _read_list(fetch, serde, thread, value[_KEY])
            if tokens:
                known = _StoredList(tokens[0][0], value[_KEY], nodes=frozenset(nodes))
                for element, digest in zip(values[channel], digests, strict=True):
                    known.elements.add(element, digest)
                with self._lock:
                    self._remember_list((thread, namespace, channel), known)
        return stored._replace(checkpoint={**stored.checkpoint, "channel_values": values})

    async def decode_seeds(
        self, fetch: Fetch, serde: Any, config: Mapping[str, Any], histories: Mapping[str, Any]
    ) -> None:
        """Replace the seeds of histories of delta channels by the values that they stand for."""
        for history in histories.values():
            if is_encoded(seed := history.get("seed")):
                thread = str(config["configurable"]["thread_id"])
                history["seed"] = (
                    seed[_ESCAPED]
                    if seed[_KEY] is None
                    else (await _read_list(fetch, serde, thread, seed[_KEY]))[0]
                )


def has_encoded(stored: CheckpointTuple) -> bool:
    """Whether a stored checkpoint has lists to decode."""
    return any(map(is_encoded, stored.checkpoint["channel_values"].values()))


def is_encoded(value: Any) -> bool:
    """Whether a channel's stored value stands for another."""
    return isinstance(value, dict) and _KEY in value


def returns_rows(statement: str) -> bool:
    """Whether a statement has rows to fetch."""
    return statement.lstrip().startswith("SELECT")


async def create_tables(fetch: Fetch, *, is_postgres: bool) -> None:
    """Create the tables if they are missing."""
    if is_postgres:
        # Two processes must not both create them, and a role without the right to create must not try.
        await fetch(f"SELECT pg_advisory_xact_lock({_TABLES_LOCK})", ())
        if (await fetch("SELECT to_regclass('takeover_list_threads')", ()))[0][0] is not None:
            return
    for statement in _CREATE_TABLES:
        await fetch(statement.format("BYTEA" if is_postgres else "BLOB"), ())


async def delete_thread(fetch: Fetch, thread: str) -> None:
    """Delete all rows of a thread's lists."""
    for table in ("takeover_list_rows", "takeover_list_threads"):
        await fetch(f"DELETE FROM {table} WHERE thread_id = ?", (thread,))


async def prune_thread(
    fetch: Fetch, thread: str, found: Sequence[CheckpointTuple], *, tables: Sequence[str], keep: int = 1
) -> None:
    """Delete what a thread's newest checkpoints do not need, from tables that have their keys, and from ours.

    `found` are all its checkpoints as they are stored, newest first.
    """
    needless = {*list_needless(found, keep)}
    for key in needless:
        for table in tables:
            await fetch(f"DELETE FROM {table} WHERE {KEY_MATCHES.format('?')}", key)
    if "checkpoint_writes" in tables:
        await fetch(_DELETE_NEEDLESS_BLOBS, (thread,))
    await _delete_unused(fetch, thread, (each for each in found if checkpoint_key(each) not in needless))


async def _delete_unused(fetch: Fetch, thread: str, kept: Iterable[CheckpointTuple]) -> None:
    """Delete the rows that none of a thread's remaining checkpoints needs."""
    changed = "UPDATE takeover_list_threads SET token = ? WHERE thread_id = ?"
    await fetch(changed, (secrets.token_hex(8), thread))
    used: set[bytes] = set()
    roots = {
        value[_KEY]
        for each in kept
        for value in each.checkpoint["channel_values"].values()
        if is_encoded(value) and value[_KEY] is not None
    }
    for root in roots:
        digests, nodes = await _read_digests(fetch, thread, root)
        used.update(digests, nodes)
    rows = await fetch("SELECT digest FROM takeover_list_rows WHERE thread_id = ?", (thread,))
    unused = [each for each in (bytes(row[0]) for row in rows) if each not in used]
    for begin in range(0, len(unused), _ROWS_PER_STATEMENT):
        batch = unused[begin : begin + _ROWS_PER_STATEMENT]
        places = ", ".join("?" * len(batch))
        await fetch(
            f"DELETE FROM takeover_list_rows WHERE thread_id = ? AND digest IN ({places})", (thread, *batch)
        )


async def list_expired(fetch: Fetch, before: float) -> list[str]:
    """List the threads whose last checkpoint was written before a time, in seconds since the epoch."""
    rows = await fetch("SELECT thread_id FROM takeover_list_threads WHERE written_at < ?", (before,))
    return [str(row[0]) for row in rows]


def _store_list(serde: Any, latest: _StoredList, values: list[Any], rows: dict[bytes, _Row]) -> _StoredList:
    """Return a list as stored, and add the rows that are not in the database yet to `rows`."""
    elements, known = latest.elements.take_over(values)
    for value in values[len(elements) :]:
        digest = known.get(id(value))  # the latest list holds its elements, so that no other has the identity
        if digest is None:
            row = serde.dumps_typed(value)
            digest = _digest(*row)
            rows[digest] = row
        elements.add(value, digest)
    digests: Sequence[bytes] = elements.digests
    nodes: set[bytes] = set()
    level = 0
    while level == 0 or len(digests) > 1:
        level, groups = level + 1, [b"".join(each) for each in _group(digests)]
        digests = [_digest("", each) for each in groups]
        for digest, group in zip(digests, groups, strict=True):
            nodes.add(digest)
            if digest not in latest.nodes:
                rows[digest] = ("", group)
    return _StoredList(latest.token, f"{level}:{digests[0].hex()}", elements, frozenset(nodes))


def _group(digests: Sequence[bytes]) -> list[list[bytes]]:
    groups: list[list[bytes]] = [[]]
    for digest in digests:
        if len(groups[-1]) == _MAX_DIGESTS or (
            len(groups[-1]) >= _MIN_DIGESTS and groups[-1][-1][0] < _LAST_BYTE
        ):
            groups.append([])
        groups[-1].append(digest)
    return groups


def _copy(value: Any) -> Any:
    """Return a deep copy, which shares text. Raises TypeError for anything but JSON-like values."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {_copy(name): _copy(each) for name, each in value.items()}
    if kind is list:
        return [_copy(each) for each in value]
    if kind is tuple:
        return tuple(_copy(each) for each in value)
    raise TypeError(kind.__name__)


def _digest(kind: str, value: bytes) -> bytes:
    return blake2b(value, digest_size=_DIGEST_SIZE, person=_mark_kind(kind)).digest()


@cache
def _mark_kind(kind: str) -> bytes:
    """Return what keeps equal bytes of different types apart."""
    return blake2b(kind.encode(), digest_size=16).digest()


async def _insert(fetch: Fetch, thread: str, rows: Mapping[bytes, _Row]) -> None:
    items = [(thread, digest, *row) for digest, row in rows.items()]
    for begin in range(0, len(items), _ROWS_PER_STATEMENT):
        batch = items[begin : begin + _ROWS_PER_STATEMENT]
        places = ", ".join(["(?, ?, ?, ?)"] * len(batch))
        await fetch(
            f"INSERT INTO takeover_list_rows VALUES {places} ON CONFLICT DO NOTHING",
            [value for row in batch for value in row],
        )


async def _read_list(
    fetch: Fetch, serde: Any, thread: str, root: str
) -> tuple[list[Any], list[bytes], set[bytes]]:
    """Return a list, the digests of its elements, and those of the rows above them."""
    digests, nodes = await _read_digests(fetch, thread, root)
    rows = await _load(fetch, thread, digests)
    return [serde.loads_typed(rows[each]) for each in digests], digests, nodes


async def _read_digests(fetch: Fetch, thread: str, root: str) -> tuple[list[bytes], set[bytes]]:
    """Return the digests of a list's elements, and those of the rows above them."""
    levels, _, name = root.partition(":")
    digests, nodes = [bytes.fromhex(name)], set[bytes]()
    for _ in range(int(levels)):
        nodes.update(digests)
        rows = await _load(fetch, thread, digests)
        joined = b"".join(rows[each][1] for each in digests)
        digests = [joined[at : at + _DIGEST_SIZE] for at in range(0, len(joined), _DIGEST_SIZE)]
    return digests, nodes


async def _load(fetch: Fetch, thread: str, digests: Iterable[bytes]) -> dict[bytes, _Row]:
    """Return rows by their digests. Raises CheckpointCorruptError."""
    wanted = [*dict.fromkeys(digests)]
    rows: dict[bytes, _Row] = {}
    for begin in range(0, len(wanted), _ROWS_PER_STATEMENT):
        batch = wanted[begin : begin + _ROWS_PER_STATEMENT]
        places = ", ".join("?" * len(batch))
        found = await fetch(
            f"SELECT digest, type, value FROM takeover_list_rows WHERE thread_id = ? AND digest IN ({places})",
            (thread, *batch),
        )
        for digest, kind, value in found:
            if _digest(kind, bytes(value)) != bytes(digest):
                raise CheckpointCorruptError(
                    f"thread {thread!r:.60}: an element of a list does not match its digest (restore the database from a "
                    "backup)"
                )
            rows[bytes(digest)] = (kind, bytes(value))
    if len(rows) < len(wanted):
        raise CheckpointCorruptError(
            f"thread {thread!r:.60}: {len(wanted) - len(rows)} rows of a list are missing (resume from another checkpoint, "
            "or restore the database from a backup)"
        )
    return rows

"""Savers that write a checkpoint only while the writer holds the thread's lease, checked in the same transaction."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointTuple,
    copy_checkpoint,
    get_checkpoint_id,
)
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from sqlalchemy import Connection, make_url

from langgraph_takeover.base.awaiting import run_without_loop
from langgraph_takeover.base.failures import clean_up, run_all
from langgraph_takeover.graph.checkpoints import checksums, list_storage
from langgraph_takeover.graph.checkpoints.checksums import WriteRecorder
from langgraph_takeover.graph.checkpoints.inspection import (
    Writes,
    chain_key,
    drop_failed_writes,
    explain_unstorable_values,
    require_lease,
    thread_config,
)
from langgraph_takeover.graph.checkpoints.list_storage import (
    ListStore,
    has_encoded,
    returns_rows,
)
from langgraph_takeover.handoff.ledger import FencedError, Lease, Ledger, LedgerUnavailableError
from langgraph_takeover.handoff.ledger.database import (
    BUSY_S,
    CLOSED,
    ERASE_DELETED,
    defer_signals,
    repeat_after_loss,
)
from langgraph_takeover.handoff.ledger.leases import SELECT_LEASE
from langgraph_takeover.handoff.ledger.store import DELETE_THREAD
from langgraph_takeover.nodes.session.pending_states import PendingStates
from langgraph_takeover.nodes.session.workers import Workers, default_workers


class HomeSaver(BaseCheckpointSaver[str]):
    """Makes each asynchronous call in a thread of the home; writes no checkpoint before the states that it names."""

    workers: Workers
    pending: PendingStates
    """The states of the thread's sandbox that are being saved: writes wait for them, in the background."""
    holds_back = False
    """Whether a write waits for these states itself: LangGraph writes in the background, and the run ends when it has.

    Otherwise it is made later, and whoever runs the graph calls `PendingStates.settle` at its end.
    """
    deletion: Callable[[], AbstractContextManager[None]] = nullcontext
    """Surrounds the deletion of the thread: nothing else happens on it meanwhile, and its files are removed afterwards."""

    def put(self, config: RunnableConfig, checkpoint: Any, *args: Any) -> RunnableConfig:
        def write() -> None:
            self._put(config, checkpoint, *args)

        if not self._defer(config, write, str(checkpoint["id"])):
            write()
        names = {name: config["configurable"].get(name, "") for name in ("thread_id", "checkpoint_ns")}
        return {"configurable": {**names, "checkpoint_id": checkpoint["id"]}}

    def put_writes(self, config: RunnableConfig, *args: Any, **kwargs: Any) -> None:
        def write() -> None:
            self._put_writes(config, *args, **kwargs)

        if not self._defer(config, write):
            write()

    def find_pending(self, thread: str) -> PendingStates:
        """Return the states that this saver waits for."""
        return self.pending

    def _defer(
        self, config: RunnableConfig, write: Callable[[], None], checkpoint: str | None = None
    ) -> bool:
        parent = config["configurable"].get("checkpoint_id")
        if self._is_writing():
            return False
        if self.holds_back:
            self.pending.hold_back(parent=parent, checkpoint=checkpoint)
            return False
        return self.pending.defer(write, parent=parent, checkpoint=checkpoint)

    async def _hold_back(self, config: RunnableConfig, checkpoint: str | None = None) -> None:
        """Wait here instead of in a thread of the home, if writes wait themselves."""
        if self.holds_back:
            parent = config["configurable"].get("checkpoint_id")
            await self.pending.hold_back_async(parent=parent, checkpoint=checkpoint)

    def _put(self, config: RunnableConfig, checkpoint: Any, *args: Any) -> None:
        """Write a checkpoint now."""
        raise NotImplementedError

    def _put_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        """Write a task's results now."""
        raise NotImplementedError

    def _is_writing(self) -> bool:
        """Whether this OS thread is in a transaction of `write_atomically`."""
        raise NotImplementedError

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self.workers.run("quick", lambda: self.get_tuple(config))

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await self.workers.run("quick", lambda: list(self.list(config, **kwargs))):
            yield found

    async def aput(self, config: RunnableConfig, checkpoint: Any, *args: Any) -> RunnableConfig:
        await self._hold_back(config, str(checkpoint["id"]))
        return await self.workers.run("quick", lambda: self.put(config, checkpoint, *args))

    async def aput_writes(self, config: RunnableConfig, *args: Any, **kwargs: Any) -> None:
        await self._hold_back(config)
        await self.workers.run("quick", lambda: self.put_writes(config, *args, **kwargs))

    async def adelete_thread(self, thread_id: str) -> None:
        await self.workers.run("quick", lambda: self.delete_thread(thread_id))

    async def aget_delta_channel_history(self, **kwargs: Any) -> Any:
        return await self.workers.run("quick", lambda: self.get_delta_channel_history(**kwargs))


_RETRY_PAUSE_S = 0.02


def _fetch_with(cursor: Any, *, is_postgres: bool = False) -> list_storage.Fetch:
    async def fetch(statement: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        found = cursor.execute(statement.replace("?", "%s") if is_postgres else statement, tuple(values))
        return found.fetchall() if returns_rows(statement) else ()

    return fetch


class FencedSqliteSaver(HomeSaver, SqliteSaver):
    """LangGraph's SQLite saver; it refuses writes without the thread's lease, and after the lease is lost.

    It adds checksums to its writes. Reading damaged data raises CheckpointCorruptError.
    """

    def __init__(self, connection: sqlite3.Connection, ledger: Ledger, lease: Lease | None) -> None:
        super().__init__(connection)
        self._ledger = ledger
        self._lease = lease
        self._lists = ListStore()
        self._thread_local = threading.local()
        self.lock = threading.RLock()  # type: ignore[assignment]  # one transaction may read, too

    @contextmanager
    def cursor(self, transaction: bool = True) -> Iterator[Any]:
        recorder = getattr(self._thread_local, "recorder", None)
        if transaction and recorder is not None:
            yield recorder
        else:
            with self._ledger.translate_errors(sqlite3.Error), super().cursor(False) as cursor:
                yield cursor

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        # SQLite stores values in the checkpoint itself, so two branches cannot mix their values.
        return (current or 0) + 1

    def setup(self) -> None:
        if not self.is_setup:
            super().setup()
            checksums.prepare_connection(self.conn)
            run_without_loop(list_storage.create_tables(_fetch_with(self.conn), is_postgres=False))

    def _put(self, config: RunnableConfig, checkpoint: Any, *args: Any) -> None:
        thread, is_joined = config["configurable"]["thread_id"], self._is_writing()
        with self._write_transaction(thread) as recorder, explain_unstorable_values():
            encoded = self._lists.encode(self.serde, config, checkpoint)
            encoded = run_without_loop(self._lists.store(_fetch_with(recorder), self.serde, encoded))
            SqliteSaver.put(self, config, encoded.checkpoint, *args)
            recorder.store_checkpoint_checksum()
        self._lists.forget(thread) if is_joined else self._lists.remember(encoded)

    def _is_writing(self) -> bool:
        return getattr(self._thread_local, "recorder", None) is not None

    def _put_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        with (
            self._write_transaction(config["configurable"]["thread_id"]) as recorder,
            explain_unstorable_values(),
        ):
            SqliteSaver.put_writes(self, config, drop_failed_writes(writes), *args, **kwargs)
            recorder.store_writes_checksum()

    def delete_thread(self, thread_id: str) -> None:
        self.pending.wait()
        with self.deletion(), self._write_transaction(thread_id) as recorder:
            self.delete_checkpoints(thread_id)
            for statement in DELETE_THREAD:
                recorder.execute(statement.format("?"), (str(thread_id),))

    def delete_checkpoints(self, thread_id: str) -> None:
        """Delete the thread's checkpoints alone."""
        with self._write_transaction(thread_id) as recorder:
            super().delete_thread(thread_id)
            recorder.execute("DELETE FROM takeover_checksums WHERE thread_id = ?", (str(thread_id),))
            run_without_loop(list_storage.delete_thread(_fetch_with(recorder), str(thread_id)))

    def prune_thread(self, thread_id: str) -> None:
        """Delete the thread's checkpoints that the newest one does not need."""
        with self._write_transaction(thread_id) as recorder:
            found = [*super().list(thread_config(thread_id))]
            tables = ("checkpoints", "writes", "takeover_checksums")
            pruning = list_storage.prune_thread(_fetch_with(recorder), thread_id, found, tables=tables)
            run_without_loop(pruning)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        with self._read_transaction() as cursor:
            checksums.check_checkpoint(
                cursor, self._ledger.name, chain_key(config), get_checkpoint_id(config), with_ancestors=False
            )
            found = super().get_tuple(config)
            return found and self._decode(cursor, found, is_latest=True)

    def list(self, config: RunnableConfig | None, **kwargs: Any) -> Iterator[CheckpointTuple]:
        with self._read_transaction() as cursor:
            thread = None if config is None else str(config["configurable"]["thread_id"])
            checksums.check_all_checkpoints(cursor, self._ledger.name, thread)
            found = [self._decode(cursor, each) for each in super().list(config, **kwargs)]
        yield from found

    def _decode(
        self, cursor: sqlite3.Cursor, found: CheckpointTuple, *, is_latest: bool = False
    ) -> CheckpointTuple:
        if not has_encoded(found):
            return found
        decoding = self._lists.decode(_fetch_with(cursor), self.serde, found, is_latest=is_latest)
        return run_without_loop(decoding)

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Any:
        with self._read_transaction() as cursor:
            checksums.check_checkpoint(
                cursor, self._ledger.name, chain_key(config), get_checkpoint_id(config), with_ancestors=True
            )
            found = super().get_delta_channel_history(config=config, channels=channels)
            run_without_loop(self._lists.decode_seeds(_fetch_with(cursor), self.serde, config, found))
            return found

    @contextmanager
    def _read_transaction(self) -> Iterator[sqlite3.Cursor]:
        """Yield a cursor on one consistent state of the database."""
        self.pending.wait()
        with self.lock, self._ledger.translate_errors(sqlite3.Error), closing(self.conn.cursor()) as cursor:
            self.setup()
            if self.conn.in_transaction:
                yield cursor
                return
            cursor.execute("BEGIN")
            with clean_up(self.conn.rollback):
                yield cursor

    @contextmanager
    def write_atomically(self, thread: str) -> Iterator[None]:
        """Write everything that this OS thread writes to the run's thread meanwhile, or nothing."""
        self.pending.wait()
        with self._write_transaction(thread):
            yield

    @contextmanager
    def _write_transaction(self, thread: object) -> Iterator[WriteRecorder]:
        """Open a transaction under the thread's lease; nested, it joins the outer one."""
        outer: WriteRecorder | None = getattr(self._thread_local, "recorder", None)
        if outer is not None:
            if outer.thread != str(thread):
                raise FencedError(str(thread), "nobody")
            yield outer
            return
        # The default mode commits what an error has left half done.
        with (
            defer_signals(),
            self._ledger.translate_errors(sqlite3.Error),
            self.lock,
            closing(self.conn.cursor()) as cursor,
        ):
            cursor.execute("BEGIN IMMEDIATE")
            try:
                row = cursor.execute(f"{SELECT_LEASE}?", (str(thread),)).fetchone()
                require_lease(str(thread), self._lease, row)
                self._thread_local.recorder = recorder = WriteRecorder(cursor, str(thread))
                yield recorder
            except BaseException as error:
                run_all(self.conn.rollback, error=error)
                raise
            finally:
                self._thread_local.recorder = None
            self.conn.commit()


def _build_postgres_saver(ledger: Ledger, lease: Lease | None) -> Saver:
    from psycopg.rows import dict_row, tuple_row

    try:
        from langgraph.checkpoint.postgres import PostgresSaver
    except ImportError as error:
        raise LedgerUnavailableError(
            "postgresql: LangGraph's saver for PostgreSQL is not installed "
            "(pip install 'langgraph-takeover[postgres]')"
        ) from error

    class FencedPostgresSaver(HomeSaver, PostgresSaver):
        """LangGraph's PostgreSQL saver; it refuses writes without the thread's lease, and after the lease is lost.

        It uses the ledger's connections, which are replaced when the server closes them.
        """

        def __init__(self) -> None:
            super().__init__(None)  # type: ignore[arg-type]
            self.order = threading.RLock()
            self._bound = threading.local()
            self._lists = ListStore()
            self._is_closed = False

        def close(self) -> None:
            self._is_closed = True

        @contextmanager
        def _bind(self, connection: Connection) -> Iterator[Any]:
            """Use a connection in this OS thread."""
            self._bound.connection = connection.connection.driver_connection
            try:
                yield self._bound.connection
            finally:
                self._bound.connection = None

        @contextmanager
        def _cursor(self, *, pipeline: bool = False) -> Iterator[Any]:
            bound = getattr(self._bound, "connection", None)
            if bound is None:
                with (
                    ledger.read_transaction() as connection,
                    self._bind(connection),
                    self._cursor(pipeline=pipeline) as cursor,
                ):
                    yield cursor
                return
            with (
                bound.pipeline() if pipeline and self.supports_pipeline else nullcontext(),
                bound.cursor(binary=True, row_factory=dict_row) as cursor,
            ):
                yield cursor

        def setup(self) -> None:
            with ledger.autocommit_connection() as connection, self._bind(connection):
                super().setup()
                cursor = self._bound.connection.cursor(row_factory=tuple_row)
                run_without_loop(
                    list_storage.create_tables(_fetch_with(cursor, is_postgres=True), is_postgres=True)
                )

        @repeat_after_loss(idempotent=True)
        def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
            self.pending.wait()
            found = super().get_tuple(config)
            return found and self._decode(found, is_latest=True)

        @repeat_after_loss(idempotent=True)
        def get_delta_channel_history(self, **kwargs: Any) -> Any:
            self.pending.wait()
            found = super().get_delta_channel_history(**kwargs)
            with self._open_rows() as fetch:
                run_without_loop(self._lists.decode_seeds(fetch, self.serde, kwargs["config"], found))
            return found

        def list(self, config: RunnableConfig | None, **kwargs: Any) -> Iterator[CheckpointTuple]:
            yield from self._load_list(config, **kwargs)  # no transaction is open while the caller works

        @repeat_after_loss(idempotent=True)
        def _load_list(self, config: RunnableConfig | None, **kwargs: Any) -> Sequence[CheckpointTuple]:
            self.pending.wait()
            return [self._decode(each) for each in super().list(config, **kwargs)]

        def _decode(self, found: CheckpointTuple, *, is_latest: bool = False) -> CheckpointTuple:
            if not has_encoded(found):
                return found
            with self._open_rows() as fetch:
                decoding = self._lists.decode(fetch, self.serde, found, is_latest=is_latest)
                return run_without_loop(decoding)

        @contextmanager
        def _open_rows(self) -> Iterator[list_storage.Fetch]:
            if (bound := getattr(self._bound, "connection", None)) is not None:
                with bound.cursor(row_factory=tuple_row) as cursor:
                    yield _fetch_with(cursor, is_postgres=True)
                return
            with ledger.read_transaction() as connection, self._bind(connection), self._open_rows() as fetch:
                yield fetch

        def _is_writing(self) -> bool:
            return getattr(self._bound, "connection", None) is not None

        @repeat_after_loss(idempotent=True)
        def _put(self, config: RunnableConfig, checkpoint: Any, *args: Any) -> None:
            thread, is_joined = config["configurable"]["thread_id"], self._is_writing()
            with self.write_atomically(thread), explain_unstorable_values():
                with self._open_rows() as fetch:
                    encoded = self._lists.encode(self.serde, config, checkpoint)
                    encoded = run_without_loop(self._lists.store(fetch, self.serde, encoded))
                PostgresSaver.put(self, config, encoded.checkpoint, *args)
            self._lists.forget(str(thread)) if is_joined else self._lists.remember(encoded)

        @repeat_after_loss(idempotent=True)
        def _put_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
            with self.write_atomically(config["configurable"]["thread_id"]), explain_unstorable_values():
                PostgresSaver.put_writes(self, config, drop_failed_writes(writes), *args, **kwargs)

        def delete_thread(self, thread_id: str) -> None:
            self.pending.wait()
            with self.deletion():
                self._delete_rows(thread_id)

        @repeat_after_loss(idempotent=True)
        def _delete_rows(self, thread_id: str) -> None:
            with self.write_atomically(thread_id) as connection:
                self._delete_checkpoints(thread_id)
                for statement in DELETE_THREAD:
                    connection.execute(statement.format("%s"), (str(thread_id),))

        @repeat_after_loss(idempotent=True)
        def delete_checkpoints(self, thread_id: str) -> None:
            with self.write_atomically(thread_id):
                self._delete_checkpoints(thread_id)

        def _delete_checkpoints(self, thread_id: str) -> None:
            super().delete_thread(thread_id)
            with self._open_rows() as fetch:
                run_without_loop(list_storage.delete_thread(fetch, str(thread_id)))

        @repeat_after_loss(idempotent=True)
        def prune_thread(self, thread_id: str) -> None:
            with self.write_atomically(thread_id):
                found = [*super().list(thread_config(thread_id))]
                tables = ("checkpoints", "checkpoint_writes")
                with self._open_rows() as fetch:
                    run_without_loop(list_storage.prune_thread(fetch, thread_id, found, tables=tables))

        def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
            for thread in thread_ids:
                with self.write_atomically(thread):
                    (self.delete_thread if strategy == "delete" else self.prune_thread)(thread)

        @contextmanager
        def write_atomically(self, thread: str) -> Iterator[Any]:
            """Yield the driver's connection in a transaction under the thread's lease; nested, it joins the outer one."""
            self.pending.wait()
            bound = getattr(self._bound, "connection", None)
            if bound is not None:
                self._require_lease(bound, thread)
                yield bound
                return
            if self._is_closed:
                raise LedgerUnavailableError(f"{ledger.name}: {CLOSED}")
            with ledger.write_transaction() as connection, self.order, self._bind(connection) as bound:
                self._require_lease(bound, thread)
                yield bound

        def _require_lease(self, connection: Any, thread: str) -> None:
            # The row stays locked until the transaction ends, so a new holder waits.
            found = connection.execute(f"{SELECT_LEASE}%s FOR SHARE", (str(thread),)).fetchone()
            require_lease(str(thread), lease, found)

    return FencedPostgresSaver()


@repeat_after_loss(idempotent=True)
def _set_up_postgres(ledger: Ledger, saver: Saver) -> None:
    """Create missing tables. Two processes must not both create them, and one transaction cannot create an index."""
    while True:
        with ledger.try_advisory_lock(8402159) as is_free:
            if is_free:
                saver.setup()
                return
        time.sleep(_RETRY_PAUSE_S)  # holds nothing that creating an index waits for


@contextmanager
def open_saver(
    ledger: Ledger,
    lease: Lease | None = None,
    workers: Workers | None = None,
    pending: PendingStates | None = None,
) -> Iterator[Saver]:
    """Open a saver in the ledger's database; without a lease it is read-only.

    Args:
        workers: the threads for its asynchronous methods.
        pending: states of the thread's sandbox that it waits for before it writes.
    """
    with _open_saver(ledger, lease) as saver:
        saver.workers, saver.pending = workers or default_workers(), pending or PendingStates()
        with clean_up(saver.pending.wait):  # deferred writes need the connection
            yield saver


@contextmanager
def _open_saver(ledger: Ledger, lease: Lease | None) -> Iterator[Saver]:
    url = make_url(ledger.url)
    if ledger.is_sqlite:
        with ledger.translate_errors(sqlite3.Error):
            connection = sqlite3.connect(url.database or "", check_same_thread=False, timeout=BUSY_S)
        with closing(connection):
            with ledger.translate_errors(sqlite3.Error):
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(ERASE_DELETED)
                saver = FencedSqliteSaver(connection, ledger, lease)
                saver.setup()
            with _close_when_idle(connection, saver.lock):
                yield saver
        return
    opened: Any = _build_postgres_saver(ledger, lease)
    _set_up_postgres(ledger, opened)
    with _close_when_idle(opened, opened.order):
        yield opened


@contextmanager
def _close_when_idle(connection: Any, lock: Any) -> Iterator[None]:
    """Close a connection while no thread writes: an abandoned stream may still write in its own thread."""

    def close() -> None:
        with lock:
            connection.close()

    with clean_up(close):
        yield


def fork_checkpoint(
    saver: Saver, stored: CheckpointTuple, values: dict[str, Any], metadata: dict[str, Any] | None = None
) -> str:
    """Write a copy of a checkpoint with other values in some channels, as the thread's newest; return its id."""
    fork = build_fork(saver, stored, values, metadata)
    saver.put(*fork)
    return str(fork[1]["id"])


def build_fork(
    saver: Saver, stored: CheckpointTuple, values: dict[str, Any], metadata: dict[str, Any] | None = None
) -> tuple[RunnableConfig, Any, Any, dict[str, Any]]:
    """Return the arguments with which a saver's `put` writes a copy of a checkpoint."""
    versions = stored.checkpoint["channel_versions"]
    new = {name: saver.get_next_version(versions.get(name), None) for name in values}
    copied = copy_checkpoint(stored.checkpoint) | {
        "id": str(uuid6(clock_seq=-1)),
        "channel_values": stored.checkpoint["channel_values"] | values,
        "channel_versions": versions | new,
    }
    return stored.config, copied, {**stored.metadata, **(metadata or {}), "source": "update"}, new


Saver = FencedSqliteSaver | Any

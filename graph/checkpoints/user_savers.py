"""Savers of users, SQLite or PostgreSQL: each write is one transaction, which can check a lease and store lists."""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Any, NamedTuple, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from sqlalchemy import URL, make_url

from langgraph_takeover.base.awaiting import enter, resolve, run_without_loop
from langgraph_takeover.graph.checkpoints import list_storage
from langgraph_takeover.graph.checkpoints.list_storage import (
    ListStore,
    has_encoded,
    is_encoded,
    returns_rows,
)
from langgraph_takeover.graph.usage_errors import (
    CheckpointCorruptError,
    ThreadNotHeldError,
    UnsupportedSaverError,
)
from langgraph_takeover.handoff.ledger import Lease, Ledger, LedgerUnavailableError
from langgraph_takeover.handoff.ledger.database import defer_signals
from langgraph_takeover.handoff.ledger.leases import SELECT_LEASE

SELECT_FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"
_lock = threading.Lock()
_ledgers: dict[str, tuple[Ledger, int]] = {}
"""Open ledgers by URL, with their number of users: many threads of one server share connections."""


def build_sqlite_url(row: Sequence[Any] | None) -> str:
    """Return the URL of an SQLite database from the row of `SELECT_FILE`. Raises UnsupportedSaverError."""
    if row is None or not row[0]:
        raise UnsupportedSaverError(
            "the saver's database is in memory, where no other process can see a lease (use a file)"
        )
    return URL.create("sqlite", database=row[0]).render_as_string(hide_password=False)


def build_postgres_url(info: Any) -> str:
    """Return the URL of the database that a psycopg connection is connected to."""
    options = {
        name: value
        for name, value in info.get_parameters().items()
        if name not in ("user", "password", "host", "hostaddr", "port", "dbname")
    }
    host = info.host or info.hostaddr
    is_socket = host.startswith("/")
    url = URL.create(
        "postgresql+psycopg",
        username=info.user,
        password=info.password or None,
        host=None if is_socket else host,
        port=info.port,
        database=info.dbname,
        query=options | ({"host": host} if is_socket else {}),
    )
    return url.render_as_string(hide_password=False)


@contextmanager
def share_ledger(url: str) -> Iterator[Ledger]:
    """Open the ledger of a database, or use the one that is open in this process. Raises LedgerUnavailableError."""
    with _lock:
        ledger, users = _ledgers.get(url) or (Ledger(url), 0)
        _ledgers[url] = ledger, users + 1
    try:
        yield ledger
    finally:
        with _lock:
            _, users = _ledgers[url]
            if users > 1:
                _ledgers[url] = ledger, users - 1
            else:
                del _ledgers[url]
                ledger.close()


Writes = Sequence[tuple[str, Any]]
_ResultT = TypeVar("_ResultT")


def is_connection_lost(error: Exception) -> bool:
    """Whether a driver reports that a PostgreSQL server closed a connection, or cannot be reached."""
    psycopg = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


@contextmanager
def explain_loss(where: str) -> Iterator[None]:
    """Raise LedgerUnavailableError for a connection of a user's saver that is lost."""
    try:
        yield
    except Exception as error:
        if not is_connection_lost(error):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise LedgerUnavailableError(
            f"{where}: the saver's connection is lost: {reason} (resume when the server is back, with a new saver)"
        ) from error


class Transaction(NamedTuple):
    """A transaction in a saver's database. A write of `saver` ends that of SQLite."""

    saver: Any
    """A copy of the user's, on the transaction's connection."""
    connection: Any
    is_postgres: bool

    async def fetch(self, statement: str, values: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        """Execute a statement whose values are `?`, and return its rows."""
        if not self.is_postgres:
            cursor = await resolve(self.connection.execute(statement, tuple(values)))
            rows = await resolve(cursor.fetchall())
            await resolve(cursor.close())
            return [*rows]
        from psycopg.rows import tuple_row

        async with enter(self.connection.cursor(row_factory=tuple_row)) as cursor:
            await resolve(cursor.execute(statement.replace("?", "%s"), tuple(values)))
            # A pipeline has no description of the result yet.
            return await resolve(cursor.fetchall()) if returns_rows(statement) else ()


class SaverKind(NamedTuple):
    """How to call one of LangGraph's savers, and how to begin a transaction in its database."""

    is_async: bool
    is_postgres: bool

    def run(self, saver: Any, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        """Return the result of work, in a thread. An async saver's runs in its event loop.

        Raises asyncio.InvalidStateError, as LangGraph's savers do, if it is called in that loop, which would wait for itself.
        """
        if self.is_async:
            with suppress(RuntimeError):
                if asyncio.get_running_loop() is saver.loop:
                    work.close()
                    raise asyncio.InvalidStateError(
                        f"{type(saver).__name__}: synchronous call in the saver's event loop (await graph.ainvoke(…), "
                        "graph.aget_state(…) or saver.aget_tuple(…))"
                    )
            return asyncio.run_coroutine_threadsafe(work, saver.loop).result()
        return run_without_loop(work)

    async def arun(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        """Return the result of work, in an event loop. A sync saver's runs in an OS thread."""
        return await (work if self.is_async else asyncio.to_thread(run_without_loop, work))

    async def call(self, saver: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by the name of its sync form."""
        if not self.is_async:
            found = getattr(saver, name)(*args, **kwargs)
            return [*found] if name == "list" else found
        if name == "list":
            return [each async for each in saver.alist(*args, **kwargs)]
        return await getattr(saver, f"a{name}")(*args, **kwargs)

    def begin(self, saver: Any) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction; it is committed at the end, or rolled back after an error."""
        return _begin_postgres(saver) if self.is_postgres else _begin_sqlite(saver)

    def read(self, saver: Any) -> AbstractAsyncContextManager[Transaction]:
        """Open a saver's database for reading, without a transaction."""
        return _read_postgres(saver) if self.is_postgres else _read_sqlite(saver)


_POSTGRES, _POSTGRES_ASYNC = SaverKind(False, True), SaverKind(True, True)
_KINDS = {
    "langgraph.checkpoint.sqlite.SqliteSaver": SaverKind(False, False),
    "langgraph.checkpoint.sqlite.aio.AsyncSqliteSaver": SaverKind(True, False),
    "langgraph.checkpoint.postgres.PostgresSaver": _POSTGRES,
    "langgraph.checkpoint.postgres.shallow.ShallowPostgresSaver": _POSTGRES,
    "langgraph.checkpoint.postgres.aio.AsyncPostgresSaver": _POSTGRES_ASYNC,
    "langgraph.checkpoint.postgres.shallow.AsyncShallowPostgresSaver": _POSTGRES_ASYNC,
}
"""LangGraph's savers by name: importing those of PostgreSQL needs an extra."""


def find_kind(saver: Any) -> SaverKind | None:
    """Return the kind of a saver of LangGraph's packages, or of a class that inherits from one; None for another."""
    names = (f"{each.__module__}.{each.__qualname__}" for each in type(saver).__mro__)
    found = next((_KINDS[name] for name in names if name in _KINDS), None)
    return None if hasattr(saver, "write_atomically") else found  # a home's own saver


class WrappedSaver(BaseCheckpointSaver[Any]):
    """A saver around a user's, with its serializer and its versions of channels."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self._saver: Any = saver

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Any) -> BaseCheckpointSaver[Any]:
        clone = copy.copy(self)
        clone._saver = self._saver.with_allowlist(extra_allowlist)
        clone.serde = clone._saver.serde
        return clone


class TransactionSaver(WrappedSaver):
    """Reads and writes with a user's saver, each write in a transaction; with `lists`, these store the elements of lists.

    Only the methods below are implemented. The work is awaited; a sync saver's never suspends.
    """

    def __init__(self, saver: Any, kind: SaverKind, lists: ListStore | None) -> None:
        super().__init__(saver)
        self._kind, self._lists = kind, lists

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._kind.run(self._saver, self._get_tuple(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._kind.arun(self._get_tuple(config))

    def list(self, config: RunnableConfig | None, **kwargs: Any) -> Iterator[CheckpointTuple]:
        yield from self._kind.run(self._saver, self._list(config, **kwargs))

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await self._kind.arun(self._list(config, **kwargs)):
            yield found

    def get_delta_channel_history(self, **kwargs: Any) -> Any:
        return self._kind.run(self._saver, self._get_delta_channel_history(**kwargs))

    async def aget_delta_channel_history(self, **kwargs: Any) -> Any:
        return await self._kind.arun(self._get_delta_channel_history(**kwargs))

    def put(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        return self._kind.run(self._saver, self._put(config, *args))

    async def aput(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        return await self._kind.arun(self._put(config, *args))

    def put_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        self._kind.run(self._saver, self._put_writes(config, writes, *args, **kwargs))

    async def aput_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        await self._kind.arun(self._put_writes(config, writes, *args, **kwargs))

    def delete_thread(self, thread_id: str) -> None:
        self._kind.run(self._saver, self._delete_thread(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._kind.arun(self._delete_thread(thread_id))

    # Awaited by both forms

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = await self._read("get_tuple", config)
        if found is None or self._lists is None:
            return cast(CheckpointTuple | None, found)
        try:
            return await self._decode(found, is_latest=True)
        except CheckpointCorruptError:  # perhaps pruned meanwhile; the newest checkpoint remains
            found = await self._read("get_tuple", config)
            return None if found is None else await self._decode(found)

    async def _list(self, config: RunnableConfig | None, **kwargs: Any) -> Sequence[CheckpointTuple]:
        found = await self._read("list", config, **kwargs)
        return [await self._decode(each) for each in found]

    async def _get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Any:
        found = await self._read("get_delta_channel_history", config=config, channels=channels)
        if self._lists is not None and any(is_encoded(each.get("seed")) for each in found.values()):
            async with self._read_rows() as read:
                await self._lists.decode_seeds(read.fetch, self.serde, config, found)
        return found

    async def _put(self, config: RunnableConfig, checkpoint: Any, *args: Any) -> RunnableConfig:
        # Before anything is awaited: a node may change an element in place.
        encoded = None if self._lists is None else self._lists.encode(self.serde, config, checkpoint)

        async def put() -> RunnableConfig:
            async with self._begin(config["configurable"]["thread_id"]) as begun:
                if self._lists is None or encoded is None:
                    return cast(
                        RunnableConfig, await self._kind.call(begun.saver, "put", config, checkpoint, *args)
                    )
                written = await self._lists.store(begun.fetch, self.serde, encoded)
                stored = await self._kind.call(begun.saver, "put", config, written.checkpoint, *args)
            self._lists.remember(written)
            return cast(RunnableConfig, stored)

        return await self._attempt(put)

    async def _put_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        async def put() -> None:
            async with self._begin(config["configurable"]["thread_id"]) as begun:
                await self._kind.call(begun.saver, "put_writes", config, writes, *args, **kwargs)

        await self._attempt(put)

    async def _delete_thread(self, thread_id: str) -> None:
        async def delete() -> None:
            async with self._begin(thread_id) as begun:
                if self._lists is not None:
                    await list_storage.delete_thread(begun.fetch, str(thread_id))
                await self._kind.call(begun.saver, "delete_thread", thread_id)

        await self._attempt(delete)

    async def _read(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await self._attempt(lambda: self._kind.call(self._saver, name, *args, **kwargs))

    async def _decode(self, found: CheckpointTuple, *, is_latest: bool = False) -> CheckpointTuple:
        if self._lists is None or not has_encoded(found):
            return found
        async with self._read_rows() as read:
            return await self._lists.decode(read.fetch, self.serde, found, is_latest=is_latest)

    async def _attempt(self, work: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Return the result of a read or a write."""
        return await work()

    @asynccontextmanager
    async def _begin(self, thread: object) -> AsyncIterator[Transaction]:
        """Begin a transaction that writes to a thread."""
        with nullcontext() if self._kind.is_async else defer_signals():
            await self._create_tables()
            async with self._kind.begin(self._saver) as begun:
                yield begun

    @asynccontextmanager
    async def _read_rows(self) -> AsyncIterator[Transaction]:
        await self._create_tables()
        async with self._kind.read(self._saver) as read:
            yield read

    async def _create_tables(self) -> None:
        if self._lists is not None and not self._lists.has_tables:
            async with self._kind.begin(self._saver) as begun:
                await list_storage.create_tables(begun.fetch, is_postgres=begun.is_postgres)
            self._lists.has_tables = True


class HeldSaver(TransactionSaver):
    """Reads with the user's saver, and writes under a lease."""

    def __init__(self, saver: Any, kind: SaverKind, lease: Lease, lists: ListStore | None = None) -> None:
        super().__init__(saver, kind, lists)
        self._lease = lease

    @asynccontextmanager
    async def _begin(self, thread: object) -> AsyncIterator[Transaction]:
        if str(thread) != self._lease.thread:
            raise ThreadNotHeldError(str(thread), self._lease.thread)
        async with super()._begin(thread) as begun:
            lock = " FOR SHARE" if begun.is_postgres else ""  # a new holder waits until the transaction ends
            rows = await begun.fetch(f"{SELECT_LEASE}?{lock}", (self._lease.thread,))
            self._lease.update_from_row(rows[0] if rows else None)
            yield begun

    async def _attempt(self, work: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Repeat a read or an upsert that lost its connection on a new one."""
        try:
            return await work()
        except Exception as error:
            if not is_connection_lost(error):
                raise
        with explain_loss(self._lease.ledger.name):
            if self._kind.is_async:
                await asyncio.to_thread(self._wait_for_server)
            else:
                self._wait_for_server()
            if hasattr(self._saver.conn, "check"):  # a pool
                await resolve(self._saver.conn.check())
            else:
                async with enter(self._saver.lock):
                    if self._saver.conn.closed:
                        self._saver.conn = await resolve(self._connect_again(self._saver.conn))
                        self._saver.pipe = None
            return await work()

    def _wait_for_server(self) -> None:
        """Wait as the ledger does. Raises LedgerUnavailableError."""
        with self._lease.ledger.read_transaction():
            pass

    def _connect_again(self, lost: Any) -> Any:
        """Open a connection with the settings of a lost one; of an asynchronous one, it is to be awaited."""
        url = make_url(self._lease.ledger.url).set(drivername="postgresql")
        names = ("autocommit", "prepare_threshold", "row_factory", "cursor_factory")
        settings = {name: getattr(lost, name) for name in names}
        return type(lost).connect(url.render_as_string(hide_password=False), **settings)


@asynccontextmanager
async def lock_sqlite(saver: Any) -> AsyncIterator[Any]:
    """Yield the connection of a `SqliteSaver` or `AsyncSqliteSaver`, under its lock and with its tables.

    The script that creates them commits whatever transaction another OS thread has begun on the connection.
    """
    if is_async := hasattr(saver.lock, "__aenter__"):
        await saver.setup()  # takes the lock itself
    async with enter(saver.lock):
        if not is_async:
            saver.setup()
        yield saver.conn


@asynccontextmanager
async def _begin_sqlite(saver: Any) -> AsyncIterator[Transaction]:
    """Begin a transaction of a `SqliteSaver` or `AsyncSqliteSaver`; a write of the saver commits it."""
    async with lock_sqlite(saver) as connection:
        try:
            if not connection.in_transaction:
                await resolve(connection.execute("BEGIN IMMEDIATE"))
            yield Transaction(_bind(saver, connection), connection, is_postgres=False)
            if connection.in_transaction:
                await resolve(connection.commit())
        except BaseException as error:
            try:
                await resolve(connection.rollback())
            except Exception as failed:
                error.add_note(f"clean-up failed, too: {type(failed).__name__}: {failed}")
            raise


@asynccontextmanager
async def _begin_postgres(saver: Any) -> AsyncIterator[Transaction]:
    """Begin a transaction of a `PostgresSaver` or `AsyncPostgresSaver`, on its connection or one of its pool."""
    async with (
        enter(saver.lock),
        enter(open_connection(saver)) as connection,
        enter(connection.transaction()),
    ):
        yield Transaction(_bind(saver, connection), connection, is_postgres=True)


@asynccontextmanager
async def _read_sqlite(saver: Any) -> AsyncIterator[Transaction]:
    async with lock_sqlite(saver) as connection:
        yield Transaction(saver, connection, is_postgres=False)


@asynccontextmanager
async def _read_postgres(saver: Any) -> AsyncIterator[Transaction]:
    async with enter(saver.lock), enter(open_connection(saver)) as connection:
        yield Transaction(saver, connection, is_postgres=True)


def open_connection(saver: Any) -> Any:
    """Return a context manager, of either kind, for a PostgreSQL saver's connection, or for one of its pool."""
    return nullcontext(saver.conn) if hasattr(saver.conn, "info") else saver.conn.connection()


def _bind(saver: Any, connection: Any) -> Any:
    """Return a copy of a saver for one transaction: on its connection, and with a lock of its own."""
    bound = copy.copy(saver)
    bound.conn = connection
    bound.lock = asyncio.Lock() if hasattr(saver.lock, "__aenter__") else threading.Lock()
    return bound

"""Savers of users, SQLite or PostgreSQL: each write is one transaction that first checks the lease."""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from sqlalchemy import URL, make_url

from langgraph_takeover.base.failures import run_all
from langgraph_takeover.graph.usage_errors import ThreadNotHeldError, UnsupportedSaverError
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
Begin = Callable[[Any, Lease], AbstractContextManager[Any]]
"""Begins a transaction on a saver's database, checks the lease, and yields a saver that writes in it."""
BeginAsync = Callable[[Any, Lease], AbstractAsyncContextManager[Any]]
_ResultT = TypeVar("_ResultT")
_SELECT_SQLITE = f"{SELECT_LEASE}?"
_SELECT_POSTGRES = f"{SELECT_LEASE}%s FOR SHARE"  # a new holder waits until the transaction ends


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


class _HeldSaver(BaseCheckpointSaver[Any]):
    """Reads with the user's saver. Only the methods below write; others are not implemented."""

    def __init__(self, saver: BaseCheckpointSaver[Any], lease: Lease) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._lease = saver, lease

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Any) -> BaseCheckpointSaver[Any]:
        clone = copy.copy(self)
        clone._saver = self._saver.with_allowlist(extra_allowlist)
        clone.serde = clone._saver.serde
        return clone

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._repeat(lambda: self._saver.get_tuple(config))

    def list(self, config: RunnableConfig | None, **kwargs: Any) -> Iterator[CheckpointTuple]:
        yield from self._repeat(lambda: [*self._saver.list(config, **kwargs)])

    def get_delta_channel_history(self, **kwargs: Any) -> Any:
        return self._repeat(lambda: self._saver.get_delta_channel_history(**kwargs))

    def _repeat(self, work: Callable[[], _ResultT]) -> _ResultT:
        """Repeat a read or an upsert that lost its connection on a new one."""
        try:
            return work()
        except Exception as error:
            if not is_connection_lost(error):
                raise
        with explain_loss(self._lease.ledger.name):
            self._wait_for_server()
            saver: Any = self._saver
            if hasattr(saver.conn, "check"):  # a pool
                saver.conn.check()
            else:
                with saver.lock:
                    if saver.conn.closed:
                        saver.conn, saver.pipe = self._connect_again(saver.conn), None
            return work()

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

    def _require_thread(self, thread: object) -> None:
        if str(thread) != self._lease.thread:
            raise ThreadNotHeldError(str(thread), self._lease.thread)


class HeldSyncSaver(_HeldSaver):
    """A sync saver that writes under a lease. Its async methods run in OS threads."""

    def __init__(self, saver: BaseCheckpointSaver[Any], lease: Lease, begin: Begin) -> None:
        super().__init__(saver, lease)
        self._begin = begin

    def put(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        def write() -> RunnableConfig:
            with self._write(config["configurable"]["thread_id"]) as saver:
                stored: RunnableConfig = saver.put(config, *args)
            return stored

        return self._repeat(write)

    def put_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        def write() -> None:
            with self._write(config["configurable"]["thread_id"]) as saver:
                saver.put_writes(config, writes, *args, **kwargs)

        self._repeat(write)

    def delete_thread(self, thread_id: str) -> None:
        def write() -> None:
            with self._write(thread_id) as saver:
                saver.delete_thread(thread_id)

        self._repeat(write)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await asyncio.to_thread(lambda: [*self.list(config, **kwargs)]):
            yield found

    async def aput(self, *args: Any) -> RunnableConfig:
        return await asyncio.to_thread(self.put, *args)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.to_thread(self.put_writes, *args, **kwargs)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def aget_delta_channel_history(self, **kwargs: Any) -> Any:
        return await asyncio.to_thread(lambda: self.get_delta_channel_history(**kwargs))

    @contextmanager
    def _write(self, thread: object) -> Iterator[Any]:
        self._require_thread(thread)
        with defer_signals(), self._begin(self._saver, self._lease) as saver:
            yield saver


class HeldAsyncSaver(_HeldSaver):
    """An async saver that writes under a lease. Its sync methods wait for its event loop, from other OS threads."""

    def __init__(self, saver: Any, lease: Lease, begin: BeginAsync) -> None:
        super().__init__(saver, lease)
        self._begin, self._loop = begin, saver.loop

    async def aput(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        async def write() -> RunnableConfig:
            async with self._write(config["configurable"]["thread_id"]) as saver:
                stored: RunnableConfig = await saver.aput(config, *args)
            return stored

        return await self._arepeat(write)

    async def aput_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        async def write() -> None:
            async with self._write(config["configurable"]["thread_id"]) as saver:
                await saver.aput_writes(config, writes, *args, **kwargs)

        await self._arepeat(write)

    async def adelete_thread(self, thread_id: str) -> None:
        async def write() -> None:
            async with self._write(thread_id) as saver:
                await saver.adelete_thread(thread_id)

        await self._arepeat(write)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._arepeat(lambda: self._saver.aget_tuple(config))

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        async def load() -> list[CheckpointTuple]:
            return [each async for each in self._saver.alist(config, **kwargs)]

        for found in await self._arepeat(load):
            yield found

    async def aget_delta_channel_history(self, **kwargs: Any) -> Any:
        return await self._arepeat(lambda: self._saver.aget_delta_channel_history(**kwargs))

    async def _arepeat(self, work: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        try:
            return await work()
        except Exception as error:
            if not is_connection_lost(error):
                raise
        with explain_loss(self._lease.ledger.name):
            await asyncio.to_thread(self._wait_for_server)
            saver: Any = self._saver
            if hasattr(saver.conn, "check"):  # a pool
                await saver.conn.check()
            else:
                async with saver.lock:
                    if saver.conn.closed:
                        saver.conn, saver.pipe = await self._connect_again(saver.conn), None
            return await work()

    def put(self, *args: Any) -> RunnableConfig:
        return asyncio.run_coroutine_threadsafe(self.aput(*args), self._loop).result()

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        asyncio.run_coroutine_threadsafe(self.aput_writes(*args, **kwargs), self._loop).result()

    def delete_thread(self, thread_id: str) -> None:
        asyncio.run_coroutine_threadsafe(self.adelete_thread(thread_id), self._loop).result()

    @asynccontextmanager
    async def _write(self, thread: object) -> AsyncIterator[Any]:
        self._require_thread(thread)
        async with self._begin(self._saver, self._lease) as saver:
            yield saver


@contextmanager
def begin_sqlite(saver: Any, lease: Lease) -> Iterator[Any]:
    """Begin a transaction of a `SqliteSaver`; it ends with the saver's own commit."""
    saver.setup()  # inside the transaction, its script would commit
    with saver.lock:
        connection = saver.conn
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            lease.update_from_row(connection.execute(_SELECT_SQLITE, (lease.thread,)).fetchone())
            yield _bind(saver, connection, threading.Lock())
        except BaseException as error:
            run_all(connection.rollback, error=error)
            raise


@asynccontextmanager
async def begin_sqlite_async(saver: Any, lease: Lease) -> AsyncIterator[Any]:
    """Begin a transaction of an `AsyncSqliteSaver`; it ends with the saver's own commit."""
    await saver.setup()
    async with saver.lock:
        connection = saver.conn
        try:
            if not connection.in_transaction:
                await connection.execute("BEGIN IMMEDIATE")
            rows = await connection.execute_fetchall(_SELECT_SQLITE, (lease.thread,))
            lease.update_from_row(next(iter(rows), None))
            yield _bind(saver, connection, asyncio.Lock())
        except BaseException as error:
            try:
                await connection.rollback()
            except Exception as failed:
                error.add_note(f"clean-up failed, too: {type(failed).__name__}: {failed}")
            raise


@contextmanager
def begin_postgres(saver: Any, lease: Lease) -> Iterator[Any]:
    """Begin a transaction of a `PostgresSaver`, on its connection or one of its pool."""
    from psycopg import Connection
    from psycopg.rows import tuple_row

    single = isinstance(saver.conn, Connection)
    with (
        saver.lock,
        nullcontext(saver.conn) if single else saver.conn.connection() as connection,
        connection.transaction(),
        connection.cursor(row_factory=tuple_row) as cursor,
    ):
        lease.update_from_row(cursor.execute(_SELECT_POSTGRES, (lease.thread,)).fetchone())
        yield _bind(saver, connection, threading.Lock())


@asynccontextmanager
async def begin_postgres_async(saver: Any, lease: Lease) -> AsyncIterator[Any]:
    """Begin a transaction of an `AsyncPostgresSaver`, on its connection or one of its pool."""
    from psycopg import AsyncConnection
    from psycopg.rows import tuple_row

    single = isinstance(saver.conn, AsyncConnection)
    async with (
        saver.lock,
        nullcontext(saver.conn) if single else saver.conn.connection() as connection,
        connection.transaction(),
        connection.cursor(row_factory=tuple_row) as cursor,
    ):
        await cursor.execute(_SELECT_POSTGRES, (lease.thread,))
        lease.update_from_row(await cursor.fetchone())
        yield _bind(saver, connection, asyncio.Lock())


def _bind(saver: Any, connection: Any, lock: Any) -> Any:
    """Return a copy of a saver for one transaction: on its connection, and with a lock of its own."""
    bound = copy.copy(saver)
    bound.conn, bound.lock = connection, lock
    return bound

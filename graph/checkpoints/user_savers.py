"""Savers of users, SQLite or PostgreSQL: each write is one transaction that first checks the lease."""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
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

from langgraph_takeover.base.awaiting import enter, resolve, run_without_loop
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
Begin = Callable[[Any, Lease], AbstractAsyncContextManager[Any]]
"""Begins a transaction on a saver's database, checks the lease, and yields a saver that writes in it."""
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


class HeldSaver(WrappedSaver, ABC):
    """Reads with the user's saver, and writes under a lease. Only the methods below write; others are not implemented.

    The work is awaited; a sync saver's never suspends.
    """

    _guard: Callable[[], AbstractContextManager[None]] = staticmethod(nullcontext)
    """Surrounds each transaction."""

    def __init__(self, saver: Any, lease: Lease, begin: Begin) -> None:
        super().__init__(saver)
        self._lease, self._begin = lease, begin

    @abstractmethod
    def _run(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        """Return the result of the work, in a thread."""

    @abstractmethod
    async def _arun(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        """Return the result of the work, in an event loop."""

    @abstractmethod
    async def _call(self, saver: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the user's saver."""

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found: CheckpointTuple | None = self._run(self._read("get_tuple", config))
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found: CheckpointTuple | None = await self._arun(self._read("get_tuple", config))
        return found

    def list(self, config: RunnableConfig | None, **kwargs: Any) -> Iterator[CheckpointTuple]:
        yield from self._run(self._read("list", config, **kwargs))

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await self._arun(self._read("list", config, **kwargs)):
            yield found

    def get_delta_channel_history(self, **kwargs: Any) -> Any:
        return self._run(self._read("get_delta_channel_history", **kwargs))

    async def aget_delta_channel_history(self, **kwargs: Any) -> Any:
        return await self._arun(self._read("get_delta_channel_history", **kwargs))

    def put(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        stored: RunnableConfig = self._run(
            self._write(config["configurable"]["thread_id"], "put", config, *args)
        )
        return stored

    async def aput(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        stored: RunnableConfig = await self._arun(
            self._write(config["configurable"]["thread_id"], "put", config, *args)
        )
        return stored

    def put_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        thread = config["configurable"]["thread_id"]
        self._run(self._write(thread, "put_writes", config, writes, *args, **kwargs))

    async def aput_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        thread = config["configurable"]["thread_id"]
        await self._arun(self._write(thread, "put_writes", config, writes, *args, **kwargs))

    def delete_thread(self, thread_id: str) -> None:
        self._run(self._write(thread_id, "delete_thread", thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._arun(self._write(thread_id, "delete_thread", thread_id))

    async def _read(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await self._repeat(lambda: self._call(self._saver, name, *args, **kwargs))

    async def _write(self, thread: object, name: str, *args: Any, **kwargs: Any) -> Any:
        async def write() -> Any:
            if str(thread) != self._lease.thread:
                raise ThreadNotHeldError(str(thread), self._lease.thread)
            with self._guard():
                async with self._begin(self._saver, self._lease) as saver:
                    return await self._call(saver, name, *args, **kwargs)

        return await self._repeat(write)

    async def _repeat(self, work: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
        """Repeat a read or an upsert that lost its connection on a new one."""
        try:
            return await work()
        except Exception as error:
            if not is_connection_lost(error):
                raise
        with explain_loss(self._lease.ledger.name):
            await self._wait_for_server()
            if hasattr(self._saver.conn, "check"):  # a pool
                await resolve(self._saver.conn.check())
            else:
                async with enter(self._saver.lock):
                    if self._saver.conn.closed:
                        self._saver.conn = await resolve(self._connect_again(self._saver.conn))
                        self._saver.pipe = None
            return await work()

    async def _wait_for_server(self) -> None:
        """Wait as the ledger does. Raises LedgerUnavailableError."""
        with self._lease.ledger.read_transaction():
            pass

    def _connect_again(self, lost: Any) -> Any:
        """Open a connection with the settings of a lost one; of an asynchronous one, it is to be awaited."""
        url = make_url(self._lease.ledger.url).set(drivername="postgresql")
        names = ("autocommit", "prepare_threshold", "row_factory", "cursor_factory")
        settings = {name: getattr(lost, name) for name in names}
        return type(lost).connect(url.render_as_string(hide_password=False), **settings)


class HeldSyncSaver(HeldSaver):
    """A sync saver that writes under a lease. Its async methods run in OS threads."""

    _guard = staticmethod(defer_signals)

    def _run(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        return run_without_loop(work)

    async def _arun(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        return await asyncio.to_thread(run_without_loop, work)

    async def _call(self, saver: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        found = getattr(saver, name)(*args, **kwargs)
        return [*found] if name == "list" else found


class HeldAsyncSaver(HeldSaver):
    """An async saver that writes under a lease. Its sync methods wait for its event loop, from other OS threads."""

    def _run(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._saver.loop).result()

    async def _arun(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        return await work

    async def _call(self, saver: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "list":
            return [each async for each in saver.alist(*args, **kwargs)]
        return await getattr(saver, f"a{name}")(*args, **kwargs)

    async def _wait_for_server(self) -> None:
        await asyncio.to_thread(run_without_loop, super()._wait_for_server())


@asynccontextmanager
async def begin_sqlite(saver: Any, lease: Lease) -> AsyncIterator[Any]:
    """Begin a transaction of a `SqliteSaver` or `AsyncSqliteSaver`; it ends with the saver's own commit."""
    await resolve(saver.setup())  # inside the transaction, its script would commit
    async with enter(saver.lock):
        connection = saver.conn
        try:
            if not connection.in_transaction:
                await resolve(connection.execute("BEGIN IMMEDIATE"))
            cursor = await resolve(connection.execute(_SELECT_SQLITE, (lease.thread,)))
            lease.update_from_row(await resolve(cursor.fetchone()))
            await resolve(cursor.close())
            yield _bind(saver, connection)
        except BaseException as error:
            try:
                await resolve(connection.rollback())
            except Exception as failed:
                error.add_note(f"clean-up failed, too: {type(failed).__name__}: {failed}")
            raise


@asynccontextmanager
async def begin_postgres(saver: Any, lease: Lease) -> AsyncIterator[Any]:
    """Begin a transaction of a `PostgresSaver` or `AsyncPostgresSaver`, on its connection or one of its pool."""
    from psycopg.rows import tuple_row

    async with (
        enter(saver.lock),
        enter(open_connection(saver)) as connection,
        enter(connection.transaction()),
        enter(connection.cursor(row_factory=tuple_row)) as cursor,
    ):
        await resolve(cursor.execute(_SELECT_POSTGRES, (lease.thread,)))
        lease.update_from_row(await resolve(cursor.fetchone()))
        yield _bind(saver, connection)


def open_connection(saver: Any) -> Any:
    """Return a context manager, of either kind, for a PostgreSQL saver's connection, or for one of its pool."""
    return nullcontext(saver.conn) if hasattr(saver.conn, "info") else saver.conn.connection()


def _bind(saver: Any, connection: Any) -> Any:
    """Return a copy of a saver for one transaction: on its connection, and with a lock of its own."""
    bound = copy.copy(saver)
    bound.conn = connection
    bound.lock = asyncio.Lock() if hasattr(saver.lock, "__aenter__") else threading.Lock()
    return bound

"""Savers of users, SQLite or PostgreSQL: each write is one transaction that first checks the thread's lease."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_takeover.graph.errors import ThreadNotHeldError
from langgraph_takeover.handoff.ledger import Lease
from langgraph_takeover.handoff.ledger.leases import SELECT_LEASE
from langgraph_takeover.handoff.ledger.signals import defer_signals
from langgraph_takeover.sandbox.storage.failures import run_all

Writes = Sequence[tuple[str, Any]]
Begin = Callable[[Any, Lease], AbstractContextManager[Any]]
"""Begins a transaction on a saver's database, checks the lease, and yields a saver that writes in it."""
BeginAsync = Callable[[Any, Lease], AbstractAsyncContextManager[Any]]
_SELECT_SQLITE = f"{SELECT_LEASE}?"
_SELECT_POSTGRES = f"{SELECT_LEASE}%s FOR SHARE"  # a new holder waits until the transaction ends


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
        return self._saver.get_tuple(config)

    def list(self, config: RunnableConfig | None, **kwargs: Any) -> Iterator[CheckpointTuple]:
        return self._saver.list(config, **kwargs)

    def get_delta_channel_history(self, **kwargs: Any) -> Any:
        return self._saver.get_delta_channel_history(**kwargs)

    def _require_thread(self, thread: object) -> None:
        if str(thread) != self._lease.thread:
            raise ThreadNotHeldError(str(thread), self._lease.thread)


class HeldSyncSaver(_HeldSaver):
    """A sync saver that writes under a lease. Its async methods run in OS threads."""

    def __init__(self, saver: BaseCheckpointSaver[Any], lease: Lease, begin: Begin) -> None:
        super().__init__(saver, lease)
        self._begin = begin

    def put(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        with self._write(config["configurable"]["thread_id"]) as saver:
            stored: RunnableConfig = saver.put(config, *args)
        return stored

    def put_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        with self._write(config["configurable"]["thread_id"]) as saver:
            saver.put_writes(config, writes, *args, **kwargs)

    def delete_thread(self, thread_id: str) -> None:
        with self._write(thread_id) as saver:
            saver.delete_thread(thread_id)

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
        async with self._write(config["configurable"]["thread_id"]) as saver:
            stored: RunnableConfig = await saver.aput(config, *args)
        return stored

    async def aput_writes(self, config: RunnableConfig, writes: Writes, *args: Any, **kwargs: Any) -> None:
        async with self._write(config["configurable"]["thread_id"]) as saver:
            await saver.aput_writes(config, writes, *args, **kwargs)

    async def adelete_thread(self, thread_id: str) -> None:
        async with self._write(thread_id) as saver:
            await saver.adelete_thread(thread_id)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._saver.aget_tuple(config)

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        async for found in self._saver.alist(config, **kwargs):
            yield found

    async def aget_delta_channel_history(self, **kwargs: Any) -> Any:
        return await self._saver.aget_delta_channel_history(**kwargs)

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

"""One writer per thread for any graph: the user's own saver, fenced by a lease in its database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    suppress,
)
from types import TracebackType
from typing import Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_takeover.base.awaiting import enter, resolve, run_without_loop
from langgraph_takeover.graph.checkpoints.incremental_saver import IncrementalSaver
from langgraph_takeover.graph.checkpoints.list_storage import ListStore
from langgraph_takeover.graph.checkpoints.user_savers import (
    SELECT_FILE,
    HeldSaver,
    SaverKind,
    build_postgres_url,
    build_sqlite_url,
    explain_loss,
    find_kind,
    lock_sqlite,
    open_connection,
    share_ledger,
)
from langgraph_takeover.graph.usage_errors import UnsupportedSaverError
from langgraph_takeover.handoff.ledger import Lease, LedgerUnavailableError, acquire, leases
from langgraph_takeover.sandbox.backends.asynchronous import open_in_thread

ResultT = TypeVar("ResultT")


class ThreadHold(
    AbstractContextManager[BaseCheckpointSaver[Any], None],
    AbstractAsyncContextManager[BaseCheckpointSaver[Any], None],
):
    """The right to write to one thread, during `with` or `async with`; `hold_thread` makes it."""

    def __init__(self, saver: BaseCheckpointSaver[Any], thread: str, lease_s: float) -> None:
        leases.check_thread(thread)
        self._lists: ListStore | None = None
        if isinstance(saver, IncrementalSaver):
            self._lists, saver = saver.lists, saver.wrapped
        self._kind = _find_kind(saver)
        self._saver, self._thread, self._lease_s = saver, thread, lease_s
        self._held: AbstractContextManager[Lease] | None = None

    def __enter__(self) -> BaseCheckpointSaver[Any]:
        if self._kind.is_async:
            raise UnsupportedSaverError(
                f"thread {self._thread!r}: {type(self._saver).__name__} is async (write: async with hold_thread(…))"
            )
        return self._bind(self._enter(run_without_loop(self._read_url())))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._held is not None:
            self._held.__exit__(kind, error, traceback)

    async def __aenter__(self) -> BaseCheckpointSaver[Any]:
        if not self._kind.is_async:
            return await self._open(self.__enter__)
        url = await self._read_url()
        return self._bind(await self._open(lambda: self._enter(url)))

    async def _open(self, work: Callable[[], ResultT]) -> ResultT:
        """Acquire the lease in a thread; release it if the task is cancelled meanwhile."""

        async def run(work: Callable[[], Any], *, must_run: bool) -> Any:
            return await asyncio.to_thread(work)

        return await open_in_thread(work, lambda _: self.__exit__(None, None, None), run)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def _bind(self, lease: Lease) -> BaseCheckpointSaver[Any]:
        return HeldSaver(self._saver, self._kind, lease, self._lists)

    def _enter(self, url: str) -> Lease:
        self._held = _hold(url, self._thread, self._lease_s)
        return self._held.__enter__()

    async def _read_url(self) -> str:
        """Return the URL of the saver's database; of a sync saver, without suspending."""
        saver: Any = self._saver
        if self._kind.is_postgres:
            with explain_loss(f"thread {self._thread!r}"):
                async with enter(open_connection(saver)) as connection:
                    return build_postgres_url(connection.info)
        async with lock_sqlite(saver) as connection:
            cursor = await resolve(connection.execute(SELECT_FILE))
            return build_sqlite_url(await resolve(cursor.fetchone()))


def hold_thread(saver: BaseCheckpointSaver[Any], thread: str, *, lease_s: float = leases.TTL_S) -> ThreadHold:
    """Hold a thread: during `with` (or `async with`), yield a saver that alone writes to it.

    Compile the graph with the yielded saver. It writes with the given saver, into the same tables; each write is a
    transaction that first checks the lease, so that a process that lost the thread writes nothing more.

    Args:
        saver: LangGraph's saver for SQLite or PostgreSQL, sync or async. The lease is in its database, in tables whose
            names begin with `takeover_`.
        thread: id of the thread.
        lease_s: how long others wait for a holder that no longer renews its lease, because it is suspended or on
            another host; a process that died on this host loses it at once.

    Raises ThreadHeldError, which names the holder, HandedOverError, ThreadNameError, UnsupportedSaverError and
    LedgerUnavailableError; the saver's writes raise FencedError and ThreadNotHeldError.

    Example:
        >>> from langgraph.checkpoint.sqlite import SqliteSaver
        >>> from langgraph.graph import START, MessagesState, StateGraph
        >>> from langgraph_takeover.integrations import hold_thread
        >>> chat = StateGraph(MessagesState).add_node("greet", lambda state: {"messages": "Hello."}).add_edge(START, "greet")
        >>> with SqliteSaver.from_conn_string("chats.sqlite") as saver, hold_thread(saver, "chat-1") as held:
        ...     end = chat.compile(checkpointer=held).invoke({}, {"configurable": {"thread_id": "chat-1"}})
        >>> end["messages"][0].text
        'Hello.'
    """
    return ThreadHold(saver, thread, lease_s)


@contextmanager
def _hold(url: str, thread: str, lease_s: float) -> Iterator[Lease]:
    with share_ledger(url) as ledger:
        lease = acquire(ledger, thread, ttl_s=lease_s)
        try:
            with lease.explain_fencing():
                yield lease
        finally:
            # If the database is unavailable, the lease expires.
            with suppress(LedgerUnavailableError):
                lease.release()


def _find_kind(saver: Any) -> SaverKind:
    kind = find_kind(saver)
    if kind is None:
        raise UnsupportedSaverError(
            f"the writes of {type(saver).__name__} cannot be fenced (pass a SqliteSaver, AsyncSqliteSaver, "
            "PostgresSaver or AsyncPostgresSaver of LangGraph's own packages)"
        )
    return kind

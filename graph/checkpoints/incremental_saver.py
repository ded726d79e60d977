"""A saver for long threads: a checkpoint stores what its step added to the lists, not the lists."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_takeover.graph.checkpoints import list_storage
from langgraph_takeover.graph.checkpoints.list_storage import ListStore
from langgraph_takeover.graph.checkpoints.user_savers import TransactionSaver, find_kind
from langgraph_takeover.graph.usage_errors import UnsupportedSaverError

_SWEEP_PAUSE_S = 60.0


class IncrementalSaver(TransactionSaver):
    """Stores each element of a thread's lists once, in the database of LangGraph's saver for SQLite or PostgreSQL.

    LangGraph's savers write all messages with each checkpoint, so that a thread's size grows with the square of its steps.
    With this one it grows with their number. It can replace the saver that it wraps: values, history, forks,
    `update_state` and removed messages are exact, and earlier checkpoints of the thread remain readable. Read the
    checkpoints that it wrote with it too: the wrapped saver alone returns a dict for a list. Lists of fewer than four
    elements, and values that are not lists, are stored as before.

    Args:
        saver: a `SqliteSaver`, `AsyncSqliteSaver`, `PostgresSaver` or `AsyncPostgresSaver`.
        ttl_s: delete threads to which no checkpoint was written for so many seconds; checked when one is written, at
            most once a minute. Default: never. `delete_expired` does it at once.

    Its own tables, `takeover_list_rows` and `takeover_list_threads`, are created at the first use. Raises
    UnsupportedSaverError for another saver, and CheckpointCorruptError if rows are damaged or missing.

    Example:
        >>> from langgraph.checkpoint.sqlite import SqliteSaver
        >>> from langgraph.graph import START, MessagesState, StateGraph
        >>> from langgraph_takeover.integrations import IncrementalSaver
        >>> chat = StateGraph(MessagesState).add_node("greet", lambda state: {"messages": "Hello."}).add_edge(START, "greet")
        >>> with SqliteSaver.from_conn_string("long-chats.sqlite") as saver:
        ...     graph = chat.compile(checkpointer=IncrementalSaver(saver))
        ...     end = graph.invoke({"messages": "Hi."}, {"configurable": {"thread_id": "chat-1"}})
        >>> end["messages"][-1].text
        'Hello.'
    """

    lists: ListStore

    def __init__(self, saver: BaseCheckpointSaver[Any], *, ttl_s: float | None = None) -> None:
        kind = find_kind(saver)
        if kind is None or "Shallow" in type(saver).__name__:  # these keep no history
            raise UnsupportedSaverError(
                f"the lists of {type(saver).__name__} cannot be stored by their elements (pass a SqliteSaver, "
                "AsyncSqliteSaver, PostgresSaver or AsyncPostgresSaver of LangGraph's own packages)"
            )
        self.lists = ListStore(notes_time=True)
        super().__init__(saver, kind, self.lists)
        self._ttl_s, self._swept_at = ttl_s, 0.0

    @property
    def wrapped(self) -> BaseCheckpointSaver[Any]:
        """The saver of LangGraph."""
        saver: BaseCheckpointSaver[Any] = self._saver
        return saver

    @property
    def config_specs(self) -> list[Any]:
        specs: list[Any] = self._saver.config_specs
        return specs

    def setup(self) -> Awaitable[None] | None:
        """Set up the wrapped saver, whose async form is awaited."""
        begun: Awaitable[None] | None = self._saver.setup()
        return begun

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._saver.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._saver.adelete_for_runs(run_ids)

    def prune(self, thread_ids: str | Sequence[str], *, strategy: str = "keep_latest", keep: int = 1) -> None:
        """Delete the older checkpoints of threads, and what only they need.

        Subgraphs' checkpoints and those that a `DeltaChannel` needs remain. Nothing may run on the threads meanwhile.

        Args:
            thread_ids: one or several.
            strategy: `keep_latest`, or `delete` for everything.
            keep: how many checkpoints remain.

        Example:
            >>> saver.prune("chat-1", keep=10)
        """
        self._kind.run(self._saver, self._prune(thread_ids, strategy, keep))

    async def aprune(
        self, thread_ids: str | Sequence[str], *, strategy: str = "keep_latest", keep: int = 1
    ) -> None:
        """Like `prune`, awaited."""
        await self._kind.arun(self._prune(thread_ids, strategy, keep))

    def delete_expired(self, ttl_s: float) -> list[str]:
        """Delete the threads to which no checkpoint was written for so many seconds, and return their ids."""
        return self._kind.run(self._saver, self._delete_expired(ttl_s))

    async def adelete_expired(self, ttl_s: float) -> list[str]:
        """Like `delete_expired`, awaited."""
        return await self._kind.arun(self._delete_expired(ttl_s))

    # Awaited by both forms

    async def _put(self, *args: Any) -> Any:
        stored = await super()._put(*args)
        if self._ttl_s is not None and time.monotonic() - self._swept_at > _SWEEP_PAUSE_S:
            self._swept_at = time.monotonic()
            await self._delete_expired(self._ttl_s)
        return stored

    async def _prune(self, threads: str | Sequence[str], strategy: str, keep: int) -> None:
        if strategy not in ("keep_latest", "delete") or keep < 1:
            raise ValueError(
                f"prune: strategy {strategy!r}, keep {keep} (the strategy is keep_latest or delete, and keep at least 1)"
            )
        for thread in [threads] if isinstance(threads, str) else map(str, threads):
            if strategy == "delete":
                await self._delete_thread(thread)
            else:
                tables = ("checkpoints", "checkpoint_writes" if self._kind.is_postgres else "writes")
                async with self._begin(thread) as begun:
                    config = {"configurable": {"thread_id": thread}}
                    found = await self._kind.call(begun.saver, "list", config)
                    await list_storage.prune_thread(begun.fetch, thread, found, tables=tables, keep=keep)

    async def _delete_expired(self, ttl_s: float) -> list[str]:
        async with self._read_rows() as read:
            expired = await list_storage.list_expired(read.fetch, time.time() - ttl_s)
        deleted = []
        for thread in expired:
            async with self._begin(thread) as begun:
                if thread in await list_storage.list_expired(begun.fetch, time.time() - ttl_s):
                    await list_storage.delete_thread(begun.fetch, thread)
                    await self._kind.call(begun.saver, "delete_thread", thread)
                    deleted.append(thread)
        return deleted

"""A saver for all threads: a run holds its thread from its first read on, and one that lost it writes no checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_takeover.graph.checkpoints.user_savers import WrappedSaver
from langgraph_takeover.graph.own_graphs.active_runs import find_loading_run
from langgraph_takeover.graph.own_graphs.held_threads import HeldThreads
from langgraph_takeover.handoff.ledger import FencedError
from langgraph_takeover.nodes.session.pending_states import PendingStates


class GuardedSaver(WrappedSaver):
    """A user's saver whose runs wait for each other: `Sandboxes.guard` makes it.

    Reads outside of runs, such as `get_state`, need no lease.
    """

    _saver: BaseCheckpointSaver[Any]

    def __init__(self, saver: BaseCheckpointSaver[Any], threads: HeldThreads) -> None:
        super().__init__(saver)
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        if "_saver" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self._saver, name)

    @property
    def config_specs(self) -> list[Any]:
        return self._saver.config_specs

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        name = _get_thread(config)
        if (run := self._find_waiting(name)) is not None:
            self._threads.hold(name, run)
        return self._saver.get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        name = _get_thread(config)
        if (run := self._find_waiting(name)) is not None:
            await self._threads.ahold(name, run)
        return await self._saver.aget_tuple(config)

    def _find_waiting(self, name: str) -> object | None:
        """Return the run that loads its first checkpoint and does not hold its thread yet."""
        run = find_loading_run(name)
        caller = None if run is None else self._threads.find_block(name) or run
        return None if caller is None or self._threads.find_held(name, caller) else caller

    def list(self, config: RunnableConfig | None, **kwargs: Any) -> Iterator[CheckpointTuple]:
        return self._saver.list(config, **kwargs)

    def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        return self._saver.alist(config, **kwargs)

    def get_delta_channel_history(self, **kwargs: Any) -> Any:
        return self._saver.get_delta_channel_history(**kwargs)

    async def aget_delta_channel_history(self, **kwargs: Any) -> Any:
        return await self._saver.aget_delta_channel_history(**kwargs)

    # Writing

    def find_pending(self, thread: str) -> PendingStates | None:
        """Return the states that writes to a thread wait for; None if its sandbox is not open here."""
        return self._threads.find_pending(thread)

    def put(self, config: RunnableConfig, checkpoint: Any, *args: Any) -> RunnableConfig:
        self._hold_back(config, checkpoint["id"])
        return self._saver.put(config, checkpoint, *args)

    async def aput(self, config: RunnableConfig, checkpoint: Any, *args: Any) -> RunnableConfig:
        await self._hold_back_async(config, checkpoint["id"])
        return await self._saver.aput(config, checkpoint, *args)

    def put_writes(self, config: RunnableConfig, *args: Any, **kwargs: Any) -> None:
        self._hold_back(config)
        self._saver.put_writes(config, *args, **kwargs)

    async def aput_writes(self, config: RunnableConfig, *args: Any, **kwargs: Any) -> None:
        await self._hold_back_async(config)
        await self._saver.aput_writes(config, *args, **kwargs)

    def _hold_back(self, config: RunnableConfig, checkpoint: str | None = None) -> None:
        """Wait until the sandbox's states are durable; LangGraph writes in the background by default."""
        if (pending := self.find_pending(_get_thread(config))) is not None:
            pending.hold_back(parent=_get_parent(config), checkpoint=checkpoint)
        self._require_lease(config)

    async def _hold_back_async(self, config: RunnableConfig, checkpoint: str | None = None) -> None:
        if (pending := self.find_pending(_get_thread(config))) is not None:
            await pending.hold_back_async(parent=_get_parent(config), checkpoint=checkpoint)
        await asyncio.to_thread(self._require_lease, config)

    def _require_lease(self, config: RunnableConfig) -> None:
        """Raise FencedError if a run of this process holds the thread by a lease that it has lost."""
        name = _get_thread(config)
        held = self._threads.find_thread(name)
        if held is not None and held.run is not None and held.lease.is_lost():
            raise FencedError(name, "another process")

    def delete_thread(self, thread_id: str) -> None:
        with self._threads.hold_block(str(thread_id), object()):
            self._saver.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        run = object()
        held = await self._threads.ahold(str(thread_id), run)
        try:
            await self._saver.adelete_thread(thread_id)
        finally:
            await asyncio.to_thread(self._threads.release, held, run)

    def delete_for_runs(self, run_ids: Any) -> None:
        self._saver.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        await self._saver.adelete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._saver.copy_thread(source_thread_id, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._saver.acopy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Any, **kwargs: Any) -> None:
        self._saver.prune(thread_ids, **kwargs)

    async def aprune(self, thread_ids: Any, **kwargs: Any) -> None:
        await self._saver.aprune(thread_ids, **kwargs)


def _get_parent(config: RunnableConfig) -> str | None:
    """Return the id of the checkpoint that a write follows from."""
    found = config["configurable"].get("checkpoint_id")
    return str(found) if found else None


def _get_thread(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])

"""The asynchronous half of a saver with synchronous connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_takeover.nodes.session.workers import Workers


class ThreadedSaver(BaseCheckpointSaver[str]):
    """Makes each asynchronous call in a thread of the home."""

    workers: Workers
    deletion: Callable[[], AbstractContextManager[None]] = nullcontext
    """Surrounds the deletion of the thread: nothing else happens on it meanwhile, and its files are removed afterwards."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self.workers.run("quick", lambda: self.get_tuple(config))

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await self.workers.run("quick", lambda: list(self.list(config, **kwargs))):
            yield found

    async def aput(self, *args: Any) -> RunnableConfig:
        return await self.workers.run("quick", lambda: self.put(*args))

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        await self.workers.run("quick", lambda: self.put_writes(*args, **kwargs))

    async def adelete_thread(self, thread_id: str) -> None:
        await self.workers.run("quick", lambda: self.delete_thread(thread_id))

    async def aget_delta_channel_history(self, **kwargs: Any) -> Any:
        return await self.workers.run("quick", lambda: self.get_delta_channel_history(**kwargs))

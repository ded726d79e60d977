"""Context managers for both `with` and `async with`."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

from langgraph_takeover.nodes.session.workers import Workers

ValueT = TypeVar("ValueT")


class OpenableContext(Generic[ValueT]):
    """Something to open, once: `with` blocks; `async with` opens and closes it in a thread.

    If the task is cancelled while it opens, it is closed before the task ends.
    """

    def __init__(self, manager: AbstractContextManager[ValueT], workers: Workers) -> None:
        self._manager, self._workers = manager, workers

    def __enter__(self) -> ValueT:
        return self._manager.__enter__()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._manager.__exit__(error_type, error, traceback)

    async def __aenter__(self) -> ValueT:
        opened: list[ValueT] = []
        try:
            await self._workers.run("lifecycle", lambda: opened.append(self._manager.__enter__()))
        except asyncio.CancelledError:
            if opened:
                await self._close(None, None, None)
            raise
        return opened[0]

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._close(error_type, error, traceback)

    async def _close(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._workers.run(
            "lifecycle", lambda: self._manager.__exit__(error_type, error, traceback), must_run=True
        )

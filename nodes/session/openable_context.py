"""Context managers for both `with` and `async with`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from langgraph_takeover.nodes.session.workers import Workers
from langgraph_takeover.sandbox.backends.asynchronous import open_in_thread

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
        return await open_in_thread(
            self._manager.__enter__,
            lambda _: self._manager.__exit__(None, None, None),
            partial(self._workers.run, "lifecycle"),
        )

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._workers.run(
            "lifecycle", lambda: self._manager.__exit__(error_type, error, traceback), must_run=True
        )

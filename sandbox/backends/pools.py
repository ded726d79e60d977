"""Blocking work in threads, awaited in an event loop, so that a cancelled task leaves nothing running."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

ResultT = TypeVar("ResultT")
_END_GRACE_S = 30.0
"""Time that cancelled work has to end; work inside a program's own function may take longer."""


class RunInThread(Protocol):
    """Awaits work in a thread, as `run_in_pool` does."""

    async def __call__(self, work: Callable[[], Any], *, must_run: bool) -> Any: ...


async def run_in_pool(
    pool: Executor,
    work: Callable[[], ResultT],
    *,
    end: Callable[[], None] | None = None,
    context: contextvars.Context | None = None,
    must_run: bool = False,
) -> ResultT:
    """Return what the work returns in a thread of the pool. Default context: the caller's.

    If the task is cancelled, `end` is called, which must not block, and the work's end is awaited. Work that waits for a
    thread is given up then, unless it `must_run`, such as what releases a resource.
    """
    submitted = pool.submit((context or contextvars.copy_context()).run, work)
    waiting = asyncio.wrap_future(submitted)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if must_run or not submitted.cancel():
            if end is not None:
                end()
            await _settle(waiting)
        raise


async def open_in_thread(
    open_it: Callable[[], ResultT], close: Callable[[ResultT], object], run: RunInThread
) -> ResultT:
    """Return the opened resource; `run` awaits work in a thread.

    If the task is cancelled, the resource is closed, even if it opens later.
    """
    opening = _Opening(open_it, close)
    try:
        return await run(opening.run, must_run=False)  # type: ignore[no-any-return]
    except asyncio.CancelledError:
        if (close_now := opening.give_up()) is not None:
            await run(close_now, must_run=True)
        raise


class _Opening(Generic[ResultT]):
    """A resource that a thread opens, and closes again if no caller waits for it any more."""

    def __init__(self, open_it: Callable[[], ResultT], close: Callable[[ResultT], object]) -> None:
        self._open, self._close = open_it, close
        self._opened: list[ResultT] = []
        self._is_given_up = False
        self._lock = threading.Lock()

    def run(self) -> ResultT:
        opened = self._open()
        with self._lock:
            self._opened.append(opened)
            is_given_up = self._is_given_up
        if is_given_up:
            self._close(opened)
        return opened

    def give_up(self) -> Callable[[], object] | None:
        """Return a function that closes it, if it is open; otherwise its thread closes it."""
        with self._lock:
            self._is_given_up = True
            return partial(self._close, self._opened[0]) if self._opened else None


async def _settle(waiting: asyncio.Future[ResultT]) -> None:
    """Wait until the work has ended, even if the task is cancelled once more."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + _END_GRACE_S
    while not waiting.done() and loop.time() < ends_at:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({waiting}, timeout=ends_at - loop.time())
    # Retrieved, so that asyncio does not log it.
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())

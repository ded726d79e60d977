"""Threads in which runs of an event loop do what would block it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from typing import Literal, TypeVar

from langgraph_takeover.nodes.model.connections.exchange import event_loop
from langgraph_takeover.sandbox.interface import TakeoverError

ResultT = TypeVar("ResultT")
WorkKind = Literal["quick", "command", "lifecycle"]
"""What a thread does: check and store; work in a sandbox; start and end runs."""
_QUICK_THREADS, _LIFECYCLE_THREADS = 4, 4
_END_GRACE_S = 10.0
"""Time that cancelled work has to end; work in the middle of a program's own function may take longer."""


class Workers:
    """The threads of a home, shared by all its asynchronous runs. A thread is started when it is needed.

    Args:
        commands: number of commands, edits and tools that work in sandboxes at once.
    """

    def __init__(self, commands: int | None = None) -> None:
        self.commands = commands or default_size()
        sizes = {"quick": _QUICK_THREADS, "command": self.commands, "lifecycle": _LIFECYCLE_THREADS}
        self._pools: dict[str, Executor] = {
            kind: ThreadPoolExecutor(size, thread_name_prefix=f"takeover-{kind}")
            for kind, size in sizes.items()
        }

    async def run(
        self, kind: WorkKind, work: Callable[[], ResultT], end: Callable[[], None] | None = None
    ) -> ResultT:
        """Return what the work returns. If the task is cancelled, `end` is called, and the work's end awaited."""
        return await run_in_pool(self._pools[kind], work, end)

    def close(self) -> None:
        """Start nothing more; work in progress ends by itself."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


@cache
def default_workers() -> Workers:
    """Return the threads for sessions without a home."""
    return Workers()


def default_size() -> int:
    """Return the number of commands that work at once by default: four more than this host has cores."""
    return min(32, (os.cpu_count() or 1) + 4)


async def run_in_pool(
    pool: Executor, work: Callable[[], ResultT], end: Callable[[], None] | None = None
) -> ResultT:
    """Return what the work returns in a thread of the pool, with the caller's context variables."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    context.run(event_loop.set, loop)
    submitted = pool.submit(context.run, work)
    waiting = asyncio.wrap_future(submitted)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not submitted.cancel():
            if end is not None:
                threading.Thread(target=_end_quietly, args=(end,), name="end-work", daemon=True).start()
            await _settle(waiting)
        raise


def _end_quietly(end: Callable[[], None]) -> None:
    with contextlib.suppress(TakeoverError):  # the work itself reports it
        end()


async def _settle(waiting: asyncio.Future[ResultT]) -> None:
    """Wait until the work has ended, even if the task is cancelled once more."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + _END_GRACE_S
    while not waiting.done() and loop.time() < ends_at:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({waiting}, timeout=ends_at - loop.time())
    # Retrieved, so that asyncio does not log it.
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())

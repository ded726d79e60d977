"""Threads for the blocking work of runs in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from typing import Literal, TypeVar

from langgraph_takeover.base.values import TakeoverError
from langgraph_takeover.handoff.ledger import LedgerUnavailableError
from langgraph_takeover.nodes.model.connections.exchange import event_loop
from langgraph_takeover.sandbox.backends.asynchronous import run_in_pool

ResultT = TypeVar("ResultT")
WorkKind = Literal["quick", "command", "lifecycle"]
"""What a thread does: check and store; work in a sandbox; start and end runs."""
_QUICK_THREADS, _LIFECYCLE_THREADS = 2, 4


class Workers:
    """The threads of a home, shared by all its asynchronous runs. A thread is started when it is needed.

    Args:
        commands: number of commands, edits and tools that work in sandboxes at once.
    """

    def __init__(self, commands: int | None = None) -> None:
        self.commands = commands or default_size()
        self._is_closed = False
        sizes = {"quick": _QUICK_THREADS, "command": self.commands, "lifecycle": _LIFECYCLE_THREADS}
        self._pools: dict[str, Executor] = {
            kind: ThreadPoolExecutor(size, thread_name_prefix=f"takeover-{kind}")
            for kind, size in sizes.items()
        }

    async def run(
        self,
        kind: WorkKind,
        work: Callable[[], ResultT],
        end: Callable[[], None] | None = None,
        *,
        must_run: bool = False,
    ) -> ResultT:
        """Return what the work returns. If the task is cancelled, `end` is called, and the work's end awaited.

        Work that still waits for a thread is then dropped, unless it `must_run`.
        """
        if self._is_closed:
            if not must_run:
                raise LedgerUnavailableError(
                    "the home is closed (use it inside its with block, or open it again)"
                )
            return await asyncio.to_thread(work)
        context = contextvars.copy_context()
        context.run(event_loop.set, asyncio.get_running_loop())
        return await run_in_pool(
            self._pools[kind], work, end=end and partial(self._end, end), context=context, must_run=must_run
        )

    def _end(self, end: Callable[[], None]) -> None:
        """Call `end` in a thread; a few at a time, so that a thousand cancelled tasks do not stop the event loop."""
        with contextlib.suppress(RuntimeError):  # the home has been closed
            self._pools["lifecycle"].submit(_end_quietly, end)

    def close(self) -> None:
        """Start nothing more; work in progress ends by itself."""
        self._is_closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


@cache
def default_workers() -> Workers:
    """Return the threads for sessions without a home."""
    return Workers()


def default_size() -> int:
    """Return the number of commands that work at once by default: four more than this host has cores."""
    return min(32, (os.cpu_count() or 1) + 4)


def _end_quietly(end: Callable[[], None]) -> None:
    with contextlib.suppress(TakeoverError):  # the work itself reports it
        end()

"""Threads for the blocking work of runs in an event loop, context managers for both kinds of code, and a requested stop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, partial
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.ledger import FencedError, Lease, LedgerUnavailableError
from langgraph_takeover.handoff.ledger.leases import RunStoppedError, StopMode
from langgraph_takeover.nodes.model.deadlines import Cancellation, WaitEndedError
from langgraph_takeover.nodes.model.exchange import event_loop
from langgraph_takeover.sandbox.backends.asynchronous import open_in_thread, run_in_pool

ResultT = TypeVar("ResultT")


class StopSignal:
    """Tells the nodes of a run that it must stop, and ends at once what runs, if the stop is urgent.

    Args:
        end_work: ends the running command; called in another thread than the run's.
    """

    def __init__(self, lease: Lease, end_work: Callable[[], None]) -> None:
        self.cancellation = Cancellation()
        """Ends model calls when the run must stop at once."""
        self.on_stop: Callable[[], None] | None = None
        """Called in another thread when a stop is requested."""
        self._lease = lease
        self._end_work = end_work
        self._is_urgent = threading.Event()
        self._abort_lock = threading.Lock()
        self._running: set[AbortableWork[Any]] = set()
        self._is_aborted = False
        lease.on_stop = self._begin

    @property
    def mode(self) -> StopMode | None:
        """The requested stop, if any."""
        return self._lease.stop_mode

    @property
    def is_urgent(self) -> bool:
        """Whether the run must stop at once."""
        return self._is_urgent.is_set()

    def request(self, mode: StopMode) -> None:
        """Stop the run from another thread of this process. Idempotent."""
        if self.mode not in (mode, "now"):
            self._lease.stop_mode = mode
            self._begin(mode)

    def require_running(self) -> None:
        """Raise RunStoppedError if a stop was requested: nodes that begin a step call this."""
        if self.mode is not None:
            raise self._error()

    def require_not_urgent(self) -> None:
        """Raise RunStoppedError if the run must stop at once."""
        if self.is_urgent:
            raise self._error()

    @contextlib.contextmanager
    def explain(self) -> Iterator[None]:
        """Turn every error into RunStoppedError if the run was stopped at once, or while it waited for its endpoint."""
        try:
            yield
        except FencedError:
            raise
        except Exception as error:
            if self.is_urgent or isinstance(error, WaitEndedError):
                raise self._error() from error
            raise

    def finish(self) -> None:
        """Allow a sandbox again, to show what the stopped run left."""
        if self.is_urgent:
            self._end_work()
            self._is_urgent.clear()

    def begin_again(self) -> None:
        """Forget the stop that was requested of an earlier run."""
        self.finish()
        self.cancellation = Cancellation()

    def begin_work(self, work: AbortableWork[Any]) -> None:
        with self._abort_lock:
            self._running.add(work)

    def finish_work(self, work: AbortableWork[Any]) -> None:
        """Let the run continue when the last work of an aborted one has ended."""
        with self._abort_lock:
            self._running.discard(work)
            if not self._is_aborted or self._running:
                return
            self._is_aborted = False
            self._end_work()
            if self.mode != "now":
                self._is_urgent.clear()

    def abort_work(self, work: AbortableWork[Any]) -> None:
        """End the sandbox of a work that still runs, like an urgent stop: a command's end must not count as its result."""
        with self._abort_lock:
            if work in self._running:
                self._is_aborted = True
                self._is_urgent.set()
                self._end_work()

    def abort_all(self) -> None:
        """Abort what still works in OS threads for a run that has ended."""
        with self._abort_lock:
            running = [*self._running]
        for each in running:
            self.abort_work(each)

    def _begin(self, mode: StopMode) -> None:
        self.cancellation.ends_waits = True
        if self.on_stop is not None:
            self.on_stop()
        if mode == "now":
            self._is_urgent.set()
            self.cancellation.cancel()
            self._end_work()

    def _error(self) -> RunStoppedError:
        return RunStoppedError(f"thread {self._lease.thread!r}: a stop was requested (resume it)")


class AbortableWork(Generic[ResultT]):
    """Work of a run in another thread, which a cancelled task aborts; the run can continue afterwards.

    Other work of the run that is in the sandbox at the same time ends too.
    """

    def __init__(self, stop: StopSignal, work: Callable[[], ResultT]) -> None:
        self._stop = stop
        self._work = work

    def run(self) -> ResultT:
        """Return what the work returns, unless it is aborted."""
        self._stop.begin_work(self)
        try:
            return self._work()
        finally:
            self._stop.finish_work(self)

    def abort(self) -> None:
        """End the work if it still runs."""
        self._stop.abort_work(self)


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

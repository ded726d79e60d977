"""Sandboxes for event loops, and blocking work in threads that a cancelled task ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from langgraph_takeover.sandbox.interface import ExecResult, FileChange, Sandbox, SandboxSpec, Snapshot

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


_POLL_S = 0.05


@runtime_checkable
class CommandEnder(Protocol):
    """A sandbox that can end its running command and remain."""

    def end_command(self) -> None: ...


class AsyncSandbox:
    """A sandbox for an event loop: any `Sandbox`, whose work is done in a thread, one call after another.

    If a task is cancelled, its command is killed with everything that it started. The sandbox remains, as after a
    time-out, with what earlier commands started; one that cannot end a command alone is closed.

    Args:
        executor: threads to work in; by default one of its own.

    Example:
        >>> import asyncio
        >>> from langgraph_takeover.sandbox import AsyncSandbox
        >>> async def list_changes():
        ...     async with await AsyncSandbox.start(sandbox_spec) as sandbox:
        ...         await sandbox.run("echo 1 > new.txt", timeout_s=10)
        ...         return [change.path for change in await sandbox.changes()]
        >>> asyncio.run(list_changes())
        ['new.txt']
    """

    def __init__(self, sandbox: Sandbox, *, executor: Executor | None = None) -> None:
        self.sandbox = sandbox
        self.workspace = sandbox.workspace
        self._is_shared = executor is not None
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="sandbox")
        self._ending: Thread | None = None
        self._lock = Lock()

    @classmethod
    async def start(cls, spec: SandboxSpec, *, executor: Executor | None = None) -> Self:
        """Start a sandbox from its base. Raises SandboxUnavailableError."""
        from langgraph_takeover import sandbox

        return cls(await _open(executor, lambda: sandbox.start(spec)), executor=executor)

    @classmethod
    async def restore(
        cls, snapshot: Snapshot, store: Path, spec: SandboxSpec, *, executor: Executor | None = None
    ) -> Self:
        """Start a sandbox with the files and the shell of a snapshot. Raises what `sandbox.restore` raises."""
        from langgraph_takeover import sandbox

        return cls(await _open(executor, lambda: sandbox.restore(snapshot, store, spec)), executor=executor)

    async def run(self, command: str, *, timeout_s: float, output_limit: int | None = None) -> ExecResult:
        """Run a command in the agent's shell."""
        # A sandbox of another package may have no limit to set.
        options = {} if output_limit is None else {"output_limit": output_limit}
        return await self._do(lambda: self.sandbox.run(command, timeout_s=timeout_s, **options))

    async def inspect(self, command: str) -> ExecResult:
        """Run a command of the runtime, invisible to the agent's shell."""
        return await self._do(lambda: self.sandbox.inspect(command))

    async def read_file(self, path: str) -> bytes:
        """Return the content of a file. Raises FileAccessError."""
        return await self._do(lambda: self.sandbox.read_file(path))

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file, creating its directories. Raises FileAccessError."""
        await self._do(lambda: self.sandbox.write_file(path, content))

    async def directory_listing(self, path: str) -> tuple[str, ...] | None:
        """List the names in a directory; None if it is not a directory."""
        return await self._do(lambda: self.sandbox.directory_listing(path))

    async def changes(self) -> tuple[FileChange, ...]:
        """List what changed since the last call or the start."""
        return await self._do(self.sandbox.changes)

    async def cwd(self) -> str:
        """Return the current directory of the agent's shell."""
        return await self._do(self.sandbox.cwd)

    async def snapshot(self, store: Path, *, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Take a snapshot, and return it when its files are durable in `store`."""
        return await self._do(lambda: self.sandbox.snapshot(store, labels=labels).result())

    async def close(self) -> None:
        """End everything that runs in the sandbox and remove it; can be called twice."""
        with ThreadPoolExecutor(
            1, thread_name_prefix="close-sandbox"
        ) as pool:  # others may wait for a command
            await run_in_pool(pool, self.sandbox.close)
        if not self._is_shared:
            self._executor.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except Exception as failed:
            if error is None:
                raise
            error.add_note(f"clean-up failed, too: {type(failed).__name__}: {failed}")

    async def _do(self, work: Callable[[], ResultT]) -> ResultT:
        done: Future[None] = Future()
        has_begun, is_given_up = Event(), Event()

        def work_once() -> ResultT:
            # A shared executor has several threads, a sandbox one shell.
            with self._lock:
                has_begun.set()
                if self._ending is not None:  # a sandbox that is closed must not run one more command
                    self._ending.join()
                try:
                    if is_given_up.is_set():
                        raise CancelledError
                    return work()
                finally:
                    done.set_result(None)

        def end() -> None:
            is_given_up.set()
            if not has_begun.is_set():  # the command that runs is another call's
                return
            self._ending = Thread(target=self._end_command, args=(done,), name="end-command", daemon=True)
            self._ending.start()

        return await run_in_pool(self._executor, work_once, end=end)

    def _end_command(self, done: Future[None]) -> None:
        """End the command, which may only be about to begin."""
        if not isinstance(self.sandbox, CommandEnder):
            self.sandbox.close()
            return
        while not done.done():
            self.sandbox.end_command()
            time.sleep(_POLL_S)


async def _open(executor: Executor | None, start: Callable[[], Sandbox]) -> Sandbox:
    """Start a sandbox in a thread; if the task is cancelled meanwhile, close it."""
    pool = executor or ThreadPoolExecutor(1, thread_name_prefix="start-sandbox")
    try:
        return await open_in_thread(start, lambda sandbox: sandbox.close(), partial(run_in_pool, pool))
    finally:
        if executor is None:
            pool.shutdown(wait=False)

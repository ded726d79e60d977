"""The states of a sandbox that are being saved while the model answers, and the writes that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, NamedTuple

from langgraph_takeover.nodes.session.graph_tasks import GraphTask


class _DeferredWrite(NamedTuple):
    """A write of a checkpoint, or of a task's results, that waits for states of the sandbox."""

    write: Callable[[], Any]
    checkpoint: str | None
    """Id of the checkpoint that it writes."""


class PendingStates:
    """The states of one thread that are being saved. No database names a state before its snapshot is durable.

    A checkpoint that is written meanwhile waits, and so do the next ones. If saving fails, the database gets none of
    them, nor any that follows from them: the run ends, and the next one begins at the last durable checkpoint.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._saving = 0
        self._waiting: list[Callable[[], object]] = []
        """Called once when everything is durable."""
        self._writes: deque[_DeferredWrite] = deque()
        self._writer: int | None = None
        """The OS thread that writes what was deferred."""
        self._failed: dict[str, dict[str, object]] = {}
        """Of checkpoints with acts whose states could not be saved: the tasks that acted, each with its execution."""
        self._missing: set[str] = set()
        """Ids of the checkpoints that were not written therefore."""
        self._error: BaseException | None = None
        """Why the newest of them were not."""
        self._is_reported = True
        self.failures = 0
        """How often saving has failed: what acts have left since then may never become durable."""

    @property
    def is_idle(self) -> bool:
        """Whether everything is durable."""
        return not (self._saving or self._writes or self._writer)

    def add(self, saving: Future[Any], checkpoints: Collection[str], task: GraphTask | None) -> None:
        """Hold back what is written from now on until a state is saved.

        Args:
            checkpoints: ids of those that the task of the act began with, in each of its graphs.
            task: the task itself.
        """
        with self._changed:
            self._saving += 1
        saving.add_done_callback(lambda done: self._finish_saving(done, checkpoints, task))

    def defer(self, write: Callable[[], Any], *, parent: str | None, checkpoint: str | None = None) -> bool:
        """Write later if states are being saved; return False if the caller can write now.

        Args:
            parent: id of the checkpoint that it follows from. Raises what saving raised, if that is missing.
            checkpoint: id of the checkpoint that it writes, if it writes one.
        """
        with self._changed:
            self._require_parent(parent, checkpoint)
            if self.is_idle:
                return False
            self._writes.append(_DeferredWrite(write, checkpoint))
            return True

    def wait(self) -> None:
        """Wait until everything is durable. A failure is left for `settle` to report."""
        if not self.is_idle and self._writer != threading.get_ident():
            with self._changed:
                self._changed.wait_for(lambda: self.is_idle)

    def hold_back(self, *, parent: str | None, checkpoint: str | None = None) -> None:
        """Wait until the caller can write; arguments and errors: `defer`."""
        self.wait()
        self._require_parent(parent, checkpoint)

    async def hold_back_async(self, *, parent: str | None, checkpoint: str | None = None) -> None:
        """Like `hold_back`, in an event loop."""
        loop, is_idle = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            if self.is_idle:
                is_idle.set()
            else:
                self._waiting.append(lambda: loop.call_soon_threadsafe(is_idle.set))
        await is_idle.wait()
        self._require_parent(parent, checkpoint)

    def _require_parent(self, parent: str | None, checkpoint: str | None) -> None:
        with self._changed:
            if self._error is not None and (parent in self._failed or parent in self._missing):
                self._give_up(checkpoint)
                raise self._error

    def settle(self, checkpoints: Collection[str] = (), task: GraphTask | None = None) -> None:
        """Wait until everything is durable. Raises what saving raised, if nothing has reported it or it concerns these.

        `checkpoints` are those that a task began with, which now acts. If its state could not be saved in an earlier
        execution, that is forgotten: the act is repeated.
        """
        self.wait()
        with self._changed:
            for checkpoint in self._failed.keys() & checkpoints:
                acted = self._failed[checkpoint]
                if task is not None and acted.get(task.id, task.execution) is not task.execution:
                    del acted[task.id]
                if not acted:
                    del self._failed[checkpoint]
            is_concerned = not {*self._failed, *self._missing}.isdisjoint(checkpoints)
            if self._error is not None and (is_concerned or not self._is_reported):
                self._is_reported = True
                raise self._error

    def forget_failure(self) -> None:
        """Begin another run, at a durable checkpoint."""
        self.wait()
        with self._changed:
            self._failed.clear()
            self._is_reported = True

    def _finish_saving(self, done: Future[Any], checkpoints: Collection[str], task: GraphTask | None) -> None:
        with self._changed:
            self._saving -= 1
            if (error := done.exception()) is not None:
                for each in checkpoints:
                    self._failed.setdefault(each, {})[task.id if task else ""] = task and task.execution
                self._fail(error)
            if self._saving or self._writer:
                return
            self._writer = threading.get_ident()
        while (deferred := self._take_write()) is not None:
            try:
                deferred.write()
            except BaseException as error:
                with self._changed:
                    self._give_up(deferred.checkpoint)
                    self._fail(error)

    def _take_write(self) -> _DeferredWrite | None:
        with self._changed:
            if self._writes and not self._saving:
                return self._writes.popleft()
            self._writer = None
            self._changed.notify_all()
            waiting, self._waiting = (self._waiting, []) if self.is_idle else ([], self._waiting)
        for each in waiting:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                each()
        return None

    def _fail(self, error: BaseException) -> None:
        self._error, self._is_reported, self.failures = error, False, self.failures + 1
        while self._writes:
            self._give_up(self._writes.popleft().checkpoint)

    def _give_up(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._missing.add(checkpoint)

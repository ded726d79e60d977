"""A requested stop of the run on a thread, as its session sees it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from langgraph_takeover.handoff.ledger import FencedError, Lease
from langgraph_takeover.handoff.ledger.stops import RunStoppedError, StopMode
from langgraph_takeover.nodes.model.connections.deadlines import Cancellation, WaitEndedError

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

"""The threads that runs of this process hold: each from its run's first use until the run ends."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, Final

from langgraph_takeover.base.failures import clean_up, get_logger, run_all
from langgraph_takeover.graph.own_graphs.active_runs import find_run, watch_runs
from langgraph_takeover.handoff.ledger import Lease, Ledger, LedgerUnavailableError, leases
from langgraph_takeover.handoff.ledger.leases import ThreadHeldError
from langgraph_takeover.nodes.session.pending_states import PendingStates

_LOGGER = get_logger(__name__)
_POLL_S = 0.02
_UNKNOWN_IDLE_S = 5.0
_ENDING_S = 30.0
UNKNOWN_RUN: Final = "unknown"
"""The run of code that LangGraph reports no run for, such as a node without callbacks."""
_blocks: ContextVar[Mapping[tuple[int, str], object]] = ContextVar(
    "takeover_blocks", default=MappingProxyType({})
)
"""The threads that a `with` block of the calling context holds, each with the object that stands for its run."""


@dataclass(eq=False)
class HeldThread:
    """A thread of LangGraph in this process. Its lease is acquired while a run holds it."""

    lease: Lease
    changed: threading.Condition = field(default_factory=threading.Condition)
    run: object = None
    """The run that holds it."""
    used_at: float = field(default_factory=time.monotonic)
    is_removed: bool = False
    kept: Any = None
    """What remains between runs."""

    @property
    def name(self) -> str:
        return self.lease.thread


class HeldThreads:
    """The threads that runs hold; a subclass says what remains of a thread between its runs.

    Args:
        idle_s: how long something remains after a thread's last run, in seconds.
        wait_s: how long a run waits for the run that holds its thread.
        lease_s: how long other processes wait for a holder that no longer renews its lease.
    """

    def __init__(self, ledger: Ledger, *, idle_s: float, wait_s: float, lease_s: float) -> None:
        self._ledger = ledger
        self._idle_s, self._wait_s, self._lease_s = idle_s, wait_s, lease_s
        self._threads: dict[str, HeldThread] = {}
        self._lock = threading.Lock()
        self._has_ended = False
        self._housekeeper = _Housekeeper(self)
        watch_runs().add_listener(self)

    def resume_kept(self, thread: HeldThread) -> None:
        """Prepare what remained, for a run that has just acquired the thread."""

    def abort_kept(self, thread: HeldThread) -> None:
        """End what still works for a run that has ended: cancelling a run does not end its synchronous nodes."""

    def suspend_kept(self, thread: HeldThread) -> None:
        """Prepare what remains for the time after the run; the lease is released next."""

    def is_needed(self, thread: HeldThread) -> bool:
        """Whether closing what remained would lose something."""
        return False

    def close_kept(self, thread: HeldThread) -> None:
        """Close what remained."""

    def find_pending(self, name: str) -> PendingStates | None:
        """Return the states of a thread's sandbox that are being saved; None without a sandbox."""
        return None

    # Who holds what

    def find_caller(self, name: str) -> object:
        """Return the run, or the block, that the calling code belongs to."""
        return self.find_block(name) or find_run() or UNKNOWN_RUN

    def find_block(self, name: str) -> object | None:
        """Return what stands for the block of `hold_block` that the calling code is in."""
        return _blocks.get().get((id(self), name))

    def find_block_thread(self) -> str | None:
        """Return the thread of the innermost block that the calling code is in."""
        names = [name for owner, name in _blocks.get() if owner == id(self)]
        return names[-1] if names else None

    def find_thread(self, name: str) -> HeldThread | None:
        return self._threads.get(name)

    def find_held(self, name: str, run: object) -> HeldThread | None:
        """Return a thread if this run holds it."""
        thread = self._threads.get(name)
        if thread is None or (thread.run is not run and thread.run != run):
            return None
        thread.used_at = time.monotonic()
        return thread

    def list_threads(self) -> list[HeldThread]:
        with self._lock:
            return [*self._threads.values()]

    # Acquire and release

    def hold(self, name: str, run: object, wait_s: float | None = None) -> HeldThread:
        """Return a thread, held by a run until that ends; wait for another run on it.

        Raises ThreadHeldError, ThreadNameError and LedgerUnavailableError.
        """
        ends_at = time.monotonic() + (self._wait_s if wait_s is None else wait_s)
        while True:
            thread = self._find_or_add(name)
            with thread.changed:
                if thread.is_removed:
                    continue
                self._wait_for_run(thread, run, ends_at)
                if thread.is_removed:
                    continue
                if thread.run is None:
                    self._acquire(thread.lease, ends_at)
                    try:
                        self.resume_kept(thread)
                    except BaseException as error:
                        run_all(thread.lease.release, error=error)
                        raise
                    thread.run = run
                thread.used_at = time.monotonic()
                if run == UNKNOWN_RUN:
                    self._housekeeper.wake()
                return thread

    async def ahold(self, name: str, run: object) -> HeldThread:
        """Like `hold`, in an event loop: a run that waits occupies no OS thread."""
        ends_at = time.monotonic() + self._wait_s
        while True:
            try:
                return await asyncio.to_thread(self.hold, name, run, 0.0)
            except ThreadHeldError:
                if time.monotonic() >= ends_at:
                    raise
            await asyncio.sleep(_POLL_S)

    @contextmanager
    def hold_block(self, name: str, run: object) -> Iterator[HeldThread]:
        """Hold a thread during a `with` block, which `run` stands for."""
        thread = self.hold(name, run)
        with clean_up(lambda: self.release(thread, run)):
            yield thread

    def enter_block(self, name: str, run: object) -> None:
        """Let the calling context belong to a block, until `leave_block`."""
        _blocks.set({**_blocks.get(), (id(self), name): run})

    def leave_block(self, name: str) -> None:
        _blocks.set({key: run for key, run in _blocks.get().items() if key != (id(self), name)})

    def _find_or_add(self, name: str) -> HeldThread:
        with self._lock:
            if self._has_ended:
                raise LedgerUnavailableError(f"thread {name!r}: its sandboxes are closed (open them again)")
            if (thread := self._threads.get(name)) is None:
                leases.check_thread(name)
                thread = self._threads[name] = HeldThread(Lease(self._ledger, name, self._lease_s))
            return thread

    def _wait_for_run(self, thread: HeldThread, run: object, ends_at: float) -> None:
        while thread.run is not None and thread.run != run and not thread.is_removed:
            if not thread.changed.wait(max(ends_at - time.monotonic(), 0)):
                raise ThreadHeldError(thread.name, "another run in this process", self._lease_s)

    def _acquire(self, lease: Lease, ends_at: float) -> None:
        while True:
            try:
                lease.acquire()
                return
            except ThreadHeldError:
                if time.monotonic() >= ends_at:
                    raise
            time.sleep(_POLL_S)

    def end_run(self, run: object) -> None:
        """Release the threads of a run that has ended; in an event loop, the housekeeper does."""
        for thread in [each for each in [*self._threads.values()] if each.run == run]:
            if _is_in_event_loop():
                self._housekeeper.release(thread, run)
            else:
                with self._log_failure(thread):
                    self.release(thread, run)

    def release(self, thread: HeldThread, run: object) -> None:
        """Let others have a thread that a run holds; it may be released already."""
        with thread.changed:
            if thread.run is not run and thread.run != run:
                return
            with clean_up(lambda: self._let_go(thread)):
                self.suspend_kept(thread)
        self._housekeeper.wake()

    def _let_go(self, thread: HeldThread) -> None:
        thread.run, thread.used_at = None, time.monotonic()
        with clean_up(thread.changed.notify_all), suppress(LedgerUnavailableError):  # the lease will expire
            thread.lease.release()

    def forget_idle(self) -> float | None:
        """Close what remained of threads without runs for a time; return the seconds until the next one's turn."""
        delays = [delay for each in self.list_threads() if (delay := self._forget_if_idle(each)) is not None]
        return min(delays, default=None)

    def _forget_if_idle(self, thread: HeldThread) -> float | None:
        idle_s = time.monotonic() - thread.used_at
        if thread.run == UNKNOWN_RUN:
            if idle_s < _UNKNOWN_IDLE_S:
                return _UNKNOWN_IDLE_S - idle_s
            with self._log_failure(thread):
                self.release(thread, UNKNOWN_RUN)
            return self._idle_s
        if thread.run is not None or not thread.changed.acquire(blocking=False):
            return None
        try:
            if thread.run is not None or thread.is_removed:
                return None
            if idle_s < self._idle_s or self.is_needed(thread):
                return max(self._idle_s - idle_s, _UNKNOWN_IDLE_S)
            self._forget(thread)
        finally:
            thread.changed.release()
        return None

    def _forget(self, thread: HeldThread) -> None:
        thread.is_removed = True
        with self._lock:
            self._threads.pop(thread.name, None)
        with self._log_failure(thread):
            self.close_kept(thread)

    def end(self) -> None:
        """Hold nothing from now on, and release the threads of ended runs."""
        with self._lock:
            self._has_ended = True
        self._housekeeper.finish_releases()

    @contextmanager
    def _log_failure(self, thread: HeldThread) -> Iterator[None]:
        """Log an error for which nobody waits."""
        try:
            yield
        except Exception as error:
            _LOGGER.warning(
                "thread %r: not released cleanly: %s: %s", thread.name, type(error).__name__, error
            )

    def release_ended(self, thread: HeldThread, run: object) -> None:
        """Release a thread of a run that ended in an event loop."""
        with self._log_failure(thread):
            if self.find_held(thread.name, run) is thread:
                self.abort_kept(thread)
            self.release(thread, run)


class _Housekeeper:
    """Releases and forgets threads, in an OS thread of its own while there is something to do."""

    def __init__(self, owner: HeldThreads) -> None:
        self._owner = weakref.ref(owner)
        self._requests: SimpleQueue[tuple[HeldThread, object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False
        self._released = threading.Condition()
        self._pending = 0
        """Number of threads to be released."""

    def release(self, thread: HeldThread, run: object) -> None:
        with self._released:
            self._pending += 1
        self._requests.put((thread, run))
        self.wake()

    def finish_releases(self) -> None:
        """Wait until the threads of ended runs are released; then nothing is left to do."""
        with self._released:
            self._released.wait_for(lambda: not self._pending, _ENDING_S)
        self.wake()

    def wake(self) -> None:
        with self._lock:
            if self._is_running:
                self._requests.put(None)
                return
            self._is_running = True
        threading.Thread(target=self._work, name="held-threads", daemon=True).start()

    def _work(self) -> None:
        delay: float | None = 0.0
        while True:
            with suppress(Empty):
                request = self._requests.get(timeout=delay)
                if request is not None:
                    if (owner := self._owner()) is not None:
                        owner.release_ended(*request)
                    del owner
                    with self._released:
                        self._pending -= 1
                        self._released.notify_all()
                if not self._requests.empty():
                    delay = 0.0
                    continue
            owner = self._owner()
            delay = None if owner is None else owner.forget_idle()
            del owner
            with self._lock:
                if delay is None and self._requests.empty():
                    self._is_running = False
                    return
            delay = max(delay or 0.0, 0.0)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

"""Calls with a deadline that another thread can cancel: in threads of their own, or awaited in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.nodes.model.model_errors import ModelError

CallOutcome = tuple[Any, BaseException | None]
_CANCEL_GRACE_S = 2.0
"""Time that a cancelled client has to close its connection."""
_MAX_IDLE_CALLERS = 32
_POLL_S = 0.1
_thread_state = threading.local()
"""Per thread: `caller`, an idle thread for its calls."""
_idle_callers: list[_CallThread] = []
"""Idle threads for the calls of event loops."""


class DeadlineExceededError(TakeoverError, TimeoutError):
    """A call did not end before its deadline."""


class CallCancelledError(TakeoverError):
    """Another thread ended the call."""


class WaitEndedError(CallCancelledError):
    """A stop was requested while a call waited for its next attempt."""


class OutcomeSink(Protocol):
    """Receives the outcome of a call, from any thread; only the first one counts."""

    def put(self, outcome: CallOutcome, /) -> None: ...


class Cancellation:
    """Ends calls from another thread: those in progress, and all later ones."""

    def __init__(self) -> None:
        self.ends_waits = False
        """Whether pauses between attempts end; calls in flight do not. A signal handler may set it: it takes no lock."""
        self._cancelled = threading.Event()
        self._waiting: set[OutcomeSink] = set()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled.set()
            for outcome in self._waiting:
                outcome.put((None, CallCancelledError()))

    @contextlib.contextmanager
    def watch(self, outcome: OutcomeSink) -> Iterator[None]:
        """Deliver CallCancelledError as the outcome when the calls are cancelled."""
        with self._lock:
            self._waiting.add(outcome)
            if self._cancelled.is_set():
                outcome.put((None, CallCancelledError()))
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(outcome)

    def sleep(self, seconds: float) -> None:
        """Sleep for this time, or until the calls are cancelled. Raises WaitEndedError if waits are to end."""
        for slice_s in self._slice(seconds):
            if self._cancelled.wait(slice_s):
                return

    async def asleep(self, seconds: float) -> None:
        """Sleep like `sleep`, without blocking the event loop."""
        outcome = _LoopOutcome()
        with self.watch(outcome):
            for slice_s in self._slice(seconds):
                done, _ = await asyncio.wait({outcome.future}, timeout=slice_s)
                if done:
                    return

    def _slice(self, seconds: float) -> Iterator[float]:
        """Yield the parts of a wait. Raises WaitEndedError."""
        ends_at = time.monotonic() + seconds
        while (remaining_s := ends_at - time.monotonic()) > 0:
            if self.ends_waits:
                raise WaitEndedError
            yield min(remaining_s, _POLL_S)


class _AbandonedCallError(SystemExit):
    """Ends a thread whose result is no longer needed."""


class _LoopOutcome:
    """An outcome that an event loop waits for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[CallOutcome] = self._loop.create_future()

    def put(self, outcome: CallOutcome, /) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._set, outcome)

    def _set(self, outcome: CallOutcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


def call_with_timeout(
    timeout_s: float, call: Callable[[], Any], cancellation: Cancellation | None = None
) -> Any:
    """Return the result of the call, or raise its error.

    Raises DeadlineExceededError after `timeout_s`, and CallCancelledError. An overdue or cancelled call ends at its
    next Python instruction; a wait in the kernel is not interrupted.
    """
    if timeout_s <= 0:
        raise DeadlineExceededError
    caller = getattr(_thread_state, "caller", None)
    _thread_state.caller = None
    if caller is None or not caller.thread.is_alive():  # a forked process has none of its parent's threads
        caller = _CallThread()
    try:
        value, error = caller.run_call(call, timeout_s, cancellation or Cancellation())
    except BaseException:  # Ctrl-C ends the call, too
        caller.abandon()
        raise
    _thread_state.caller = caller
    if error is not None:
        raise error
    return value


async def acall_with_timeout(timeout_s: float, call: Callable[[], Any], cancellation: Cancellation) -> Any:
    """Like `call_with_timeout`, without blocking the event loop. A cancelled task abandons its call."""
    if timeout_s <= 0:
        raise DeadlineExceededError
    caller, outcome = _take_caller(), _LoopOutcome()
    try:
        with cancellation.watch(outcome):
            caller.begin_call(call, outcome)
            done, _ = await asyncio.wait({outcome.future}, timeout=timeout_s)
        if not done:
            raise DeadlineExceededError
        value, error = outcome.future.result()
        if isinstance(error, CallCancelledError):
            raise error
    except BaseException:
        caller.abandon()
        raise
    if len(_idle_callers) < _MAX_IDLE_CALLERS:
        _idle_callers.append(caller)
    else:
        caller.stop_when_idle()
    if error is not None:
        raise error
    return value


async def await_with_timeout(
    timeout_s: float, call: Coroutine[Any, Any, Any], cancellation: Cancellation
) -> Any:
    """Return the result of the coroutine, or raise its error.

    Raises DeadlineExceededError after `timeout_s`, and CallCancelledError; the coroutine is cancelled then, and when the
    caller's task is.
    """
    task, outcome = asyncio.ensure_future(call), _LoopOutcome()
    try:
        with cancellation.watch(outcome):
            await asyncio.wait({task, outcome.future}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not outcome.future.done():
            if task.cancelled():
                raise ModelError("the client cancelled its own call")
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_GRACE_S)
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
    raise CallCancelledError if outcome.future.done() else DeadlineExceededError


def _take_caller() -> _CallThread:
    with contextlib.suppress(IndexError):  # the loops of several threads share the idle callers
        while True:
            caller = _idle_callers.pop()
            if caller.thread.is_alive():  # a forked process has none of its parent's threads
                return caller
    return _CallThread()


class _CallThread:
    """A daemon thread that runs calls one after another."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=_run_calls, args=(self._calls,), name="call", daemon=True)
        self.thread.start()
        # Ends the thread after its current call; runs by itself when the thread that owns this object ends.
        self.stop_when_idle = weakref.finalize(self, self._calls.put, None)

    def begin_call(self, call: Callable[[], Any], outcome: OutcomeSink) -> None:
        self._calls.put((contextvars.copy_context(), call, outcome))

    def run_call(self, call: Callable[[], Any], timeout_s: float, cancellation: Cancellation) -> CallOutcome:
        outcome: queue.SimpleQueue[CallOutcome] = queue.SimpleQueue()
        with cancellation.watch(outcome):
            self.begin_call(call, outcome)
            try:
                value, error = outcome.get(timeout=timeout_s)
            except queue.Empty:
                raise DeadlineExceededError from None
        if isinstance(error, CallCancelledError):
            raise error
        return value, error

    def abandon(self) -> None:
        """Raise in the thread, which receives no further call."""
        self.stop_when_idle()
        if self.thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident), ctypes.py_object(_AbandonedCallError)
            )


def _run_calls(calls: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(_AbandonedCallError):
        while (item := calls.get()) is not None:
            context, call, outcome = item
            try:
                outcome.put((context.run(call), None))
            except BaseException as error:
                outcome.put((None, error))
            del (
                item,
                context,
                call,
                outcome,
            )  # an idle thread must not keep the objects of its last call alive

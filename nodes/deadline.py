"""Calls that may hang, waited for only so long."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

_CallOutcome = tuple[Any, BaseException | None]
_idle_callers = threading.local()


class DeadlineExceededError(Exception):
    """A call had not ended when its time was over."""


class _AbandonedCallError(SystemExit):
    """Ends a thread whose result nobody waits for any more."""


def call_with_timeout(timeout_s: float, call: Callable[[], Any]) -> Any:
    """What the call returns or raises. Raises Overdue after so many seconds.

    The call then ends at the next Python instruction that it executes; what waits in the kernel goes on waiting.
    """
    caller = getattr(_idle_callers, "caller", None)
    _idle_callers.caller = None
    if caller is None or not caller.thread.is_alive():  # a process that was forked has no other's threads
        caller = _CallThread()
    try:
        returned, raised = caller.run_call(call, timeout_s)
    except BaseException:  # Ctrl-C ends it as well
        caller.stop_when_idle()
        caller.abort_call()
        raise
    _idle_callers.caller = caller
    if raised is not None:
        raise raised
    return returned


class _CallThread:
    """A thread that calls what it is given, one after another; it keeps no process from its end."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=_run_calls, args=(self._calls,), name="call", daemon=True)
        self.thread.start()
        # Lets the thread end with the call that it is at; also when who called it has ended.
        self.stop_when_idle = weakref.finalize(self, self._calls.put, None)

    def run_call(self, call: Callable[[], Any], timeout_s: float) -> _CallOutcome:
        outcome: queue.SimpleQueue[_CallOutcome] = queue.SimpleQueue()
        self._calls.put((contextvars.copy_context(), call, outcome))
        try:
            return outcome.get(timeout=timeout_s)
        except queue.Empty:
            raise DeadlineExceededError from None

    def abort_call(self) -> None:
        """Raise in the thread, which is given no other call afterwards."""
        if self.thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident), ctypes.py_object(_AbandonedCallError)
            )


def _run_calls(calls: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(_AbandonedCallError):
        while (given := calls.get()) is not None:
            context, call, outcome = given
            try:
                outcome.put((context.run(call), None))
            except BaseException as error:
                outcome.put((None, error))
            del given, context, call, outcome  # what a call held lives no longer than it

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

_Outcome = tuple[Any, BaseException | None]
_idle = threading.local()


class Overdue(Exception):
    """A call had not ended when its time was over."""


class _Abandoned(SystemExit):
    """Ends a thread whose result nobody waits for any more."""


def within(timeout_s: float, call: Callable[[], Any]) -> Any:
    """What the call returns or raises. Raises Overdue after so many seconds.

    The call then ends at the next Python instruction that it executes; what waits in the kernel goes on waiting.
    """
    caller = getattr(_idle, "caller", None)
    _idle.caller = None
    if caller is None or not caller.thread.is_alive():  # a process that was forked has no other's threads
        caller = _Caller()
    try:
        returned, raised = caller.outcome_of(call, timeout_s)
    except BaseException:  # Ctrl-C ends it as well
        caller.dismiss()
        caller.end_call()
        raise
    _idle.caller = caller
    if raised is not None:
        raise raised
    return returned


class _Caller:
    """A thread that calls what it is given, one after another; it keeps no process from its end."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=_serve, args=(self._asked,), name="call", daemon=True)
        self.thread.start()
        # Lets the thread end with the call that it is at; also when who called it has ended.
        self.dismiss = weakref.finalize(self, self._asked.put, None)

    def outcome_of(self, call: Callable[[], Any], timeout_s: float) -> _Outcome:
        outcome: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._asked.put((contextvars.copy_context(), call, outcome))
        try:
            return outcome.get(timeout=timeout_s)
        except queue.Empty:
            raise Overdue from None

    def end_call(self) -> None:
        """Raise in the thread, which is given no other call afterwards."""
        if self.thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident), ctypes.py_object(_Abandoned)
            )


def _serve(asked: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(_Abandoned):
        while (given := asked.get()) is not None:
            context, call, outcome = given
            try:
                outcome.put((context.run(call), None))
            except BaseException as error:
                outcome.put((None, error))
            del given, context, call, outcome  # what a call held lives no longer than it

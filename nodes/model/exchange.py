"""Calls that may hang, waited for only so long."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import Runnable, RunnableBinding

from langgraph_takeover.sandbox.interface import TakeoverError

_CallOutcome = tuple[Any, BaseException | None]
_idle_callers = threading.local()


class DeadlineExceededError(TakeoverError):
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


if TYPE_CHECKING:
    from langgraph_takeover.nodes.model.http_client import EndpointClient

_ReturnT = TypeVar("_ReturnT")
_thread_state = threading.local()


class Exchange:
    """One call; retries of a client library included."""

    refusal = ""
    """Why the reply was refused; empty if it was not."""

    def __init__(self, timeout_s: float) -> None:
        self._ends_at = time.monotonic() + timeout_s
        self._client: EndpointClient | None = None

    @property
    def remaining_s(self) -> float:
        return self._ends_at - time.monotonic()

    def run(self, call: Callable[[], _ReturnT]) -> _ReturnT:
        """What the call returns or raises. Raises Overdue, and ends the connection, when the time is over."""
        try:
            returned: _ReturnT = call_with_timeout(
                max(self.remaining_s, 0.0), lambda: _discard_client_on_error(call)
            )
        except DeadlineExceededError:
            if self._client is not None:
                self._client.disconnect()
            raise
        return returned

    def attach_client(self) -> EndpointClient:
        """The HTTP client of the calling thread, for this exchange."""
        held: _ThreadClient | None = getattr(_thread_state, "held", None)
        if held is None:
            held = _thread_state.held = _ThreadClient()
        self._client = held.client
        held.client.exchange = self
        return held.client

    def bind_model(self, model: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """The model with replies of bounded size, if it is an OpenAI client without an HTTP client of its own."""
        update: dict[str, Any] = {}
        # No model is from a library that nobody imported.
        library = sys.modules.get("langchain_openai.chat_models.base")
        if isinstance(model, RunnableBinding):
            update = {"bound": self.bind_model(model.bound)}
        elif (
            library
            and isinstance(model, library.BaseChatOpenAI)
            and model.root_client
            and not model.http_client
        ):
            root = model.root_client.with_options(http_client=self.attach_client())
            update = {"root_client": root, "client": root.chat.completions}
        return model.model_copy(update=update) if update else model  # type: ignore[attr-defined]


class _ThreadClient:
    """The HTTP client of a thread, closed when the thread ends."""

    def __init__(self) -> None:
        from langgraph_takeover.nodes.model.http_client import EndpointClient

        self.client = EndpointClient()
        self.close = weakref.finalize(self, self.client.close)
        self.close.atexit = False  # a daemon thread may still use it, and the process closes its sockets


def _discard_client_on_error(call: Callable[[], _ReturnT]) -> _ReturnT:
    try:
        return call()
    except BaseException:
        # The connection may hold the rest of a reply.
        held: _ThreadClient | None = _thread_state.__dict__.pop("held", None)
        if held is not None:
            held.close()
        raise

"""Calls with a deadline, and model calls whose connection ends with it."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from langchain_core.runnables import Runnable, RunnableBinding

from langgraph_takeover.sandbox.interface import TakeoverError

if TYPE_CHECKING:
    from langgraph_takeover.nodes.model.http_client import EndpointClient

_ReturnT = TypeVar("_ReturnT")
_CallOutcome = tuple[Any, BaseException | None]
_thread_state = threading.local()
"""Per thread: `caller`, an idle thread for its calls, and `client`, its HTTP client."""


class DeadlineExceededError(TakeoverError, TimeoutError):
    """A call did not end before its deadline."""


class CallCancelledError(TakeoverError):
    """Another thread ended the call."""


class Cancellation:
    """Ends calls from another thread: those in progress, and all later ones."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._waiting: set[queue.SimpleQueue[_CallOutcome]] = set()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled.set()
            for outcome in self._waiting:
                outcome.put((None, CallCancelledError()))

    @contextlib.contextmanager
    def watch(self, outcome: queue.SimpleQueue[_CallOutcome]) -> Iterator[None]:
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
        """Sleep until the calls are cancelled, at most that long."""
        self._cancelled.wait(seconds)


class _AbandonedCallError(SystemExit):
    """Ends a thread whose result nobody needs."""


def call_with_timeout(
    timeout_s: float, call: Callable[[], Any], cancellation: Cancellation | None = None
) -> Any:
    """Return what the call returns, or raise what it raises.

    Raises DeadlineExceededError after `timeout_s`, and CallCancelledError. An overdue or cancelled call ends at its
    next Python instruction; a wait in the kernel is not interrupted.
    """
    caller = getattr(_thread_state, "caller", None)
    _thread_state.caller = None
    if caller is None or not caller.thread.is_alive():  # a forked process has none of its parent's threads
        caller = _CallThread()
    try:
        value, error = caller.run_call(call, timeout_s, cancellation or Cancellation())
    except BaseException:  # Ctrl-C ends the call, too
        caller.stop_when_idle()
        caller.abort_call()
        raise
    _thread_state.caller = caller
    if error is not None:
        raise error
    return value


class _CallThread:
    """A daemon thread that runs calls one after another."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=_run_calls, args=(self._calls,), name="call", daemon=True)
        self.thread.start()
        # Ends the thread after its current call; runs by itself when the thread that owns this object ends.
        self.stop_when_idle = weakref.finalize(self, self._calls.put, None)

    def run_call(self, call: Callable[[], Any], timeout_s: float, cancellation: Cancellation) -> _CallOutcome:
        outcome: queue.SimpleQueue[_CallOutcome] = queue.SimpleQueue()
        with cancellation.watch(outcome):
            self._calls.put((contextvars.copy_context(), call, outcome))
            try:
                value, error = outcome.get(timeout=timeout_s)
            except queue.Empty:
                raise DeadlineExceededError from None
        if isinstance(error, CallCancelledError):
            raise error
        return value, error

    def abort_call(self) -> None:
        """Raise in the thread, which receives no further call."""
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


@runtime_checkable
class ClientUser(Protocol):
    """A model that sends its requests with the HTTP client of the exchange."""

    def use_client(self, client: EndpointClient) -> Runnable[Any, Any]: ...


class Exchange:
    """One model call with a deadline, including retries of the client library."""

    refusal = ""
    """Why the client refused the reply; empty if it did not."""
    billable_requests = 0
    """Requests that the endpoint did not refuse, so that it may have billed them; known for its own HTTP client only."""

    def __init__(self, timeout_s: float, cancellation: Cancellation | None = None) -> None:
        self._cancellation = cancellation or Cancellation()
        self._ends_at = time.monotonic() + timeout_s
        self._client: EndpointClient | None = None

    @property
    def counts_requests(self) -> bool:
        return self._client is not None

    @property
    def remaining_s(self) -> float:
        return self._ends_at - time.monotonic()

    def run(self, call: Callable[[], _ReturnT]) -> _ReturnT:
        """Return what the call returns, or raise what it raises.

        Raises DeadlineExceededError when the time is over, or CallCancelledError, and disconnects.
        """
        try:
            value: _ReturnT = call_with_timeout(
                max(self.remaining_s, 0.0), lambda: _discard_client_on_error(call), self._cancellation
            )
        except (DeadlineExceededError, CallCancelledError):
            if self._client is not None:
                self._client.disconnect()
            raise
        return value

    def attach_client(self) -> EndpointClient:
        """Return the HTTP client of the calling thread, bound to this exchange."""
        holder: _ThreadClient | None = getattr(_thread_state, "client", None)
        if holder is None:
            holder = _thread_state.client = _ThreadClient()
        self._client = holder.client
        holder.client.exchange = self
        return holder.client

    def bind_model(self, model: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """Return the model with replies of bounded size, if it is an OpenAI client without its own HTTP client
        or a `ClientUser`.
        """
        update: dict[str, Any] = {}
        # If nobody imported the library, the model is not from it.
        library = sys.modules.get("langchain_openai.chat_models.base")
        if isinstance(model, RunnableBinding):
            update = {"bound": self.bind_model(model.bound)}
        elif isinstance(model, ClientUser):
            return model.use_client(self.attach_client())
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
    """The HTTP client of one thread, closed when the thread ends."""

    def __init__(self) -> None:
        from langgraph_takeover.nodes.model.http_client import EndpointClient

        self.client = EndpointClient()
        self.close = weakref.finalize(self, self.client.close)
        self.close.atexit = False  # a daemon thread may still use it, and the process closes its sockets


def _discard_client_on_error(call: Callable[[], _ReturnT]) -> _ReturnT:
    try:
        return call()
    except BaseException:
        # The rest of a reply may be left on the connection.
        holder: _ThreadClient | None = _thread_state.__dict__.pop("client", None)
        if holder is not None:
            holder.close()
        raise

"""One call of a model endpoint, bounded in time and, through a client of this project, in bytes."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import Runnable, RunnableBinding

from nodes.deadline import DeadlineExceededError, call_with_timeout

if TYPE_CHECKING:
    from nodes.endpoint import EndpointClient

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
        from nodes.endpoint import EndpointClient

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

"""One call of a model endpoint, bounded in time and, through a client of this project, in bytes."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import Runnable, RunnableBinding

from nodes.deadline import Overdue, within

if TYPE_CHECKING:
    from nodes.endpoint import EndpointClient

_Returned = TypeVar("_Returned")
_thread = threading.local()


class Exchange:
    """One call; retries of a client library included."""

    refused = ""
    """Why the reply was refused; empty if it was not."""

    def __init__(self, timeout_s: float) -> None:
        self._ends_at = time.monotonic() + timeout_s
        self._client: EndpointClient | None = None

    @property
    def left_s(self) -> float:
        return self._ends_at - time.monotonic()

    def run(self, call: Callable[[], _Returned]) -> _Returned:
        """What the call returns or raises. Raises Overdue, and ends the connection, when the time is over."""
        try:
            returned: _Returned = within(max(self.left_s, 0.0), lambda: _leaving_no_half_exchange(call))
        except Overdue:
            if self._client is not None:
                self._client.disconnect()
            raise
        return returned

    def client(self) -> EndpointClient:
        """The HTTP client of the calling thread, for this exchange."""
        held: _HeldClient | None = getattr(_thread, "held", None)
        if held is None:
            held = _thread.held = _HeldClient()
        self._client = held.client
        held.client.exchange = self
        return held.client

    def bound_model(self, model: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """The model with replies of bounded size, if it is an OpenAI client without an HTTP client of its own."""
        update: dict[str, Any] = {}
        # No model is from a library that nobody imported.
        library = sys.modules.get("langchain_openai.chat_models.base")
        if isinstance(model, RunnableBinding):
            update = {"bound": self.bound_model(model.bound)}
        elif (
            library
            and isinstance(model, library.BaseChatOpenAI)
            and model.root_client
            and not model.http_client
        ):
            root = model.root_client.with_options(http_client=self.client())
            update = {"root_client": root, "client": root.chat.completions}
        return model.model_copy(update=update) if update else model  # type: ignore[attr-defined]


class _HeldClient:
    """The HTTP client of a thread, closed when the thread ends."""

    def __init__(self) -> None:
        from nodes.endpoint import EndpointClient

        self.client = EndpointClient()
        self.close = weakref.finalize(self, self.client.close)
        self.close.atexit = False  # a daemon thread may still use it, and the process closes its sockets


def _leaving_no_half_exchange(call: Callable[[], _Returned]) -> _Returned:
    try:
        return call()
    except BaseException:
        # The connection may hold the rest of a reply.
        held: _HeldClient | None = _thread.__dict__.pop("held", None)
        if held is not None:
            held.close()
        raise

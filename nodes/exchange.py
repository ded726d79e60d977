"""One call of a model endpoint, bounded in time and, through a client of this project, in bytes."""

from __future__ import annotations

import sys
import threading
import time
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
            returned: _Returned = within(self.left_s, lambda: _leaving_no_half_exchange(call))
        except Overdue:
            if self._client is not None:
                self._client.disconnect()
            raise
        return returned

    def client(self) -> EndpointClient:
        """The HTTP client of the calling thread, for this exchange."""
        from nodes.endpoint import EndpointClient

        client: EndpointClient = getattr(_thread, "client", None) or EndpointClient()
        _thread.client = self._client = client
        client.exchange = self
        return client

    def bounded(self, model: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """The model with replies of bounded size, if it is an OpenAI client without an HTTP client of its own."""
        update: dict[str, Any] = {}
        # No model is from a library that nobody imported.
        library = sys.modules.get("langchain_openai.chat_models.base")
        if isinstance(model, RunnableBinding):
            update = {"bound": self.bounded(model.bound)}
        elif (
            library
            and isinstance(model, library.BaseChatOpenAI)
            and model.root_client
            and not model.http_client
        ):
            root = model.root_client.with_options(http_client=self.client())
            update = {"root_client": root, "client": root.chat.completions}
        return model.model_copy(update=update) if update else model  # type: ignore[attr-defined]


def _leaving_no_half_exchange(call: Callable[[], _Returned]) -> _Returned:
    try:
        return call()
    except BaseException:
        # The connection may hold the rest of a reply.
        client = _thread.__dict__.pop("client", None)
        if client is not None:
            client.close()
        raise

"""Model calls whose connection ends with their deadline, and limits on what an endpoint may send."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import httpx2
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableBinding, RunnableLambda

from langgraph_takeover.nodes.model.deadlines import (
    CallCancelledError,
    Cancellation,
    DeadlineExceededError,
    acall_with_timeout,
    await_with_timeout,
    call_with_timeout,
)
from langgraph_takeover.nodes.model.openai_client import complete_client, is_openai

MIB = 1024**2
_CHUNK_BYTES = 16_384
"""Size of the chunks that are passed on: a client's cost per chunk may grow with its square."""
ENCODINGS = ("identity", "gzip", "deflate")
"""Of these, a chunk grows a thousandfold at most when it is decompressed; of others, without any limit."""
_DROPPED_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


class ReplyLimits(NamedTuple):
    """Limits of a decompressed reply."""

    content_bytes: int
    structure_count: int
    """Objects, lists and lines. A client allocates about 1 kB for each, however short it is."""
    line_bytes: int
    """Bytes between two blank lines."""


WHOLE_REPLY_LIMITS = ReplyLimits(content_bytes=4 * MIB, structure_count=100_000, line_bytes=4 * MIB)
"""The longest replies of today's models, 128,000 tokens, take less than 1 MiB."""
STREAM_LIMITS = ReplyLimits(content_bytes=64 * MIB, structure_count=1_000_000, line_bytes=2 * MIB)
"""The same reply as a stream, one event per token."""


class CallState(Protocol):
    """The model call that a client serves; `Exchange` implements it."""

    refusal: str
    """Why the client refused the reply; the client sets it."""
    billable_requests: int
    """Requests that were sent and not refused; the client counts them."""

    @property
    def remaining_s(self) -> float: ...


class ReplyMeter:
    """Passes the chunks of a reply on while they are within the limits and the call's time."""

    def __init__(self, response: httpx2.Response, limits: ReplyLimits, exchange: CallState | None) -> None:
        self._response, self._limits, self._exchange = response, limits, exchange
        self._content_bytes = self._structure_count = self._line_bytes = 0
        self._last = b""

    def require_known_encoding(self) -> None:
        """Refuse a response in an unknown content encoding. Raises httpx2.DecodingError."""
        if self._response.headers.get("content-encoding", "identity").strip().lower() not in ENCODINGS:
            self._refuse(f"its content is compressed in another way than {' or '.join(ENCODINGS[1:])}")

    def pass_on(self, decoded: bytes) -> Iterator[bytes]:
        """Count and yield a piece in chunks. Raises httpx2.DecodingError and httpx2.ReadTimeout."""
        for start in range(0, len(decoded), _CHUNK_BYTES):
            chunk = decoded[start : start + _CHUNK_BYTES]
            self._content_bytes += len(chunk)
            # In every encoding that JSON may have, one byte of each bracket is this one.
            self._structure_count += sum(map(chunk.count, (b"{", b"[", b"\n", b"\r")))
            # A blank line may begin in one chunk and end in the next.
            joined = self._last + chunk
            blank = max(map(joined.rfind, (b"\n\n", b"\r\r", b"\n\r")))
            self._line_bytes = len(joined) - blank if blank >= 0 else self._line_bytes + len(chunk)
            self._last = chunk[-1:]
            self._check_limits()
            if self._exchange is not None and self._exchange.remaining_s <= 0:
                raise httpx2.ReadTimeout("the exchange is over", request=self._response.request)
            yield chunk

    def _check_limits(self) -> None:
        limits = self._limits
        if self._content_bytes > limits.content_bytes:
            self._refuse(f"it is longer than {limits.content_bytes // MIB} MiB")
        if self._line_bytes > limits.line_bytes:
            self._refuse(f"it has more than {limits.line_bytes // MIB} MiB without a blank line")
        if self._structure_count > limits.structure_count:
            self._refuse(f"it has more than {limits.structure_count:,} objects, lists and lines")

    def _refuse(self, reason: str) -> None:
        if self._exchange is not None:
            self._exchange.refusal = reason
        raise httpx2.DecodingError(reason, request=self._response.request)


def begin_request(request: httpx2.Request, exchange: CallState | None) -> None:
    """Count a request and limit its time. Raises httpx2.ReadTimeout if the call is over."""
    if exchange is None:
        return
    if exchange.refusal or exchange.remaining_s <= 0:
        raise httpx2.ReadTimeout("the exchange is over", request=request)
    timeouts = _limit_timeouts(request.extensions.get("timeout", {}), exchange.remaining_s)
    request.extensions = {**request.extensions, "timeout": timeouts}
    exchange.billable_requests += 1


def uncount_request(exchange: CallState | None) -> None:
    """Take back the count of a request that an endpoint refused or never received."""
    if exchange is not None:
        exchange.billable_requests -= 1


def bound_reply(
    response: httpx2.Response,
    exchange: CallState | None,
    bound_stream: Callable[[httpx2.Response, ReplyMeter], httpx2.SyncByteStream | httpx2.AsyncByteStream],
    *,
    stream: bool,
) -> httpx2.Response:
    """Return the response with its content decompressed and limited."""
    if not response.is_success:
        uncount_request(exchange)
    limits = STREAM_LIMITS if stream and response.is_success else WHOLE_REPLY_LIMITS
    return httpx2.Response(
        response.status_code,
        headers=_list_decoded_headers(response),
        stream=bound_stream(response, ReplyMeter(response, limits, exchange)),
        request=response.request,
        extensions=response.extensions,
    )


def _list_decoded_headers(response: httpx2.Response) -> list[tuple[str, str]]:
    """Return the headers of the decompressed content, without a charset: some codecs of Python take quadratic time."""
    return [
        (name, value.partition(";")[0] if name.lower() == "content-type" else value)
        for name, value in response.headers.multi_items()
        if name.lower() not in _DROPPED_HEADERS
    ]


def _limit_timeouts(timeouts: Mapping[str, Any], remaining_s: float) -> dict[str, float]:
    return {
        kind: min(timeouts.get(kind) or remaining_s, remaining_s)
        for kind in ("connect", "read", "write", "pool")
    }


@lru_cache
def create_ssl_context() -> ssl.SSLContext:
    """Return the settings for TLS, which take 20 ms to load, for all clients."""
    return httpx2.create_ssl_context()


class EndpointClient(httpx2.Client):
    """The HTTP client of one thread. It has one connection, which another thread can end."""

    def __init__(self) -> None:
        super().__init__(
            verify=create_ssl_context(),
            limits=httpx2.Limits(max_connections=1),
            headers={"Accept-Encoding": ", ".join(ENCODINGS[1:])},
        )
        self.exchange: CallState | None = None
        self._connection: Any = None

    def send(self, request: httpx2.Request, *, stream: bool = False, **settings: Any) -> httpx2.Response:
        """Send a request. Raises httpx2.DecodingError for a reply beyond the limits."""
        exchange = self.exchange
        begin_request(request, exchange)
        if exchange is not None:
            request.extensions = {**request.extensions, "trace": self._remember_connection}
        try:
            # A redirect could lead to services that only this host can reach.
            response = super().send(request, **{**settings, "stream": True, "follow_redirects": False})
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            uncount_request(exchange)
            raise
        # An endpoint could fill the cookie jar call by call.
        self.cookies.clear()
        reply = bound_reply(response, exchange, _BoundedStream, stream=stream)
        if not stream:
            with contextlib.closing(reply):
                reply.read()
        return reply

    def disconnect(self) -> None:
        """End the connection while another thread reads from it or writes to it."""
        connection = self._connection and self._connection.get_extra_info("socket")
        if connection:
            with contextlib.suppress(OSError):
                # As a plain socket: SSLSocket.shutdown drops its state while the other thread uses it.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _remember_connection(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._connection = info["return_value"]


class _BoundedStream(httpx2.SyncByteStream):
    """The decompressed content of a response, up to its limits."""

    def __init__(self, response: httpx2.Response, meter: ReplyMeter) -> None:
        self._response, self._meter = response, meter

    def __iter__(self) -> Iterator[bytes]:
        self._meter.require_known_encoding()
        for decoded in self._response.iter_bytes():
            yield from self._meter.pass_on(decoded)

    def close(self) -> None:
        self._response.close()


_exchange: ContextVar[CallState | None] = ContextVar("exchange", default=None)
"""The model call that the current task makes."""
_keepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Keeper] = weakref.WeakKeyDictionary()


class AsyncEndpointClient(httpx2.AsyncClient):
    """The HTTP client of one event loop, whose tasks share its connections."""

    def __init__(self) -> None:
        super().__init__(
            verify=create_ssl_context(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            headers={"Accept-Encoding": ", ".join(ENCODINGS[1:])},
        )

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **settings: Any
    ) -> httpx2.Response:
        """Send a request. Raises httpx2.DecodingError for a reply beyond the limits."""
        exchange = _exchange.get()
        begin_request(request, exchange)
        try:
            # A redirect could lead to services that only this host can reach.
            response = await super().send(request, **{**settings, "stream": True, "follow_redirects": False})
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            uncount_request(exchange)
            raise
        # An endpoint could fill the cookie jar call by call.
        self.cookies.clear()
        reply = bound_reply(response, exchange, _BoundedAsyncStream, stream=stream)
        if not stream:
            async with contextlib.aclosing(reply):
                await reply.aread()
        return reply


class _BoundedAsyncStream(httpx2.AsyncByteStream):
    """The decompressed content of a response, up to its limits."""

    def __init__(self, response: httpx2.Response, meter: ReplyMeter) -> None:
        self._response, self._meter = response, meter

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._meter.require_known_encoding()
        async for decoded in self._response.aiter_bytes():
            for chunk in self._meter.pass_on(decoded):
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


class _Keeper:
    """Keeps the client of an event loop until the loop shuts its asynchronous generators down, as `asyncio.run` does."""

    def __init__(self, client: AsyncEndpointClient, closing: AsyncGenerator[None, None]) -> None:
        self.client, self.closing = client, closing


async def _close_at_the_end(client: AsyncEndpointClient) -> AsyncGenerator[None, None]:
    async with client:
        yield


async def attach_async_client(exchange: CallState) -> AsyncEndpointClient:
    """Return the HTTP client of the running event loop; the current task's requests count for the exchange."""
    _exchange.set(exchange)
    loop = asyncio.get_running_loop()
    keeper = _keepers.get(loop)
    if keeper is None:
        client = AsyncEndpointClient()
        keeper = _keepers[loop] = _Keeper(client, _close_at_the_end(client))
        await anext(keeper.closing)
    return keeper.client


_ReturnT = TypeVar("_ReturnT")
_thread_state = threading.local()
"""Per thread: `client`, its HTTP client."""
event_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("event_loop", default=None)
"""In a thread that works for an event loop: that loop. Asynchronous clients are awaited there."""
_GRACE_S = 10.0
"""Time after a call's deadline at which a loop that does not answer counts as stopped."""


@runtime_checkable
class ClientUser(Protocol):
    """A model that sends its requests with the HTTP client of the exchange."""

    def use_client(self, client: EndpointClient) -> Runnable[Any, Any]: ...


class Exchange:
    """One attempt of a model call, with a deadline."""

    refusal = ""
    """Why the client refused the reply; empty if it did not."""
    billable_requests = 0
    """Requests that the endpoint did not refuse, so that it may have billed them; known for its own HTTP client only."""

    def __init__(self, timeout_s: float, cancellation: Cancellation | None = None) -> None:
        self._cancellation = cancellation or Cancellation()
        self._ends_at = time.monotonic() + timeout_s
        self._client: EndpointClient | None = None
        self._counts_requests = False

    @property
    def counts_requests(self) -> bool:
        return self._counts_requests

    @property
    def remaining_s(self) -> float:
        return self._ends_at - time.monotonic()

    def run(self, call: Callable[[], _ReturnT]) -> _ReturnT:
        """Return the result of the call, or raise its error.

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

    def ask(self, model: Runnable[Any, Any], messages: list[Any]) -> Any:
        """Return the model's reply. Raises what the client and `run` raise.

        In a thread that works for an event loop, an asynchronous client is awaited in that loop.
        """
        loop = event_loop.get()
        if loop is None or not _is_asynchronous(model):
            return self.run(lambda: self.bind_model(model).invoke(messages))
        waiting = asyncio.run_coroutine_threadsafe(self.aask(model, messages), loop)
        try:
            return waiting.result(max(self.remaining_s, 0.0) + _GRACE_S)
        except TimeoutError:
            if waiting.done():
                raise
            waiting.cancel()
            raise DeadlineExceededError from None

    async def aask(self, model: Runnable[Any, Any], messages: list[Any]) -> Any:
        """Return the model's reply without blocking the event loop. A client without an asynchronous call gets a thread."""
        timeout_s = max(self.remaining_s, 0.0)
        if _is_asynchronous(model):
            return await await_with_timeout(timeout_s, self._await_reply(model, messages), self._cancellation)
        call = lambda: _discard_client_on_error(lambda: self.bind_model(model).invoke(messages))  # noqa: E731
        try:
            return await acall_with_timeout(timeout_s, call, self._cancellation)
        except (DeadlineExceededError, CallCancelledError, asyncio.CancelledError):
            if self._client is not None:
                self._client.disconnect()
            raise

    async def _await_reply(self, model: Runnable[Any, Any], messages: list[Any]) -> Any:
        bound = await self._abind_model(model)
        return await bound.ainvoke(messages)

    async def _abind_model(self, model: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """Like `bind_model`, for the client of the event loop."""
        if isinstance(model, RunnableBinding):
            return model.model_copy(update={"bound": await self._abind_model(model.bound)})
        client: Any = model
        if not is_openai(client) or not client.root_async_client:
            return model
        options: dict[str, Any] = {}
        if not client.http_async_client:
            from langgraph_takeover.nodes.model.exchange import attach_async_client

            self._counts_requests = True
            options["http_client"] = await attach_async_client(self)
        root = client.root_async_client.with_options(max_retries=0, **options)
        update = {"root_async_client": root, "async_client": root.chat.completions}
        bound: Runnable[Any, Any] = complete_client(client.model_copy(update=update))
        return bound

    def attach_client(self) -> EndpointClient:
        """Return the HTTP client of the calling thread, bound to this exchange."""
        holder: _ThreadClient | None = getattr(_thread_state, "client", None)
        if holder is None:
            holder = _thread_state.client = _ThreadClient()
        self._client, self._counts_requests = holder.client, True
        holder.client.exchange = self
        return holder.client

    def bind_model(self, model: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """Return the model with replies of bounded size, if it is an OpenAI client without its own HTTP client
        or a `ClientUser`. An OpenAI client does not retry: `ModelCall` does, and shows its waits.
        """
        client: Any = model
        if isinstance(model, RunnableBinding):
            return model.model_copy(update={"bound": self.bind_model(model.bound)})
        if isinstance(model, ClientUser):
            return model.use_client(self.attach_client())
        if not is_openai(client) or not client.root_client:
            return model
        options: dict[str, Any] = {} if client.http_client else {"http_client": self.attach_client()}
        root = client.root_client.with_options(max_retries=0, **options)
        update = {"root_client": root, "client": root.chat.completions}
        bound: Runnable[Any, Any] = complete_client(client.model_copy(update=update))
        return bound


class _ThreadClient:
    """The HTTP client of one thread, closed when the thread ends."""

    def __init__(self) -> None:
        from langgraph_takeover.nodes.model.exchange import EndpointClient

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


def _is_asynchronous(model: Any) -> bool:
    """Whether the model has an asynchronous call of its own, instead of the library's that blocks a thread."""
    while isinstance(model, RunnableBinding):
        model = model.bound
    if isinstance(model, ClientUser):
        return False
    if is_openai(model):
        # With an HTTP client of its own for synchronous calls only, the other one could reach another network.
        return bool(model.root_async_client and (model.http_async_client or not model.http_client))
    if isinstance(model, RunnableLambda):
        return hasattr(model, "afunc") or inspect.iscoroutinefunction(getattr(model, "func", None))
    kind = type(model)
    if isinstance(model, BaseChatModel) and kind.ainvoke is BaseChatModel.ainvoke:
        return kind._agenerate is not BaseChatModel._agenerate
    return bool(kind.ainvoke is not Runnable.ainvoke)

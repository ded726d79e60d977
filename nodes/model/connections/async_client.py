"""The HTTP client of an event loop for untrusted model endpoints, with the limits of `http_client`."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextvars import ContextVar
from typing import Any

import httpx2

from langgraph_takeover.nodes.model.connections.reply_limits import (
    ENCODINGS,
    CallState,
    ReplyMeter,
    begin_request,
    bound_reply,
    create_ssl_context,
    uncount_request,
)

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

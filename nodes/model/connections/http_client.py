"""An HTTP client for untrusted model endpoints: limits on bytes and structure, no redirects."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
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

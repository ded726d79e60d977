"""An HTTP client for model endpoints that trusts no reply: bounded bytes, bounded structure, no redirects."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import httpx2

from langgraph_takeover.nodes.model.exchange import Exchange

_CHUNK_BYTES = 16_384
"""Bytes that are passed on at once: a client's cost per piece may grow with its square."""
_DROPPED_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


class ReplyLimits(NamedTuple):
    """What a reply may hold, decompressed."""

    content_bytes: int
    """Bytes."""
    structure_count: int
    """Objects, lists and lines: a client builds about 1 kB for each, whatever its bytes."""
    line_bytes: int
    """Bytes between two blank lines."""


MIB = 1024**2
WHOLE_REPLY_LIMITS = ReplyLimits(content_bytes=4 * MIB, structure_count=100_000, line_bytes=4 * MIB)
"""The longest replies of today's models, of 128,000 tokens, take less than 1 MiB."""
STREAM_LIMITS = ReplyLimits(content_bytes=64 * MIB, structure_count=1_000_000, line_bytes=2 * MIB)
"""The same reply, one event for each token."""


class EndpointClient(httpx2.Client):
    """The client of one thread: it has one connection, so that an overdue exchange can be ended from another thread."""

    def __init__(self) -> None:
        super().__init__(verify=_create_ssl_context(), limits=httpx2.Limits(max_connections=1))
        self.exchange: Exchange | None = None
        self._connection: Any = None

    def send(self, request: httpx2.Request, *, stream: bool = False, **settings: Any) -> httpx2.Response:
        """Raises httpx2.DecodingError for a reply beyond the limits."""
        exchange = self.exchange
        if exchange is not None:
            if exchange.refusal or exchange.remaining_s <= 0:
                raise httpx2.ReadTimeout("the exchange is over", request=request)
            request.extensions = {
                **request.extensions,
                "trace": self._remember_connection,
                "timeout": _limit_timeouts(request.extensions.get("timeout", {}), exchange.remaining_s),
            }
        # A redirect could lead to services that only this host reaches.
        received = super().send(request, **{**settings, "stream": True, "follow_redirects": False})
        # An endpoint could fill the jar, call by call.
        self.cookies.clear()
        limits = STREAM_LIMITS if stream and received.is_success else WHOLE_REPLY_LIMITS
        reply = httpx2.Response(
            received.status_code,
            headers=_list_decoded_headers(received),
            stream=_BoundedStream(received, limits, exchange),
            request=request,
            extensions=received.extensions,
        )
        if not stream:
            with contextlib.closing(reply):
                reply.read()
        return reply

    def disconnect(self) -> None:
        """End the connection under a thread that still reads or writes."""
        connected = self._connection and self._connection.get_extra_info("socket")
        if connected:
            with contextlib.suppress(OSError):
                # As a plain socket: SSLSocket.shutdown drops its state while the other thread uses it.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def _remember_connection(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._connection = info["return_value"]


class _BoundedStream(httpx2.SyncByteStream):
    """The decompressed content of a response, up to its limits."""

    def __init__(self, response: httpx2.Response, limits: ReplyLimits, exchange: Exchange | None) -> None:
        self._response, self._limits, self._exchange = response, limits, exchange

    def __iter__(self) -> Iterator[bytes]:
        content = parts = line = 0
        last = b""
        if "," in self._response.headers.get("content-encoding", ""):
            self._refuse("its content is compressed more than once")
        for decoded in self._response.iter_bytes():
            for start in range(0, len(decoded), _CHUNK_BYTES):
                piece = decoded[start : start + _CHUNK_BYTES]
                content += len(piece)
                # In every encoding that JSON may have, one byte of each bracket is this one.
                parts += sum(map(piece.count, (b"{", b"[", b"\n", b"\r")))
                # A blank line may begin in one piece and end in the next.
                joined = last + piece
                blank = max(map(joined.rfind, (b"\n\n", b"\r\r", b"\n\r")))
                line = len(joined) - blank if blank >= 0 else line + len(piece)
                last = piece[-1:]
                if content > self._limits.content_bytes:
                    self._refuse(f"it is longer than {self._limits.content_bytes // MIB} MiB")
                if line > self._limits.line_bytes:
                    self._refuse(
                        f"it has more than {self._limits.line_bytes // MIB} MiB without a blank line"
                    )
                if parts > self._limits.structure_count:
                    self._refuse(
                        f"it has more than {self._limits.structure_count:,} objects, lists and lines"
                    )
                if self._exchange is not None and self._exchange.remaining_s <= 0:
                    raise httpx2.ReadTimeout("the exchange is over", request=self._response.request)
                yield piece

    def close(self) -> None:
        self._response.close()

    def _refuse(self, reason: str) -> None:
        if self._exchange is not None:
            self._exchange.refusal = reason
        raise httpx2.DecodingError(reason, request=self._response.request)


def _list_decoded_headers(response: httpx2.Response) -> list[tuple[str, str]]:
    """The headers of the decompressed content, in UTF-8: some of Python's codecs take the square of its length."""
    return [
        (name, value.partition(";")[0] if name.lower() == "content-type" else value)
        for name, value in response.headers.multi_items()
        if name.lower() not in _DROPPED_HEADERS
    ]


def _limit_timeouts(timeouts: Mapping[str, float | None], remaining_s: float) -> dict[str, float]:
    return {
        kind: min(timeouts.get(kind) or remaining_s, remaining_s)
        for kind in ("connect", "read", "write", "pool")
    }


@lru_cache
def _create_ssl_context() -> ssl.SSLContext:
    return httpx2.create_ssl_context()

"""An HTTP client for model endpoints that trusts no reply: bounded bytes, bounded structure, no redirects."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import httpx2

from nodes.exchange import Exchange

_PIECE = 16_384
"""Bytes that are passed on at once: a client's cost per piece may grow with its square."""
_REBUILT = ("content-encoding", "content-length", "transfer-encoding")


class Limits(NamedTuple):
    """What a reply may hold, decompressed."""

    content: int
    """Bytes."""
    parts: int
    """Objects, lists and lines: a client builds about 1 kB for each, whatever its bytes."""
    line: int
    """Bytes between two blank lines."""


MIB = 1024**2
WHOLE = Limits(content=4 * MIB, parts=100_000, line=4 * MIB)
"""The longest replies of today's models, of 128,000 tokens, take less than 1 MiB."""
STREAM = Limits(content=64 * MIB, parts=1_000_000, line=2 * MIB)
"""The same reply, one event for each token."""


class EndpointClient(httpx2.Client):
    """The client of one thread: it has one connection, so that an overdue exchange can be ended from another thread."""

    def __init__(self) -> None:
        super().__init__(verify=_ssl_context(), limits=httpx2.Limits(max_connections=1))
        self.exchange: Exchange | None = None
        self._connection: Any = None

    def send(self, request: httpx2.Request, *, stream: bool = False, **settings: Any) -> httpx2.Response:
        """Raises httpx2.DecodingError for a reply beyond the limits."""
        exchange = self.exchange
        if exchange is not None:
            if exchange.refused or exchange.left_s <= 0:
                raise httpx2.ReadTimeout("the exchange is over", request=request)
            request.extensions = {
                **request.extensions,
                "trace": self._note_connection,
                "timeout": _within(request.extensions.get("timeout", {}), exchange.left_s),
            }
        # A redirect could lead to services that only this host reaches.
        received = super().send(request, **{**settings, "stream": True, "follow_redirects": False})
        # An endpoint could fill the jar, call by call.
        self.cookies.clear()
        limits = STREAM if stream and received.is_success else WHOLE
        reply = httpx2.Response(
            received.status_code,
            headers=_headers(received),
            stream=_Bounded(received, limits, exchange),
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

    def _note_connection(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._connection = info["return_value"]


class _Bounded(httpx2.SyncByteStream):
    """The decompressed content of a response, up to its limits."""

    def __init__(self, received: httpx2.Response, limits: Limits, exchange: Exchange | None) -> None:
        self._received, self._limits, self._exchange = received, limits, exchange

    def __iter__(self) -> Iterator[bytes]:
        content = parts = line = 0
        last = b""
        if "," in self._received.headers.get("content-encoding", ""):
            self._refuse("its content is compressed more than once")
        for decoded in self._received.iter_bytes():
            for start in range(0, len(decoded), _PIECE):
                piece = decoded[start : start + _PIECE]
                content += len(piece)
                # In every encoding that JSON may have, one byte of each bracket is this one.
                parts += sum(map(piece.count, (b"{", b"[", b"\n", b"\r")))
                # A blank line may begin in one piece and end in the next.
                joined = last + piece
                blank = max(map(joined.rfind, (b"\n\n", b"\r\r", b"\n\r")))
                line = len(joined) - blank if blank >= 0 else line + len(piece)
                last = piece[-1:]
                if content > self._limits.content:
                    self._refuse(f"it is longer than {self._limits.content // MIB} MiB")
                if line > self._limits.line:
                    self._refuse(f"it has more than {self._limits.line // MIB} MiB without a blank line")
                if parts > self._limits.parts:
                    self._refuse(f"it has more than {self._limits.parts:,} objects, lists and lines")
                if self._exchange is not None and self._exchange.left_s <= 0:
                    raise httpx2.ReadTimeout("the exchange is over", request=self._received.request)
                yield piece

    def close(self) -> None:
        self._received.close()

    def _refuse(self, reason: str) -> None:
        if self._exchange is not None:
            self._exchange.refused = reason
        raise httpx2.DecodingError(reason, request=self._received.request)


def _headers(received: httpx2.Response) -> list[tuple[str, str]]:
    """The headers of the decompressed content, in UTF-8: some of Python's codecs take the square of its length."""
    return [
        (name, value.partition(";")[0] if name.lower() == "content-type" else value)
        for name, value in received.headers.multi_items()
        if name.lower() not in _REBUILT
    ]


def _within(timeouts: Mapping[str, float | None], left_s: float) -> dict[str, float]:
    return {kind: min(timeouts.get(kind) or left_s, left_s) for kind in ("connect", "read", "write", "pool")}


@lru_cache
def _ssl_context() -> ssl.SSLContext:
    return httpx2.create_ssl_context()

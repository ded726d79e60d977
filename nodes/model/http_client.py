"""An HTTP client for untrusted model endpoints: limits on bytes and structure, no redirects."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import httpx2

MIB = 1024**2
_CHUNK_BYTES = 16_384
"""Size of the chunks that are passed on: a client's cost per chunk may grow with its square."""
_ENCODINGS = ("identity", "gzip", "deflate")
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


class EndpointClient(httpx2.Client):
    """The HTTP client of one thread. It has one connection, which another thread can end."""

    def __init__(self) -> None:
        super().__init__(
            verify=_create_ssl_context(),
            limits=httpx2.Limits(max_connections=1),
            headers={"Accept-Encoding": ", ".join(_ENCODINGS[1:])},
        )
        self.exchange: CallState | None = None
        self._connection: Any = None

    def send(self, request: httpx2.Request, *, stream: bool = False, **settings: Any) -> httpx2.Response:
        """Send a request. Raises httpx2.DecodingError for a reply beyond the limits."""
        exchange = self.exchange
        if exchange is not None:
            if exchange.refusal or exchange.remaining_s <= 0:
                raise httpx2.ReadTimeout("the exchange is over", request=request)
            request.extensions = {
                **request.extensions,
                "trace": self._remember_connection,
                "timeout": _limit_timeouts(request.extensions.get("timeout", {}), exchange.remaining_s),
            }
            exchange.billable_requests += 1
        try:
            # A redirect could lead to services that only this host can reach.
            response = super().send(request, **{**settings, "stream": True, "follow_redirects": False})
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            _uncount_request(exchange)
            raise
        if not response.is_success:
            _uncount_request(exchange)
        # An endpoint could fill the cookie jar call by call.
        self.cookies.clear()
        limits = STREAM_LIMITS if stream and response.is_success else WHOLE_REPLY_LIMITS
        reply = httpx2.Response(
            response.status_code,
            headers=_list_decoded_headers(response),
            stream=_BoundedStream(response, limits, exchange),
            request=request,
            extensions=response.extensions,
        )
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


def _uncount_request(exchange: CallState | None) -> None:
    if exchange is not None:
        exchange.billable_requests -= 1


class _BoundedStream(httpx2.SyncByteStream):
    """The decompressed content of a response, up to its limits."""

    def __init__(self, response: httpx2.Response, limits: ReplyLimits, exchange: CallState | None) -> None:
        self._response, self._limits, self._exchange = response, limits, exchange

    def __iter__(self) -> Iterator[bytes]:
        content_bytes = structure_count = line_bytes = 0
        last = b""
        if self._response.headers.get("content-encoding", "identity").strip().lower() not in _ENCODINGS:
            self._refuse(f"its content is compressed in another way than {' or '.join(_ENCODINGS[1:])}")
        for decoded in self._response.iter_bytes():
            for start in range(0, len(decoded), _CHUNK_BYTES):
                chunk = decoded[start : start + _CHUNK_BYTES]
                content_bytes += len(chunk)
                # In every encoding that JSON may have, one byte of each bracket is this one.
                structure_count += sum(map(chunk.count, (b"{", b"[", b"\n", b"\r")))
                # A blank line may begin in one chunk and end in the next.
                joined = last + chunk
                blank = max(map(joined.rfind, (b"\n\n", b"\r\r", b"\n\r")))
                line_bytes = len(joined) - blank if blank >= 0 else line_bytes + len(chunk)
                last = chunk[-1:]
                self._check_limits(content_bytes, structure_count, line_bytes)
                if self._exchange is not None and self._exchange.remaining_s <= 0:
                    raise httpx2.ReadTimeout("the exchange is over", request=self._response.request)
                yield chunk

    def _check_limits(self, content_bytes: int, structure_count: int, line_bytes: int) -> None:
        limits = self._limits
        if content_bytes > limits.content_bytes:
            self._refuse(f"it is longer than {limits.content_bytes // MIB} MiB")
        if line_bytes > limits.line_bytes:
            self._refuse(f"it has more than {limits.line_bytes // MIB} MiB without a blank line")
        if structure_count > limits.structure_count:
            self._refuse(f"it has more than {limits.structure_count:,} objects, lists and lines")

    def close(self) -> None:
        self._response.close()

    def _refuse(self, reason: str) -> None:
        if self._exchange is not None:
            self._exchange.refusal = reason
        raise httpx2.DecodingError(reason, request=self._response.request)


def _list_decoded_headers(response: httpx2.Response) -> list[tuple[str, str]]:
    """Return the headers of the decompressed content, without a charset: some codecs of Python take quadratic time."""
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

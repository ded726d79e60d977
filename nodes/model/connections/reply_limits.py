"""Limits on what an untrusted endpoint may send, counted while a reply is read."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import httpx2

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

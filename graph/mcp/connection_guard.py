"""Connections of an HTTP server whose requests have not shown the token: bounded in time and in number.

Without a bound, peers that never finish the head of a request would take every place of the token's holder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_HEAD_S = 10.0
_MAX_WAITING = 256
_MAX_ADMITTED = 64


class ConnectionGuard:
    """The connections of a server of uvicorn.

    A connection waits until a request on it shows the token, and again after the reply. One that waits too long ends; so does
    the oldest one while too many wait. Only requests with the token count against the limit of requests.
    """

    def __init__(
        self, *, head_s: float = _HEAD_S, max_waiting: int = _MAX_WAITING, max_admitted: int = _MAX_ADMITTED
    ) -> None:
        self._head_s, self._max_waiting, self._max_admitted = head_s, max_waiting, max_admitted
        self._waiting: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._admitted = 0
        # A request is served in a task that inherits the context in which its head was received.
        self._current: ContextVar[asyncio.Transport | None] = ContextVar("connection", default=None)

    def watch(self, protocol: type[Any]) -> None:
        """Watch every connection of a protocol class of uvicorn."""
        guard = self
        made, received, lost = protocol.connection_made, protocol.data_received, protocol.connection_lost

        def connection_made(self: Any, transport: asyncio.Transport) -> None:
            made(self, transport)
            guard._add(transport)

        def data_received(self: Any, data: bytes) -> None:
            token = guard._current.set(self.transport)
            try:
                received(self, data)
            finally:
                guard._current.reset(token)

        def connection_lost(self: Any, error: Exception | None) -> None:
            guard._remove(self.transport)
            lost(self, error)

        for function in (connection_made, data_received, connection_lost):
            setattr(protocol, function.__name__, function)

    @contextmanager
    def admit(self) -> Iterator[bool]:
        """Serve a request that has shown the token, however long it takes; yield False beyond the limit of requests."""
        if self._admitted >= self._max_admitted:
            yield False
            return
        transport = self._current.get()
        self._admitted += 1
        if transport is not None:
            self._remove(transport)
        try:
            yield True
        finally:
            self._admitted -= 1
            if transport is not None and not transport.is_closing():
                self._add(transport)

    def _add(self, transport: asyncio.Transport) -> None:
        self._remove(transport)
        if len(self._waiting) >= self._max_waiting:
            self._end(next(iter(self._waiting)))
        timer = asyncio.get_running_loop().call_later(self._head_s, self._end, transport)
        self._waiting[transport] = timer

    def _remove(self, transport: asyncio.Transport) -> None:
        timer = self._waiting.pop(transport, None)
        if timer is not None:
            timer.cancel()

    def _end(self, transport: asyncio.Transport) -> None:
        self._remove(transport)
        transport.abort()

"""Serve MCP over standard input and output, or over HTTP on loopback with a token and checked connections."""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import uvicorn
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from langgraph_takeover.graph.usage_errors import ServerAddressError

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


LOOPBACK = "127.0.0.1"
PATH = "/mcp"
_SHUTDOWN_S = 5


class BearerCheck:
    """Middleware that requires the token in the `Authorization` header, and then gives the request its place."""

    def __init__(self, app: ASGIApp, token: str, guard: ConnectionGuard) -> None:
        self.app, self._guard = app, guard
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        # The scheme is not case-sensitive, and compare_digest takes the same time for every token.
        given = b"Bearer" + found[0][6:] if len(found) == 1 and found[0][:6].lower() == b"bearer" else b""
        if scope["type"] == "http" and secrets.compare_digest(given, self._expected):
            with self._guard.admit() as has_place:
                if has_place:
                    return await self.app(scope, receive, send)
            return await PlainTextResponse("too many requests at once\n", 503)(scope, receive, send)
        response = PlainTextResponse(
            "token: missing or wrong (pass the header Authorization: Bearer TOKEN)\n",
            401,
            {"WWW-Authenticate": "Bearer"},
        )
        return await response(scope, receive, send)


def serve_stdio(server: Server[Any]) -> None:
    """Serve one client until it closes the standard input."""

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


def serve_http(server: Server[Any], port: int, token: str, on_listening: Callable[[str], None]) -> None:
    """Serve on 127.0.0.1 until a signal ends it; `on_listening` gets the URL. Raises ServerAddressError."""
    with _listen(port) as listener:
        port = listener.getsockname()[1]
        names = [f"{name}:{port}" for name in (LOOPBACK, "localhost")]
        app = server.streamable_http_app(
            streamable_http_path=PATH,
            stateless_http=True,
            transport_security=TransportSecuritySettings(
                allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
            ),
        )
        guard, protocol = ConnectionGuard(), type("GuardedProtocol", (H11Protocol,), {})
        guard.watch(protocol)
        config = uvicorn.Config(
            BearerCheck(app, token, guard), log_level="warning", access_log=False, server_header=False, ws="none",
            http=protocol, timeout_graceful_shutdown=_SHUTDOWN_S,
        )  # fmt: skip
        on_listening(f"http://{LOOPBACK}:{port}{PATH}")
        uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        problem = "is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
        raise ServerAddressError(
            f"--port: {LOOPBACK}:{port} {problem} (choose another, or 0 for any)"
        ) from error
    return listener

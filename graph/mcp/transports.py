"""Serve MCP over standard input and output, or over HTTP on loopback with a token."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable
from typing import Any

import anyio
import uvicorn
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from langgraph_takeover.graph.errors import ServerAddressError
from langgraph_takeover.graph.mcp.connection_guard import ConnectionGuard

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

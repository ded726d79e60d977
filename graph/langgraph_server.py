"""LangGraph's server: who may use it."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.graph.mcp.transports import ConnectionGuard

TOKEN_VARIABLE = "TAKEOVER_STUDIO_TOKEN"
ORIGINS_VARIABLE = "TAKEOVER_STUDIO_ORIGINS"
HOSTS_VARIABLE = "TAKEOVER_STUDIO_HOSTS"
STUDIO_ORIGINS = ("https://smith.langchain.com", "https://eu.smith.langchain.com")
PUBLIC_PATH = "/ok"
"""The health check; everything else needs the token."""

_URL_VARIABLE = "LANGGRAPH_API_URL"
_PREFIX_VARIABLE = "MOUNT_PREFIX"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,}")
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:\d+)?|https?://\[[0-9a-f:]+\](:\d+)?")
_HOST = re.compile(r"[a-z0-9.-]+(:\d+)?|\[[0-9a-f:]+\](:\d+)?")
# New versions of LangGraph add routes; those that start programs on the host or make requests stay closed.
_SERVED_ROUTES = frozenset(
    ("ok", "info", "docs", "openapi.json", "metrics", "assistants", "threads", "runs", "store")
)
_MAX_REQUESTS = 512
# The headers that LangGraph's own CORS settings expose to a page.
_EXPOSED_HEADERS = ("content-location", "x-pagination-next", "x-pagination-total")


class AccessError(TakeoverError, ValueError):
    """An access setting of the server is invalid; one line."""


@dataclass(frozen=True)
class Access:
    """Who may use the server: holders of the token, from programs and from the allowed web pages."""

    token: str
    origins: tuple[str, ...] = STUDIO_ORIGINS
    hosts: frozenset[str] = frozenset()
    """Host names besides loopback, as in a `Host` header: with the port, unless it is the scheme's default."""

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Access:
        """Read the access settings from environment variables; default token: random. Raises AccessError."""
        token = variables.get(TOKEN_VARIABLE) or secrets.token_urlsafe(32)
        if not _TOKEN.fullmatch(token):
            raise AccessError(
                f"{TOKEN_VARIABLE}: a token needs at least 32 letters, digits, - or _ "
                "(make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))')"
            )
        if variables.get(_PREFIX_VARIABLE):
            raise AccessError(f"{_PREFIX_VARIABLE}: the server supports no prefix (unset it)")
        origins = (
            _parse_list(variables, ORIGINS_VARIABLE, _ORIGIN, "https://studio.example.com") or STUDIO_ORIGINS
        )
        hosts = frozenset(_parse_list(variables, HOSTS_VARIABLE, _HOST, "studio.example.com:2024"))
        address = urlsplit(variables.get(_URL_VARIABLE, "")).hostname
        if address and not hosts and address not in ("127.0.0.1", "localhost", "::1"):
            raise AccessError(
                f"host {address}: the server accepts connections from this computer only (omit --host and --tunnel, or list "
                f"the addresses that may call it in {HOSTS_VARIABLE})"
            )
        return cls(token, origins, hosts)

    def is_token(self, candidate: str) -> bool:
        """Compare the token in constant time."""
        return secrets.compare_digest(candidate.encode(errors="replace"), self.token.encode())

    def has_token(self, authorization: str | None) -> bool:
        """Whether an `Authorization` header carries the token."""
        scheme, _, token = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(token)

    def refusal_reason(self, scope: Scope) -> str | None:
        """Return why a request is refused by its `Host` or `Origin`; None if it is allowed."""
        headers = Headers(scope=scope)
        names, pages = headers.getlist("host"), headers.getlist("origin")
        if len(names) != 1 or not self._is_own_name(names[0].lower(), scope):
            shown = ", ".join(names)[:100] or "no name"
            return f"host: the server does not answer to {shown} (if it should, list the name in {HOSTS_VARIABLE})"
        if pages and (len(pages) != 1 or pages[0] not in self.origins):
            shown = ", ".join(pages)[:100] or "a page without origin"
            return f"origin: {shown} may not call the server (if it may, list it in {ORIGINS_VARIABLE})"
        return None

    def _is_own_name(self, host: str, scope: Scope) -> bool:
        if host in self.hosts:
            return True
        port = (scope.get("server") or (None, None))[1]
        if port is not None and port == _DEFAULT_PORTS.get(scope["scheme"]) and host in _LOOPBACK:
            return True
        return port is not None and host in {f"{name}:{port}" for name in _LOOPBACK}


def _parse_list(
    variables: Mapping[str, str], name: str, pattern: re.Pattern[str], example: str
) -> tuple[str, ...]:
    found = tuple(each.strip() for each in variables.get(name, "").split(",") if each.strip())
    for each in found:
        if not pattern.fullmatch(each):
            raise AccessError(f"{name}: invalid value {each!r:.100} (for example {example})")
    return found


class AddressCheck:
    """Middleware that refuses unknown host names and web pages of other origins.

    A page of any origin can send a simple POST without a preflight request, and a page whose own name resolves to
    127.0.0.1 can send any request.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self._access.refusal_reason(scope) if scope["type"] in ("http", "websocket") else None
        if reason is not None:
            return await _refuse(scope, receive, send, 403, reason)
        return await self.app(scope, receive, send)


class TokenCheck:
    """Middleware that requires the token: in the `Authorization` header, or as the first part of the path.

    Studio's page cannot send custom headers, but accepts a base URL with a path. Behind this middleware the token is
    only in the header, so no log contains it.
    """

    def __init__(self, app: ASGIApp, access: Access, guard: ConnectionGuard) -> None:
        self.app = app
        self._access, self._guard = access, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        first, _, rest = scope["path"].removeprefix("/").partition("/")
        if self._access.is_token(first):
            scope = _with_token_in_header(scope, f"/{rest}", self._access.token)
        headers = Headers(scope=scope).getlist("authorization")
        if scope["path"] != PUBLIC_PATH and (len(headers) != 1 or not self._access.has_token(headers[0])):
            return await _refuse(scope, receive, send, 401, "token: missing or wrong (see docs/studio.md)")
        if scope["path"] != "/" and scope["path"].removeprefix("/").partition("/")[0] not in _SERVED_ROUTES:
            return await _refuse(scope, receive, send, 404, "path: not served")
        if scope["path"] == PUBLIC_PATH:
            return await self.app(scope, receive, send)
        with self._guard.admit() as has_place:
            if has_place:
                return await self.app(scope, receive, send)
        return await _refuse(scope, receive, send, 503, "too many requests at once")


def _with_token_in_header(scope: Scope, path: str, token: str) -> Scope:
    others = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
    return {
        **scope,
        "path": path,
        "raw_path": quote(path).encode(),
        "headers": [*others, (b"authorization", f"Bearer {token}".encode())],
    }


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        return await WebSocketClose(code=1008, reason=reason)(scope, receive, send)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return await JSONResponse({"detail": reason}, status, headers)(scope, receive, send)


def build_middleware(access: Access, guard: ConnectionGuard | None = None) -> list[Middleware]:
    """The middleware of every request, outermost first."""
    return [
        Middleware(AddressCheck, access=access),
        Middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=("*",),
            allow_headers=("*",),
            allow_private_network=True,
            expose_headers=_EXPOSED_HEADERS,
        ),
        Middleware(TokenCheck, access=access, guard=guard or ConnectionGuard()),
    ]


def _load_access() -> Access:
    try:
        return Access.from_environment(os.environ)
    except AccessError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


_access = _load_access()
_guard = ConnectionGuard(max_admitted=_MAX_REQUESTS)
auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
    """Return the only user if the token is right."""
    if not _access.has_token(authorization):
        raise Auth.exceptions.HTTPException(
            status_code=401, detail="token: missing or wrong (see docs/studio.md)"
        )
    return {"identity": "operator"}


@asynccontextmanager
async def _open_access(_: Starlette) -> AsyncIterator[None]:
    _guard.watch(AutoHTTPProtocol)  # LangGraph starts the server, with uvicorn's default protocol
    token = f"${TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else _access.token
    url = f"{os.environ.get(_URL_VARIABLE, '')}/{token}"
    print(
        f"Studio with the token: {_access.origins[0]}/studio/?baseUrl={url}\n"
        f"Programs with the token: Authorization: Bearer {token}\n"
        "Anyone with the token can run commands in the sandbox and read all runs.",
        flush=True,
    )
    yield


app = Starlette(middleware=build_middleware(_access, _guard), lifespan=_open_access)

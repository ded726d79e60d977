"""Access control of LangGraph's server, decided before LangGraph sees the request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from langgraph_takeover.graph.langgraph_server import (
    HOSTS_VARIABLE,
    ORIGINS_VARIABLE,
    TOKEN_VARIABLE,
    Access,
    AccessError,
    build_middleware,
)

TOKEN = "0123456789abcdef-0123456789_ABCDEF"
BEARER = ("authorization", f"Bearer {TOKEN}")
HOST = ("host", "127.0.0.1:2024")
STUDIO = ("origin", "https://smith.langchain.com")
Header = tuple[str, str]


async def show_request(request: Request) -> JSONResponse:
    values = request.headers.getlist("authorization")
    return JSONResponse({"path": request.url.path, "authorization": values})


def status(
    access: Access, headers: Iterable[Header], path: str = "/threads", method: str = "POST", **scope: Any
) -> tuple[int, dict[str, str], bytes]:
    """The response of a server behind the middleware: status, headers and body."""
    app = Starlette(
        middleware=build_middleware(access),
        routes=[Route("/{path:path}", show_request, methods=["GET", "POST", "PUT", "DELETE"])],
    )
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    sending = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    request = {"type": "http", "scheme": "http", "server": ("127.0.0.1", 2024), "headers": sending}
    request |= {"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", **scope}
    asyncio.run(app(request, receive, send))
    if request["type"] == "websocket":
        return sent[0].get("code", 0), {}, b""
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(each.get("body", b"") for each in sent[1:])


ACCESS = Access(TOKEN)


def test_programs_and_studio_are_admitted_with_the_token() -> None:
    assert status(ACCESS, [HOST, BEARER])[0] == 200
    code, headers, _ = status(ACCESS, [HOST, BEARER, STUDIO])
    assert (code, headers["access-control-allow-origin"]) == (200, "https://smith.langchain.com")
    assert status(ACCESS, [("host", "[::1]:2024"), BEARER])[0] == 200
    assert status(ACCESS, [("host", "LocalHost:2024"), BEARER])[0] == 200
    assert status(ACCESS, [("host", "localhost"), BEARER], server=("127.0.0.1", 80))[0] == 200


def test_the_token_moves_from_the_path_to_the_header() -> None:
    foreign = ("authorization", "Bearer of-another-service")
    code, _, body = status(ACCESS, [HOST, STUDIO, foreign], f"/{TOKEN}/threads/search")
    assert code == 200
    assert body == f'{{"path":"/threads/search","authorization":["Bearer {TOKEN}"]}}'.encode()
    assert status(ACCESS, [HOST], f"/{TOKEN}")[0] == 200
    assert status(ACCESS, [HOST], f"/x/{TOKEN}/threads")[0] == 401
    assert status(ACCESS, [HOST], f"//{TOKEN}/threads")[0] == 401


WRONG_VALUES = (
    "",
    "Bearer ",
    "Bearer",
    TOKEN,
    *(f"Bearer {each}" for each in ("\xff\xfe", f" {TOKEN}", f"{TOKEN}x")),
)
WRONG_VALUES += (f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        *([("authorization", value)] for value in WRONG_VALUES),
        [BEARER, ("authorization", "Bearer other")],
        [("authorization", "Bearer other"), BEARER],
        [("x-api-key", TOKEN)],
        [("cookie", f"token={TOKEN}")],
        [("x-auth-scheme", "langsmith")],
    ],
)
def test_no_request_is_admitted_without_the_token(headers: list[Header]) -> None:
    for name in ("threads", "info", "docs", "metrics", "", "ok/", "/ok", "noauth/ok", "ui/agent", "deploy"):
        code, answered, _ = status(ACCESS, [HOST, *headers], f"/{name}")
        assert (code, answered["www-authenticate"]) == (401, "Bearer")
    assert status(ACCESS, [HOST, *headers], query_string=f"token={TOKEN}".encode())[0] == 401
    assert status(ACCESS, [HOST, *headers], type="websocket", scheme="ws")[0] == 1008


def test_the_health_check_is_public_but_not_to_foreign_pages() -> None:
    assert status(ACCESS, [HOST], "/ok", "GET")[0] == 200
    assert status(ACCESS, [HOST, ("origin", "https://evil.example")], "/ok", "GET")[0] == 403


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "*",
        "https://smith.langchain.com.evil.example",
        "https://evil-smith.langchain.com",
        "https://smith.langchain.com:444",
        "https://smith.langchain.com/",
        "https://smith.langchain.com, https://evil.example",
        "https://user@smith.langchain.com",
        "http://smith.langchain.com",
        "http://127.0.0.1:2024",
    ],
)
def test_a_foreign_page_is_refused_even_with_the_token(origin: str) -> None:
    for method, more in (
        ("POST", [("content-type", "text/plain")]),
        ("GET", []),
        ("OPTIONS", [("access-control-request-method", "POST")]),
    ):
        code, answered, _ = status(ACCESS, [HOST, BEARER, ("origin", origin), *more], method=method)
        assert (code, "access-control-allow-origin" in answered) == (403, False)
    headers = [HOST, BEARER, ("origin", origin)]
    assert status(ACCESS, headers, f"/{TOKEN}/threads", type="websocket", scheme="ws")[0] == 1008
    assert status(ACCESS, [HOST, BEARER, STUDIO, ("origin", origin)])[0] == 403


def test_studios_page_may_send_preflight_requests() -> None:
    asks = [("access-control-request-method", "POST"), ("access-control-request-private-network", "true")]
    code, answered, _ = status(ACCESS, [HOST, STUDIO, *asks], method="OPTIONS")
    assert code == 200
    assert answered["access-control-allow-origin"] == "https://smith.langchain.com"
    assert answered["access-control-allow-private-network"] == "true"
    assert "access-control-allow-credentials" not in answered
    assert status(ACCESS, [HOST, STUDIO], method="OPTIONS")[0] == 401


OTHER_NAMES = (
    *(
        "evil.example",
        "evil.example:2024",
        "127.0.0.1",
        "127.0.0.1:2025",
        "127.0.0.1:02024",
        "127.0.0.1.:2024",
    ),
    *(
        "localhost.:2024",
        "127.1:2024",
        "0.0.0.0:2024",
        "localhost:2024.evil.example",
        "127.0.0.1:2024@evil.example",
    ),
)


@pytest.mark.parametrize(
    "hosts",
    [[], [""], ["127.0.0.1:2024", "evil.example"], *([name] for name in OTHER_NAMES)],
)
def test_another_name_is_refused_even_with_the_token(hosts: list[str]) -> None:
    names = [("host", host) for host in hosts]
    assert status(ACCESS, [*names, BEARER, ("x-forwarded-host", "127.0.0.1:2024")])[0] == 403
    assert status(ACCESS, names, "/ok", "GET")[0] == 403
    assert status(ACCESS, [*names, BEARER], type="websocket", scheme="ws")[0] == 1008


ACTING = ("deploy", "deploy/x/stream", "internal/truncate", "mcp", "a2a/agent", "ui/agent", "profile")
ACTING += ("noauth/threads", "/deploy", "%64eploy")


@pytest.mark.parametrize(
    "path",
    ["*", *(f"/{name}" for name in ACTING)],
)
def test_routes_that_act_on_the_host_are_not_served_even_with_the_token(path: str) -> None:
    assert status(ACCESS, [HOST, BEARER], path)[0] == 404
    assert path == "*" or status(ACCESS, [HOST], f"/{TOKEN}{path}")[0] == 404


def test_other_names_and_pages_are_allowed_by_name() -> None:
    origins, host = "https://studio.example.com, http://localhost:3000", "studio.example.com:2024"
    variables = {TOKEN_VARIABLE: TOKEN, ORIGINS_VARIABLE: origins, HOSTS_VARIABLE: host}
    access = Access.from_environment(variables)
    named, page = ("host", host), ("origin", "http://localhost:3000")
    assert status(access, [named, BEARER, page])[0] == 200
    assert status(access, [HOST, BEARER, STUDIO])[0] == 403
    assert status(access, [("host", "studio.example.com"), BEARER])[0] == 403


def test_every_start_has_its_own_token() -> None:
    tokens = {Access.from_environment({TOKEN_VARIABLE: ""}).token for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 43
    assert not Access.from_environment({}).is_token("")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({TOKEN_VARIABLE: "short"}, "TAKEOVER_STUDIO_TOKEN: a token needs at least 32"),
        ({TOKEN_VARIABLE: "a/" * 20}, "TAKEOVER_STUDIO_TOKEN: a token needs at least 32"),
        ({ORIGINS_VARIABLE: "*"}, "TAKEOVER_STUDIO_ORIGINS: invalid value '*'"),
        ({ORIGINS_VARIABLE: "null"}, "TAKEOVER_STUDIO_ORIGINS: invalid value 'null'"),
        ({ORIGINS_VARIABLE: "https://studio.example.com/"}, "TAKEOVER_STUDIO_ORIGINS: "),
        ({HOSTS_VARIABLE: "*.example.com"}, "TAKEOVER_STUDIO_HOSTS: invalid value '*.example.com'"),
        (
            {"LANGGRAPH_API_URL": "http://0.0.0.0:2024"},
            "host 0.0.0.0: the server accepts connections from this",
        ),
        ({"LANGGRAPH_API_URL": "https://x.trycloudflare.com"}, "omit --host and --tunnel"),
        ({"MOUNT_PREFIX": "/x"}, "MOUNT_PREFIX: the server supports no prefix"),
    ],
)
def test_a_wrong_setting_is_one_line(variables: dict[str, str], expected: str) -> None:
    with pytest.raises(AccessError) as refused:
        Access.from_environment(variables)
    assert str(refused.value).startswith(expected) or expected in str(refused.value)
    assert "\n" not in str(refused.value)

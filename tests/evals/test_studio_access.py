"""Attacks on the real server: without its token, from foreign pages, and by requests of a token holder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from langgraph_takeover import open_home
from langgraph_takeover.handoff.ledger import effects
from langgraph_takeover.sandbox import default_backend

from ..chat_server import ChatServer
from ..conftest import skip_missing
from .conftest import ROOT
from .studio.test_graphs import TOKEN, Studio, answer_request, failure

pytestmark = pytest.mark.slow
BEARER = {"Authorization": f"Bearer {TOKEN}"}
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A server started without the switch, whatever sandboxes this host has."""
    chat = ChatServer()
    chat.answer = answer_request
    started = Studio(tmp_path_factory.mktemp("access"), chat.url, TAKEOVER_STUDIO_UNISOLATED="")
    yield started
    started.stop()
    chat.close()


def request_status(server: Studio, method: str, path: str, **request: Any) -> int:
    return httpx.request(method, server.url + path, timeout=60, **request).status_code


def raw(server: Studio, lines: str) -> str:
    """The response status of a raw request; PORT is replaced by the server's."""
    port = server.url.rpartition(":")[2]
    with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as connection:
        connection.sendall(f"{lines.replace('PORT', port)}\r\n".encode("latin-1"))
        return connection.recv(4096).decode("latin-1").split()[1]


def test_nothing_is_served_without_the_token(server: Studio) -> None:
    thread = server.thread()
    names = ("", "info", "docs", "openapi.json", "metrics", "mcp", "a2a/agent", "deploy", "ui/agent/x.js")
    get = [*(f"/{name}" for name in names), "/store/items?key=a"]
    get += [f"/threads/{thread}{rest}" for rest in ("", "/state", "/stream")]
    wrong = {"x-auth-scheme": "langsmith", "Authorization": "Bearer x", "x-api-key": TOKEN}
    for path in [*get, f"/internal/debug/thread/{thread}", "/%6fk/../info", "/ok%2f..%2finfo"]:
        for headers in ({}, *({name: value} for name, value in wrong.items())):
            assert request_status(server, "GET", path, headers=headers) == 401, path
    writes = ("threads", "runs/wait", "runs/crons", "assistants/search", "internal/truncate", "deploy")
    for path in (f"/{name}" for name in writes):
        assert request_status(server, "POST", path, json={}) == 401
        assert request_status(server, "POST", f"{path}?token={TOKEN}", content="{}") == 401
    assert request_status(server, "GET", "/ok") == 200


def test_unfinished_requests_of_others_take_no_place(server: Studio) -> None:
    """Beyond 256, the oldest connection without the token ends."""
    port = int(server.url.rpartition(":")[2])
    peers = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(300)]
    for peer in peers:
        with contextlib.suppress(OSError):  # ended already
            peer.sendall(b"GET /info HTTP/1.1\r\nHost: x\r\n")
    assert request_status(server, "GET", "/info", headers=BEARER) == 200
    with contextlib.suppress(ConnectionError):
        assert peers[0].recv(1) == b""
    for peer in peers:
        peer.close()


def test_foreign_pages_and_names_are_refused_with_the_token(server: Studio) -> None:
    for origin in ("https://evil.example", "null", "https://smith.langchain.com.evil.example"):
        text = {"Origin": origin, "Content-Type": "text/plain"}
        assert request_status(server, "POST", "/threads", content="{}", headers=BEARER | text) == 403
        assert request_status(server, "POST", f"/{TOKEN}/threads", content="{}", headers=text) == 403
    evil = BEARER | {"Host": "evil.example"}
    assert request_status(server, "POST", "/threads", json={}, headers=evil) == 403
    studio = {"Origin": "https://smith.langchain.com"}
    answer = httpx.post(f"{server.url}/{TOKEN}/threads/search", json={}, headers=studio)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, studio["Origin"])


LOCAL = "Host: 127.0.0.1:PORT\r\n"
TOKEN_LINE = f"Authorization: Bearer {TOKEN}\r\n"
EVENTS = "/threads/x/stream/events HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (f"GET http://evil.example/info HTTP/1.1\r\nHost: evil.example\r\n{TOKEN_LINE}", "403"),
        (f"GET http://127.0.0.1:PORT/info HTTP/1.1\r\n{LOCAL}", "401"),
        (f"GET /info HTTP/1.0\r\n{TOKEN_LINE}", "403"),
        (f"GET /info HTTP/1.1\r\n{LOCAL}Host: x\r\n{TOKEN_LINE}", "403"),
        (f"GET /info HTTP/1.1\r\nHost: localhost.:PORT\r\n{TOKEN_LINE}", "403"),
        (f"HEAD /info HTTP/1.1\r\n{LOCAL}", "401"),
        (f"OPTIONS /threads HTTP/1.1\r\n{LOCAL}", "401"),
        (f"GET {EVENTS}{LOCAL}{UPGRADE}", "403"),
        (f"GET /{TOKEN}{EVENTS}{LOCAL}{UPGRADE}Origin: https://evil.example\r\n", "403"),
        (f"GET /info HTTP/1.1\r\n{LOCAL}{TOKEN_LINE}", "200"),
    ],
)
def test_malformed_requests(server: Studio, lines: str, status: str) -> None:
    assert raw(server, lines) == status


def test_the_token_opens_no_route_that_acts_on_the_host(server: Studio) -> None:
    assert request_status(server, "GET", "/deploy", headers=BEARER) == 404
    for path in ("/deploy", "/internal/truncate", "/mcp"):
        assert request_status(server, "POST", path, headers=BEARER) == 404
    hosts = ("http://10.1.2.3/", "https://example.com/", "http://127.0.0.1/", "https://none.invalid/")
    for url in ("/threads", *hosts):
        request = {"assistant_id": "agent", "input": {}, "webhook": url, "schedule": "* * * * *"}
        for path in ("/runs", "/runs/crons"):
            assert request_status(server, "POST", path, json=request, headers=BEARER) == 422


@pytest.mark.parametrize("sandbox", ["process", ["process"], {"process": True}, None, "process\0"])
@pytest.mark.parametrize("field", ["context", "configurable"])
def test_no_client_chooses_to_run_without_isolation(server: Studio, sandbox: Any, field: str) -> None:
    chosen = {"sandbox": sandbox, "allow_unisolated": True, "max_steps": 1}
    options = {"context": chosen} if field == "context" else {"config": {"configurable": chosen}}
    assert "sandbox: " in failure(server.run(server.thread(), **options))


def test_neither_an_assistant_nor_a_duplicate_key_disables_isolation(server: Studio) -> None:
    refused = "sandbox: process runs commands as the server's user"
    chosen = {"sandbox": "process", "allow_unisolated": True}
    assistant = server.client.assistants.create("agent", context=chosen)["assistant_id"]
    assert refused in failure(server.run(server.thread(), assistant))
    body = '{"assistant_id": "agent", "input": {}, "context": {"sandbox": "host", "sandbox": "process"}}'
    url = f"{server.url}/threads/{server.thread()}/runs/wait"
    answer = httpx.post(url, content=body, headers=BEARER | {"Content-Type": "application/json"}, timeout=60)
    assert refused in answer.text
    schemas = server.client.assistants.get_schemas(assistant)["context_schema"]["properties"]
    assert schemas["sandbox"]["enum"] == ["auto", "host", "docker"]
    assert "allow_unisolated" not in schemas


@pytest.mark.parametrize(
    "chosen",
    [
        *({"directory": path} for path in (str(ROOT), "/", "~", "/proc/self/cwd")),
        {"image": "evil:1"},
        {"model": "replay:/etc/passwd"},
        {"model": "http://127.0.0.1:1/v1"},
    ],
)
def test_no_client_chooses_host_resources(server: Studio, chosen: dict[str, Any]) -> None:
    (field,) = chosen
    stream = server.run(server.thread(), input={"prompt": "Go."}, context={"model": "openai:notes", **chosen})
    assert failure(stream).startswith(f"{field}: ")


def test_a_node_sees_only_the_state_of_its_thread(server: Studio) -> None:
    state = {"task": {"id": "rota__rota-23", "prompt": "x"}, "sandbox_state": "base"}
    for goto in ([{"node": "shell", "input": state}], ["shell", "think"], {"node": "think", "input": state}):
        stream = server.run(server.thread(), input=None, command={"goto": goto})
        assert failure(stream).startswith("goto: name one node")


@pytest.mark.parametrize(
    "value",
    [
        {"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "method": [None], "args": ["PLACE"]},
        {"lc": 2, "type": "constructor", "id": ["pathlib", "Path", "mkdir"], "args": ["PLACE"]},
        {"__type__": "os.mkdir", "__args__": ["PLACE"]},
        {"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": ["PLACE"]}]},
    ],
)
def test_values_of_a_client_stay_data(server: Studio, tmp_path: Path, value: dict[str, Any]) -> None:
    made = tmp_path / "made"
    value = json.loads(json.dumps(value).replace("PLACE", str(made)))
    server.client.store.put_item(["a"], "key", {"value": value})
    assert server.client.store.get_item(["a"], "key")["value"] == {"value": value}
    thread = server.client.threads.create(metadata={"value": value}, graph_id="agent")["thread_id"]
    for values in ({"messages": [value]}, {"edits": [value]}, {"task": value}, {"spent": value}):
        state = f"/threads/{thread}/state"
        request_status(server, "POST", state, json={"values": values, "as_node": "begin"}, headers=BEARER)
        request_status(server, "GET", state, headers=BEARER)
    server.run(thread, input={"prompt": value, "task_id": value}, config={"metadata": {"value": value}})
    assert not made.exists()


def test_unisolated_threads_are_isolated_without_the_switch(tmp_path: Path) -> None:
    if default_backend(allow_process=True) != "host":
        skip_missing("without bubblewrap there is no isolated sandbox to convert to")
    server = Studio(tmp_path, "http://127.0.0.1:9/v1", TAKEOVER_STUDIO_UNISOLATED="1")
    try:
        made, isolated = server.thread(), server.thread()
        server.run(made, context={"sandbox": "process", "policy": "stop"})
        server.run(isolated, context={"max_steps": 2})
        server.stop()
        server.variables["TAKEOVER_STUDIO_UNISOLATED"] = ""
        server.start()
        values, live_sandbox = server.values(made), server.values(isolated)["sandbox_state"]
        with open_home(server.home) as home:
            states = (values["sandbox_state"], live_sandbox)
            kept = [effects.find_snapshot(home.ledger, each) for each in states]
        assert [each.backend for each in kept if each] == ["process", "host"]
        update = {"sandbox_state": values["sandbox_state"], "stop_reason": None}
        server.run(isolated, input=None, command={"update": update, "goto": "think"})
        (record,) = values["records"]
        taken, received = server.thread(), server.thread()
        server.run(taken, "takeover", input={"record": record})
        # The state names an isolated sandbox, but the successor would enter the record's.
        update = {"sandbox_state": live_sandbox, "record": record}
        server.run(received, "takeover", input=None, command={"update": update, "goto": "receive"})
        server.stop()
        with open_home(server.home) as home:  # files were converted: every new sandbox is isolated
            snapshot = home.records.load(record).required_snapshot
            for thread in (isolated, taken, received):
                states = effects.list_state_ids(home.ledger, thread)
                found = [effects.find_snapshot(home.ledger, each) for each in states]
                later = [each for each in found if each and each.workspace != snapshot.workspace]
                assert {each.backend for each in later} == {"host"}
    finally:
        server.stop()


def test_the_token_is_random_shown_once_and_stored_nowhere(tmp_path: Path) -> None:
    server = Studio(tmp_path, "http://127.0.0.1:9/v1", TAKEOVER_STUDIO_TOKEN="")
    try:
        log = (tmp_path / "server.log").read_text()
        (line,) = [each for each in log.splitlines() if each.startswith("Studio with the token: ")]
        token = line.rpartition("/")[2]
        assert len(token) >= 43
        assert line.endswith(f"https://smith.langchain.com/studio/?baseUrl={server.url}/{token}")
        request = {"assistant_id": "agent", "input": {}, "context": {"max_steps": 1}}
        assert request_status(server, "POST", f"/{token}/runs/wait", json=request) == 200
        bearer = {"Authorization": f"Bearer {token}"}
        assert request_status(server, "POST", "/runs/wait", json=request, headers=bearer) in (200, 409)
    finally:
        server.stop()
    left = [path for path in tmp_path.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert left == [tmp_path / "server.log"]
    assert (tmp_path / "server.log").read_text().count(token) == 2


def test_a_server_for_other_computers_does_not_start_by_accident(tmp_path: Path) -> None:
    options = ["--no-browser", "--no-reload", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "langgraph_cli", "dev", "--config", str(ROOT / "langgraph.json"), *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "LANGGRAPH_NO_VERSION_CHECK": "true"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2
    assert "error: host 0.0.0.0: the server accepts connections from this computer only" in done.stderr

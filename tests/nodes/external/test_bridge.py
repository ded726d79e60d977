"""The bridge holds one main request, answers side requests, and survives hostile clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from langchain_core.messages import AIMessage

from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.external.apis import HttpReply, ModelRequest, write_error, write_reply
from langgraph_takeover.nodes.external.bridge import Bridge, RequestKind
from langgraph_takeover.nodes.external.bridge_limits import BridgeLimits, ByteBudget, TokenBucket
from langgraph_takeover.nodes.external.http import HeldRequest
from langgraph_takeover.nodes.model.calls import CallCount
from langgraph_takeover.nodes.model.model_errors import (
    ContextWindowError,
    PermanentModelError,
    classify_status,
)
from langgraph_takeover.nodes.session.observation import SideWork

LIMITS = BridgeLimits(requests_per_s=1_000)
_SECRETS = {"Authorization": "Bearer k", "Cookie": "c", "X-Api-Key": "k", "Proxy-Authorization": "p"}
Reply = tuple[int, dict[str, Any] | str]


def body(text: str = "hello", **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def classify(request: ModelRequest, headers: Mapping[str, str]) -> RequestKind:
    assert not {"authorization", "cookie", "x-api-key", "proxy-authorization"} & headers.keys()
    kinds: dict[str, RequestKind] = {"child": "child", "aside": "aside"}
    return kinds.get(headers.get("x-kind", ""), "main")


class Client:
    """Clients of a bridge, each request in a thread of its own."""

    def __init__(self, bridge: Bridge, address: tuple[str, int], pool: ThreadPoolExecutor) -> None:
        self.bridge, self.address, self._pool = bridge, address, pool

    def send(
        self, data: bytes, path: str = "/v1/chat/completions", method: str = "POST", **headers: str
    ) -> Reply:
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        with contextlib.closing(connection):
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, data, {**_SECRETS, **names})
            response = connection.getresponse()
            content = response.read()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(content) if is_json and content else content.decode()

    def start(self, data: bytes, **headers: str) -> Future[Reply]:
        return self._pool.submit(self.send, data, **headers)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def converse(self, raw: bytes) -> bytes:
        """Send raw bytes and return everything that is received until the connection ends."""
        with self.connect() as peer:
            received = b""
            with contextlib.suppress(ConnectionError):
                peer.sendall(raw)
                while data := peer.recv(65_536):
                    received += data
        return received


ServeBridge = Callable[..., Client]
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


def post(data: bytes, head: bytes = b"") -> bytes:
    """The bytes of a whole request."""
    return POST + head + b"Content-Length: %d\r\n\r\n" % len(data) + data


@pytest.fixture
def serve() -> Iterator[ServeBridge]:
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(40))

        def start(limits: BridgeLimits = LIMITS, **settings: Any) -> Client:
            listener = socket.create_server(("127.0.0.1", 0))
            address = listener.getsockname()
            defaults: dict[str, Any] = {
                "api": "chat",
                "classify": classify,
                "is_expected": lambda request: "forged" not in request.messages[0].text,
                "answer_side": lambda request, count: AIMessage("aside: " + request.messages[0].text),
            }
            bridge = stack.enter_context(Bridge(listener, limits=limits, **{**defaults, **settings}))
            return Client(bridge, address, pool)

        yield start


def hold(client: Client) -> HeldRequest:
    held = client.bridge.wait(10)
    assert held is not None
    return held


def finish(held: HeldRequest, future: Future[Reply]) -> None:
    held.reply(write_error("chat", 400, "end"))
    assert future.result(10)[0] == 400


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def error_text(reply: Reply) -> tuple[int, str]:
    status, document = reply
    assert isinstance(document, dict), document
    return status, document["error"]["message"]


@pytest.mark.parametrize("kind", ["main", "aside"])
def test_the_run_decides_the_model_and_the_fields_of_the_first_request(serve: ServeBridge, kind: str) -> None:
    """A process in the sandbox may ask before the agent does: its request decides nothing."""
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest, count: CallCount) -> AIMessage:
        asked.append(request)
        return AIMessage("hello")

    client = serve(passes_on=True, model_name="m", answer_side=answer)
    for model in ("gpt-4o-search-preview", "claude-haiku-4-5", "M"):
        if kind == "main" or "haiku" not in model:
            assert client.send(body(model=model), x_kind=kind)[0] == 403
    assert client.bridge.wait(0) is None
    assert asked == []
    future = client.start(body(web_search=True, plugins=[{"id": "web"}]), x_kind=kind)
    if kind == "main":
        held = hold(client)
        asked.append(held.request)
        held.reply(write_reply(held.request, AIMessage("hello")))
    assert future.result(10)[0] == 200
    assert asked[0].wire is not None
    assert asked[0].wire.body == body()
    # The agent's own first request is still free, and its bytes pass unchanged.
    own = b'{"messages": [{"role":"user", "content":"task"}],  "model":"m"}'
    future = client.start(own)
    held = hold(client)
    assert held.request.wire is not None
    assert held.request.wire.body == own
    held.reply(write_reply(held.request, AIMessage("hello")))
    assert future.result(10)[0] == 200


def test_a_main_request_is_held_until_its_reply(serve: ServeBridge) -> None:
    client = serve()
    assert client.bridge.wait(0) is None
    for number in range(3):
        sent = body(f"step {number}", seed=number)
        future = client.start(sent)
        held = hold(client)
        assert client.bridge.wait(0) is held
        assert held.is_open
        assert held.request.wire is not None
        assert (held.request.wire.target, held.request.wire.body) == ("/v1/chat/completions", sent)
        assert held.request.messages[0].text == f"step {number}"
        assert not future.done()
        assert held.reply(write_reply(held.request, AIMessage(f"answer {number}")))
        assert not held.is_open
        assert not held.reply(write_reply(held.request, AIMessage("twice")))
        status, document = future.result(10)
        assert isinstance(document, dict)
        assert (status, document["choices"][0]["message"]["content"]) == (200, f"answer {number}")
    assert client.bridge.refused == {}


def test_a_second_and_a_forged_main_request_are_refused(serve: ServeBridge) -> None:
    client = serve()
    unexpected = (409, "the request does not continue the conversation")
    assert error_text(client.send(body("forged"))) == unexpected
    future = client.start(body())
    held = hold(client)
    assert error_text(client.send(body("other"))) == (409, "another request is being answered")
    assert error_text(client.send(body("forged")))[0] == 409
    assert held.is_open
    assert held.request.messages[0].text == "hello"
    held.reply(write_error("chat", 400, "no"))
    assert error_text(future.result(10)) == (400, "no")
    assert client.bridge.refused == {"unexpected request": 2, "second request": 1}


def test_a_dropped_peer_frees_the_place(serve: ServeBridge) -> None:
    client = serve()
    peer = client.connect()
    peer.sendall(post(body("first")))
    held = hold(client)
    peer.close()
    wait_until(lambda: not held.is_open)
    assert not held.reply(write_error("chat", 400, "late"))
    assert client.bridge.wait(0) is None
    future = client.start(body("second"))
    again = hold(client)
    assert again.request.messages[0].text == "second"
    finish(again, future)


def test_side_requests_are_answered_beside_the_held_one(serve: ServeBridge) -> None:
    release = threading.Event()
    running: list[str] = []

    def answer(request: ModelRequest, count: CallCount) -> AIMessage:
        running.append(request.messages[0].text)
        assert release.wait(20)
        return AIMessage("done", usage_metadata={"input_tokens": 9, "output_tokens": 3, "total_tokens": 12})

    client = serve(LIMITS._replace(side_requests=5, waiting_side_requests=2), answer_side=answer)
    main = client.start(body())
    held = hold(client)
    sides = [client.start(body(f"child {n}"), X_Kind="child" if n else "aside") for n in range(4)]
    wait_until(lambda: client.bridge.open_side_requests == 4 and len(running) == 2)
    # Two are answered, two wait, and no more may wait.
    assert error_text(client.send(body("late"), X_Kind="child"))[0] == 429
    assert len(running) == 2
    release.set()
    assert [future.result(20)[0] for future in sides] == [200] * 4
    assert held.is_open
    wait_until(lambda: client.bridge.open_side_requests == 0)
    work = client.bridge.take_side_work()
    assert [(each.prompt_tokens, each.completion_tokens) for each in work.usages] == [(9, 3)] * 4
    assert (work.uncounted_calls, work.refused) == (0, {"parallel side requests": 1})
    assert client.bridge.take_side_work() == SideWork()
    assert client.send(body("fifth"), X_Kind="child")[0] == 200
    assert error_text(client.send(body("sixth"), X_Kind="child"))[0] == 429
    assert client.bridge.refused == {"side requests": 1}
    finish(held, main)


def test_failures_of_side_requests_show_nothing_of_this_host(serve: ServeBridge) -> None:
    errors = [PermanentModelError("wrong key sk-123 in /etc/keys"), ContextWindowError("131072 > 4096")]

    def answer(request: ModelRequest, count: CallCount) -> AIMessage:
        raise errors.pop(0)

    client = serve(answer_side=answer)
    assert error_text(client.send(body(), X_Kind="child")) == (502, "the model did not answer")
    status, document = client.send(body(), X_Kind="child")
    assert isinstance(document, dict)
    assert (status, document["error"]["code"]) == (400, "context_length_exceeded")
    assert client.bridge.refused == {"failed side requests": 1}


def test_a_bug_of_the_caller_reaches_the_caller(serve: ServeBridge) -> None:
    def classify_badly(request: ModelRequest, headers: Mapping[str, str]) -> RequestKind:
        raise ZeroDivisionError("at /root/secret")

    client = serve(classify=classify_badly)
    assert error_text(client.send(body())) == (500, "internal error")
    with pytest.raises(ZeroDivisionError):
        client.bridge.wait(1)


def test_other_paths_and_methods(serve: ServeBridge) -> None:
    client = serve(model_name="the-model")
    assert client.send(b"", "/", "HEAD") == (200, "")
    assert client.send(b"", "/", "GET") == (200, "ok\n")
    status, models = client.send(b"", "/v1/models?limit=9", "GET")
    assert isinstance(models, dict)
    assert (status, [each["id"] for each in models["data"]]) == (200, ["the-model"])
    assert client.send(b"", "/etc/passwd", "GET")[0] == 404
    assert client.send(body(), "/v1/responses")[0] == 404
    assert client.send(b"", "/v1/chat/completions", "GET")[0] == 405
    assert client.send(b"", "/v1/models", "DELETE")[0] == 405
    assert client.bridge.refused == {"path": 2, "method": 2}


def test_tokens_are_counted_for_messages(serve: ServeBridge) -> None:
    client = serve(api="messages")
    path = "/v1/messages/count_tokens?beta=true"
    assert client.send(body("x" * 400), path) == (200, {"input_tokens": 100})
    assert client.bridge.wait(0) is None


def test_a_unix_socket_serves_too(serve: ServeBridge, tmp_path: Any) -> None:
    listener = socket.socket(socket.AF_UNIX)
    path = os.path.relpath(tmp_path / "s")  # a socket's path has at most 107 bytes
    listener.bind(path)
    listener.listen()
    settings: dict[str, Any] = {"classify": classify, "is_expected": lambda request: True}
    with (
        Bridge(listener, api="chat", answer_side=lambda request, count: AIMessage(""), **settings) as bridge,
        socket.socket(socket.AF_UNIX) as peer,
    ):
        peer.connect(path)
        peer.sendall(post(body()))
        held = bridge.wait(10)
        assert held is not None
        assert held.reply(write_error("chat", 418, "tea"))
        assert peer.recv(1_000).startswith(b"HTTP/1.1 418 ")


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
HOSTILE: dict[str, tuple[bytes, bytes, str]] = {
    "no HTTP": (b"\x16\x03\x01 hello\r\n\r\n", b"400", "HTTP syntax"),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n", b"400", "HTTP syntax"),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400", "HTTP syntax"),
    "a huge length": (POST + b"Content-Length: 99999999999\r\n\r\n", b"413", "body size"),
    "a long header": (POST + b"X-A: " + b"a" * 100_000, b"431", "HTTP syntax"),
    "many headers": (POST + b"X-A: b\r\n" * 200 + b"\r\n", b"431", "headers"),
    "gzip": (POST + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", b"415", "compression"),
    "zstd": (POST + b"Content-Encoding: zstd\r\nContent-Length: 3\r\n\r\nabc", b"415", "compression"),
    "no JSON": (POST + b"Content-Length: 3\r\n\r\nabc", b"400", "unreadable request"),
    "long chunks": (CHUNKED + (b"8000\r\n" + b"a" * 0x8000 + b"\r\n") * 40, b"413", "body size"),
    "tiny chunks": (CHUNKED + b"1\r\na\r\n" * 60_000, b"413", "body size"),
    "an unknown coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", b"501", "HTTP syntax"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused(serve: ServeBridge, name: str) -> None:
    client = serve(LIMITS._replace(body_bytes=1_000_000))
    raw, status, reason = HOSTILE[name]
    assert client.converse(raw).startswith(b"HTTP/1.1 " + status)
    wait_until(lambda: client.bridge.refused == {reason: 1})
    # The bridge serves on.
    assert client.send(body("after"), X_Kind="aside")[0] == 200


def test_chunked_bodies_and_expectations(serve: ServeBridge) -> None:
    client = serve()
    raw = body("chunked")
    chunks = b"%x\r\n" % len(raw[:9]) + raw[:9] + b"\r\n%x\r\n" % len(raw[9:]) + raw[9:] + b"\r\n0\r\n\r\n"
    answer = client.converse(POST + b"X-Kind: aside\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert b"aside: chunked" in answer
    with client.connect() as peer:
        peer.sendall(POST + b"X-Kind: aside\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(raw))
        assert peer.recv(1_000).startswith(b"HTTP/1.1 100 ")
        peer.sendall(raw)
        assert peer.recv(65_536).startswith(b"HTTP/1.1 200 ")
    # A body that is refused is not asked for.
    expecting = POST + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n"
    assert client.converse(expecting).startswith(b"HTTP/1.1 413 ")


def test_slow_requests_end_and_do_not_stop_others(serve: ServeBridge) -> None:
    client = serve(LIMITS._replace(request_s=1.0))
    slow = [client.connect() for _ in range(10)]
    started = time.monotonic()
    for peer in slow:
        peer.sendall(POST)
    assert client.send(body(), X_Kind="aside")[0] == 200
    # One byte now and then does not extend the time.
    while time.monotonic() < started + 3 and not client.bridge.refused["slow request"]:
        for peer in slow:
            with contextlib.suppress(OSError):
                peer.sendall(b"X")
        time.sleep(0.1)
    wait_until(lambda: client.bridge.refused["slow request"] == 10)
    for peer in slow:
        peer.close()


def test_connections_beyond_the_limit_wait(serve: ServeBridge) -> None:
    client = serve(LIMITS._replace(connections=3, contended_s=0.3))
    threads = threading.active_count()
    future = client.start(body())
    held = hold(client)
    idle = [client.connect() for _ in range(20)]
    asides = [client.start(body(f"{n}"), X_Kind="aside") for n in range(3)]
    # The slots of the idle ones become free one after another; the held request stays.
    assert [each.result(60)[0] for each in asides] == [200] * 3
    assert threading.active_count() <= threads + 3 + 3 + 3
    assert held.is_open
    assert client.bridge.refused["slow connections"] >= 15
    for peer in idle:
        peer.close()
    finish(held, future)


def test_unfinished_heads_have_a_deadline_and_end_first(serve: ServeBridge) -> None:
    client = serve(LIMITS._replace(head_s=0.5))
    with client.connect() as peer:
        peer.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert peer.recv(1_000).startswith(b"HTTP/1.1 408 ")
    client = serve(LIMITS._replace(connections=4, contended_s=0.3))
    raw = body()
    with client.connect() as own, contextlib.ExitStack() as stack:
        own.sendall(POST + b"X-Kind: aside\r\nContent-Length: %d\r\n\r\n" % len(raw))
        time.sleep(0.1)
        for _ in range(3):
            peer = stack.enter_context(client.connect())
            peer.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        # Its head is complete, so that the later ones end before it.
        assert [client.send(raw, X_Kind="aside")[0] for _ in range(2)] == [200, 200]
        own.sendall(raw)
        assert own.recv(1_000).startswith(b"HTTP/1.1 200 ")


def test_an_idle_connection_stays_while_nobody_waits(serve: ServeBridge) -> None:
    client = serve(LIMITS._replace(contended_s=0.1))
    with client.connect() as idle:
        assert client.send(body(), X_Kind="aside")[0] == 200
        time.sleep(0.5)
        idle.sendall(post(body(), b"X-Kind: aside\r\n"))
        assert idle.recv(1_000).startswith(b"HTTP/1.1 200 ")


def test_large_bodies_wait_for_memory(serve: ServeBridge) -> None:
    limits = LIMITS._replace(body_bytes=1_000_000, small_body_bytes=1_000, large_body_bytes=1_500_000)
    client = serve(limits._replace(contended_s=0.5))
    head = POST + b"Content-Length: 1000000\r\n\r\n"
    with client.connect() as slow:
        slow.sendall(head + b"a" * 999_000)
        # It has its time, until another one needs the memory; a small one never does.
        time.sleep(1.0)
        assert client.send(body(), X_Kind="aside")[0] == 200
        assert client.bridge.refused == {}
        assert client.send(body("x" * 900_000), X_Kind="aside")[0] == 200
    assert client.bridge.refused == {"slow connections": 1}


def test_a_byte_budget_serves_in_order() -> None:
    budget = ByteBudget(10)
    assert budget.reserve(8, lambda: True)
    order: list[int] = []

    def reserve(count: int) -> None:
        assert budget.reserve(count, lambda: True)
        order.append(count)

    with ThreadPoolExecutor(3) as pool:
        waiting = pool.submit(reserve, 9)
        wait_until(lambda: budget.is_contended)
        later = pool.submit(reserve, 1)
        time.sleep(0.3)
        assert not budget.reserve(1, lambda: False)
        assert order == []
        budget.release(8)
        waiting.result(10)
        later.result(10)
    assert sorted(order) == [1, 9]
    assert not budget.is_contended


def test_side_requests_have_smaller_bodies(serve: ServeBridge) -> None:
    client = serve(LIMITS._replace(side_body_bytes=1_000))
    assert [client.send(body("x" * size), X_Kind="aside")[0] for size in (500, 1_000)] == [200, 413]
    assert client.bridge.refused == {"body size": 1}


def test_requests_beyond_the_rates_wait(serve: ServeBridge) -> None:
    client = serve(BridgeLimits(requests_per_s=20))
    started = time.monotonic()
    assert {client.send(body(), X_Kind="aside")[0] for _ in range(30)} == {200}
    assert time.monotonic() - started > 0.4
    client = serve(LIMITS._replace(body_bytes_per_s=1_000, body_bytes=1_000))
    started = time.monotonic()
    assert [client.send(body("x" * 700), X_Kind="aside")[0] for _ in range(2)] == [200, 200]
    assert time.monotonic() - started > 0.4
    assert client.bridge.refused == {}


def test_the_main_request_does_not_wait_for_the_bytes_of_others(serve: ServeBridge) -> None:
    limits = LIMITS._replace(body_bytes_per_s=10, body_bytes=2_000, side_wait_s=200)
    client = serve(limits, may_be_expected=lambda raw: b"call_1" in raw)
    assert client.send(body("x" * 1_500), X_Kind="aside")[0] == 200
    slow = client.start(body("x" * 1_500), X_Kind="aside")
    future = client.start(body("after call_1"))
    held = hold(client)
    wait_until(lambda: client.bridge._byte_rates[False]._units < 0)
    assert not slow.done()
    client.bridge._limits = client.bridge._limits._replace(side_wait_s=1.0)
    assert error_text(client.send(body("x"), X_Kind="aside")) == (429, "too many bytes per second")
    finish(held, future)


def test_a_large_body_that_is_not_expected_is_not_parsed(serve: ServeBridge) -> None:
    limits = LIMITS._replace(side_body_bytes=1_000)
    client = serve(limits, may_be_expected=lambda raw: b"call_1" in raw, classify=None)
    assert error_text(client.send(b"{" * 1_001))[0] == 413


def test_a_token_bucket_refills() -> None:
    bucket = TokenBucket(per_s=1_000, burst=2)
    assert bucket.take(2) == 0
    assert bucket.take(5, max_wait_s=0.001) is None
    assert 0 < (bucket.take(5) or 0) <= 0.005
    assert (bucket.take() or 0) > 0.003
    wait_until(lambda: bucket.take(0) == 0)


def test_a_slow_reader_does_not_block_the_runtime(serve: ServeBridge) -> None:
    client = serve(LIMITS._replace(reply_s=1.0))
    peer = client.connect()
    peer.sendall(post(body()))
    held = hold(client)
    long = HttpReply("text/plain", b"x" * 50_000_000)
    started = time.monotonic()
    assert held.reply(long)
    assert time.monotonic() - started < 0.5
    future = client.start(body("next"))
    following = hold(client)
    assert following.request.messages[0].text == "next"
    finish(following, future)
    wait_until(lambda: client.bridge.refused == {"lost connections": 1})
    peer.close()


@pytest.mark.slow
def test_a_flood_leaves_the_held_request_and_the_process_alone(serve: ServeBridge) -> None:
    client = serve(BridgeLimits(body_bytes=4_000_000, large_body_bytes=8_000_000, request_s=1.0))
    process = psutil.Process()
    future = client.start(body())
    held = hold(client)
    files, memory = process.num_fds(), process.memory_info().rss
    ends_at = time.monotonic() + 4
    nested = b'{"model": "m", "messages": [' + b"{}," * 150_000 + b"{}]}"
    raws = [
        post(b"[" * 3_999_999),
        post(nested),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100,
        b"\r\n" * 1_000,
        b"",
    ]

    def flood(number: int) -> int:
        count = 0
        while time.monotonic() < ends_at:
            with contextlib.suppress(OSError):
                client.converse(raws[(number + count) % len(raws)])
            count += 1
        return count

    with ThreadPoolExecutor(30) as pool:
        results = [pool.submit(flood, number) for number in range(30)]
        peak_files = peak_memory = 0
        while time.monotonic() < ends_at:
            peak_files = max(peak_files, process.num_fds())
            peak_memory = max(peak_memory, process.memory_info().rss)
            assert held.is_open
            time.sleep(0.05)
        assert sum(result.result() for result in results) > 30
    # The attackers are threads of this process: 30 sockets of theirs, 16 of the bridge.
    assert peak_files - files <= 70
    assert peak_memory - memory < 500 * 1024**2
    held.reply(write_reply(held.request, AIMessage("still here")))
    assert "still here" in json.dumps(future.result(10))


def test_closing_ends_connections_and_threads(serve: ServeBridge) -> None:
    client = serve()
    future = client.start(body())
    held = hold(client)
    idle = client.connect()
    waiting = ThreadPoolExecutor(1).submit(client.bridge.wait, 60)
    client.bridge.close()
    client.bridge.close()
    assert not held.is_open
    assert not held.reply(write_error("chat", 400, "late"))
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        future.result(10)
    assert waiting.result(10) in (None, held)
    assert client.bridge.wait(60) is None
    with pytest.raises(OSError, match="refused"):
        client.connect()
    idle.close()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("bridge")])


def test_a_hold_outlasts_every_time_limit_of_the_server(serve: ServeBridge) -> None:
    client = serve(LIMITS._replace(request_s=0.3, reply_s=0.3))
    future = client.start(body())
    held = hold(client)
    time.sleep(1.0)
    assert held.is_open
    assert held.reply(write_reply(held.request, AIMessage("late")))
    assert future.result(10)[0] == 200


def test_a_side_request_passes_the_wait_of_the_endpoint_on(serve: ServeBridge) -> None:
    def answer(request: ModelRequest, count: CallCount) -> AIMessage:
        raise classify_status(429, None, "", "slow down", {"retry-after": "6.2"})

    client = serve(answer_side=answer)
    received = client.converse(post(body(), b"X-Kind: child\r\n"))
    assert received.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nRetry-After: 7\r\n" in received


def test_side_requests_count_all_that_reached_the_model(serve: ServeBridge) -> None:
    release, started = threading.Event(), threading.Event()

    def answer(request: ModelRequest, count: CallCount) -> AIMessage:
        text = request.messages[0].text
        if text == "fails":
            count.billable = 3
            raise PermanentModelError("no")
        if text == "late":
            started.set()
            assert release.wait(20)
        return AIMessage("x" * 40)

    client = serve(answer_side=answer, side_requests=47)
    assert [client.send(body(text), X_Kind="aside")[0] for text in ("hello", "fails")] == [200, 502]
    late = client.start(body("late"), X_Kind="aside")
    assert started.wait(10)
    work = client.bridge.take_side_work(is_final=True)
    # An estimate of tokens, requests that failed, and one that has no answer yet.
    assert [(each.prompt_tokens, each.completion_tokens) for each in work.usages] == [(2, 10), (0, 0), (1, 0)]
    assert work.uncounted_calls == 1 + 3 + 1
    release.set()
    assert late.result(10)[0] == 200
    assert client.bridge.take_side_work().usages == ()
    # The 47 of earlier processes count for the run.
    refused = (429, "too many requests of subagents in this run")
    assert error_text(client.send(body(), X_Kind="aside")) == refused


def test_parallel_side_requests_share_the_budget(serve: ServeBridge) -> None:
    release = threading.Event()

    def answer(request: ModelRequest, count: CallCount) -> AIMessage:
        assert release.wait(20)
        return AIMessage("")

    def has_budget(usages: Sequence[Usage]) -> bool:
        return sum(each.prompt_tokens or 0 for each in usages) < 1_500

    client = serve(answer_side=answer, has_budget=has_budget)
    first = client.start(body("x" * 4_000), X_Kind="aside")
    wait_until(lambda: client.bridge.open_side_requests == 1)
    spent = (429, "the budget of the run is spent")
    assert error_text(client.send(body("x" * 4_000), X_Kind="child")) == spent
    # A request that is larger than the budget is not asked at all.
    assert error_text(client.send(body("x" * 8_000), X_Kind="child"))[0] == 429
    release.set()
    assert first.result(10)[0] == 200
    assert client.bridge.refused == {"spent budget": 2}

"""No reply of an endpoint, compressed or not, exhausts memory or time."""

from __future__ import annotations

import gc
import gzip
import json
import re
import socket
import subprocess
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from langgraph_takeover.evals.models import describe_ambiguous_models
from langgraph_takeover.nodes.model.calls import ask_model
from langgraph_takeover.nodes.model.deadlines import DeadlineExceededError
from langgraph_takeover.nodes.model.exchange import (
    MIB,
    STREAM_LIMITS,
    WHOLE_REPLY_LIMITS,
    EndpointClient,
    Exchange,
)
from langgraph_takeover.nodes.model.model_errors import ModelError, ReplyTimeoutError, ReplyTooLargeError
from langgraph_takeover.nodes.model.tool_schemas import build_tool_schemas

from .test_calls import client, completion, serve, stream_reply

ROOT = Path(__file__).parents[3]
HELLO = [HumanMessage("hello")]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENT_STREAM = OK.replace(b"application/json", b"text/event-stream") + b"Connection: close\r\n\r\n"
LONG = json.dumps(completion({"content": "@"})).encode().split(b"@")


def bomb(coding: str, mebibytes: int) -> bytes:
    """Return a reply of that size, compressed to about a thousandth; it has no end."""
    packer = zlib.compressobj(9, zlib.DEFLATED, {"gzip": 31, "deflate": 15}[coding])
    head = packer.compress(LONG[0] + b"a" * 1024**2) + packer.flush(zlib.Z_FULL_FLUSH)
    # Data after a full flush does not refer to earlier data, so it can be repeated.
    return head + (packer.compress(b"a" * 1024**2) + packer.flush(zlib.Z_FULL_FLUSH)) * mebibytes


def make_list_reply(item: bytes, count: int) -> bytes:
    return json.dumps(completion(more="@")).encode().replace(b'"@"', b"[" + b",".join([item] * count) + b"]")


def refusal(url: str, timeout_s: float = 20, **settings: Any) -> str:
    with pytest.raises(ReplyTooLargeError) as caught:
        ask_model(client(url, **settings), HELLO, timeout_s=timeout_s)
    assert isinstance(caught.value, ModelError)
    assert not caught.value.is_transient
    return str(caught.value)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("status", [200, 400, 503])
def test_a_compressed_reply_is_refused_at_its_limit(coding: str, status: int) -> None:
    with serve(bomb(coding, 40), status, Content_Encoding=coding) as endpoint:
        assert refusal(endpoint.url) == "the endpoint's reply was refused: it is longer than 4 MiB"
    assert len(endpoint.requests) == 1, "a refused reply is not requested again"


def test_a_compressed_reply_of_usual_size_is_read() -> None:
    packed = gzip.compress(json.dumps(completion()).encode())
    with serve(packed, Content_Encoding="gzip") as endpoint:
        assert ask_model(client(endpoint.url), HELLO, timeout_s=20).text == "```bash\nls\n```"


@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip,deflate", "identity, gzip"])
def test_a_reply_compressed_twice_is_refused(coding: str) -> None:
    with serve(gzip.compress(bomb("gzip", 4)), Content_Encoding=coding) as endpoint:
        assert "compressed in another way than gzip or deflate" in refusal(endpoint.url)


def test_an_endless_reply_is_refused() -> None:
    with serve(b"", drip=b" " * 100_000) as endpoint:
        assert "longer than 4 MiB" in refusal(endpoint.url)


@pytest.mark.slow
@pytest.mark.parametrize("item", [b"{}", b"[]", b'{"a":[]}', b"\n0"])
def test_a_reply_of_many_small_parts_is_refused(item: bytes) -> None:
    with serve(make_list_reply(item, WHOLE_REPLY_LIMITS.structure_count + 1)) as endpoint:
        assert "more than 100,000 objects, lists and lines" in refusal(endpoint.url)
    with serve(
        make_list_reply(item, WHOLE_REPLY_LIMITS.structure_count + 1).decode().encode("utf-16")
    ) as endpoint:
        assert "more than 100,000 objects, lists and lines" in refusal(endpoint.url)


def test_a_long_reply_is_read() -> None:
    text = "x = {'a': [1, 2]}  # ä\n" * 20_000
    with serve(completion({"content": text})) as endpoint:
        assert ask_model(client(endpoint.url), HELLO, timeout_s=60).text == text


def test_a_long_reply_of_a_custom_model_is_refused() -> None:
    from ...graph.conftest import scripted_model

    with pytest.raises(ReplyTooLargeError, match=r"it has 1,500,\d+ characters"):
        ask_model(scripted_model("x" * 1_500_000), HELLO, timeout_s=20)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"data: {}\n\n" * 1_000, "more than 2,000 objects"),
        (b"data: " + b"a" * (STREAM_LIMITS.line_bytes + 20_000), "more than 2 MiB without a blank line"),
        (b": x\n" * (STREAM_LIMITS.line_bytes // 4 + 5_000), "more than 2 MiB without a blank line"),
        (b"data: {}%b\n\n" % (b" " * 1_000) * 2_000, "longer than 1 MiB"),
    ],
    ids=["events", "line", "lines", "content"],
)
def test_a_stream_beyond_its_limits_is_refused(
    monkeypatch: pytest.MonkeyPatch, body: bytes, problem: str
) -> None:
    if "objects" in problem:
        monkeypatch.setattr(
            "langgraph_takeover.nodes.model.exchange.STREAM_LIMITS",
            STREAM_LIMITS._replace(structure_count=2_000),
        )
    if "longer" in problem:
        monkeypatch.setattr(
            "langgraph_takeover.nodes.model.exchange.STREAM_LIMITS",
            STREAM_LIMITS._replace(content_bytes=MIB),
        )
    with serve(body, Content_Type="text/event-stream") as endpoint:
        assert problem in refusal(endpoint.url, streaming=True)


def test_a_compressed_stream_is_refused_at_its_limit() -> None:
    packed = gzip.compress(b"data: " + b"a" * 40 * 1024**2)
    with serve(packed, Content_Type="text/event-stream", Content_Encoding="gzip") as endpoint:
        assert "more than 2 MiB without a blank line" in refusal(endpoint.url, streaming=True)


def test_a_stream_passes_each_event_on_immediately() -> None:
    token_received, in_time = threading.Event(), []

    class Listener(BaseCallbackHandler):
        def on_llm_new_token(self, token: str, **_: Any) -> None:
            token_received.set()

    def answer(connection: socket.socket) -> None:
        first, *others = stream_reply(*"abc").split(b"\n\n")
        connection.sendall(EVENT_STREAM + first + b"\n\n")
        in_time.append(token_received.wait(10))
        connection.sendall(b"\n\n".join(others))

    with raw(answer) as (url, _):
        model = client(url, streaming=True, callbacks=[Listener()])
        assert ask_model(model, HELLO, timeout_s=20).text == "abc"
    assert in_time == [True]


def test_a_blank_line_may_be_split_over_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "a" * 200
    monkeypatch.setattr(
        "langgraph_takeover.nodes.model.exchange.STREAM_LIMITS",
        STREAM_LIMITS._replace(line_bytes=10_000),
    )

    def answer(connection: socket.socket) -> None:
        connection.sendall(EVENT_STREAM.replace(b"Connection: close", b"Transfer-Encoding: chunked"))
        for event in stream_reply(*words).split(b"\n\n"):
            connection.sendall(b"%x\r\n%s\n\r\n1\r\n\n\r\n" % (len(event) + 1, event))
        connection.sendall(b"0\r\n\r\n")

    with raw(answer) as (url, _):
        assert ask_model(client(url, streaming=True), HELLO, timeout_s=20).text == words


def test_the_client_of_a_thread_is_closed_when_the_thread_ends() -> None:
    clients: list[EndpointClient] = []

    def work() -> None:
        client = Exchange(20).attach_client()
        assert Exchange(20).attach_client() is client
        clients.append(client)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            pool.submit(work).result()
        assert not any(client.is_closed for client in clients)
    assert all(client.is_closed for client in clients)
    references = [weakref.ref(client) for client in clients]
    clients.clear()
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


def test_a_call_without_remaining_time_is_overdue() -> None:
    with pytest.raises(DeadlineExceededError):
        Exchange(0.0).run(lambda: None)


def test_replies_of_bound_models_are_limited_too() -> None:
    with serve(bomb("gzip", 40), Content_Encoding="gzip") as endpoint:
        bound = client(endpoint.url).bind_tools(build_tool_schemas(offer_handoff=False))
        with pytest.raises(ReplyTooLargeError):
            ask_model(bound, HELLO, timeout_s=20)


@pytest.mark.slow
def test_memory_stays_small_while_a_compression_bomb_is_read() -> None:
    script = """
import sys
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph_takeover.nodes.model.calls import ModelError, ask_model

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

good, bad = (ChatOpenAI(model="m", base_url=url, api_key="k") for url in sys.argv[1:])
ask_model(good, [HumanMessage("x")], timeout_s=50)
before = peak()
try:
    ask_model(bad, [HumanMessage("x")], timeout_s=50)
except ModelError:
    print(peak() - before)
"""
    with serve(completion()) as good, serve(bomb("gzip", 1_000), Content_Encoding="gzip") as bad:
        assert len(bad.body) < 1024**2 * 1.1
        done = subprocess.run(
            [sys.executable, "-c", script, good.url, bad.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
    assert float(done.stdout) < 100


@contextmanager
def raw(answer: Callable[[socket.socket], object], reads: bool = True) -> Iterator[tuple[str, list[float]]]:
    """Yield the URL of a server that answers each connection by a function, and the times at which connections ended."""
    end_times: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    if reads:
                        read_request(connection)
                    answer(connection)
                except OSError:
                    pass
                end_times.append(time.monotonic())

        def accept() -> None:
            try:
                while True:
                    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1", end_times


def read_request(connection: socket.socket) -> None:
    """Read a whole request: closing a connection with unread data resets it, and its answer may be lost."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(100_000) or b"\r\n\r\n"
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    left = int(length[1]) - len(body) if length else 0
    while left > 0 and (piece := connection.recv(left)):
        left -= len(piece)


def drip(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(piece)
            time.sleep(0.05)

    return answer


def stay_silent(connection: socket.socket) -> None:
    connection.settimeout(20)
    while connection.recv(1) != b"":
        time.sleep(0.05)


SLOW = {
    "status line": drip(b"HTTP/1.1 200 ", b"O"),
    "header": drip(OK + b"X-Long: ", b"a"),
    "headers": drip(OK, b"X-A: b\r\n"),
    "provisional replies": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": drip(OK + b"Content-Length: 1000000\r\n\r\n", b" "),
    "chunks": drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "chunk length": drip(OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a"),
    "nothing": stay_silent,
}


@pytest.mark.cases(2)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", SLOW)
def test_a_connection_ends_at_the_deadline_of_its_call(kind: str) -> None:
    with raw(SLOW[kind]) as (url, end_times):
        started = time.monotonic()
        with pytest.raises(ReplyTimeoutError):
            ask_model(client(url), HELLO, timeout_s=0.6)
        assert time.monotonic() - started < 3
        while not end_times and time.monotonic() - started < 10:
            time.sleep(0.05)
        assert end_times, "the connection is still open"


@pytest.mark.timeout(60)
def test_a_connection_that_reads_no_request_ends_at_the_deadline() -> None:
    over = threading.Event()
    with raw(lambda connection: over.wait(30), reads=False) as (url, _):
        started = time.monotonic()
        with pytest.raises(ReplyTimeoutError):
            ask_model(client(url), [HumanMessage("x" * 20_000_000)], timeout_s=1.5)
        while list_connections(url) and time.monotonic() - started < 10:
            time.sleep(0.05)
        assert not list_connections(url)
        over.set()


def list_connections(url: str) -> list[Any]:
    """Return the connections of this process to a server."""
    port = urlsplit(url).port
    return [one for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr.port == port]


def test_a_timeout_that_the_client_notices_first_is_a_reply_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(_: Any) -> Any:
        monkeypatch.setattr(Exchange, "remaining_s", 0.0)
        raise ModelError("the endpoint did not answer in time")

    with pytest.raises(ReplyTimeoutError):
        ask_model(RunnableLambda(late), HELLO, timeout_s=20)


def test_endless_headers_are_refused() -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(OK + b"X-A: " + b"a" * 50_000_000)

    with raw(answer) as (url, _), pytest.raises(ModelError, match="connection to the endpoint broke"):
        ask_model(client(url), HELLO, timeout_s=20)


def test_a_call_after_a_timeout_has_a_new_connection() -> None:
    with serve(b"", drip=b" ") as slow, serve(completion()) as good:
        for _ in range(2):
            with pytest.raises(ReplyTimeoutError):
                ask_model(client(slow.url), HELLO, timeout_s=0.3)
            assert ask_model(client(good.url), HELLO, timeout_s=20).text == "```bash\nls\n```"
            assert ask_model(client(good.url), HELLO, timeout_s=20).text == "```bash\nls\n```"


@pytest.mark.parametrize("charset", ["punycode", "idna", "utf-7", "no-such"])
def test_no_charset_is_slow_to_decode(charset: str) -> None:
    text, kind = b"a-" + b"zzzz9" * 200_000, f"text/plain; charset={charset}"
    with (
        serve(text, 400, Content_Type=kind) as endpoint,
        pytest.raises(ModelError, match="the endpoint answered 400: a-zzzz9"),
    ):
        ask_model(client(endpoint.url), HELLO, timeout_s=20)


def test_no_cookie_is_kept() -> None:
    sent: list[bytes] = []
    body = json.dumps(completion()).encode()

    def answer(connection: socket.socket) -> None:
        head = OK + b"Set-Cookie: a=b; Path=/\r\nContent-Length: %d\r\n\r\n" % len(body)
        while True:
            connection.sendall(head + body)
            sent.append(connection.recv(1_000_000))

    with raw(answer) as (url, _):
        for _ in range(3):
            ask_model(client(url), HELLO, timeout_s=20)
    assert any(sent)
    assert not any(b"cookie" in request.lower() for request in sent)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    with (
        serve(completion()) as inner,
        serve(b"", status, Location=f"{inner.url}/chat/completions") as endpoint,
        pytest.raises(ModelError, match=f"the endpoint answered {status}"),
    ):
        ask_model(client(endpoint.url), HELLO, timeout_s=20)
    assert inner.requests == []


def test_a_custom_http_client_is_not_replaced() -> None:
    import httpx2

    with httpx2.Client(headers={"X-Ours": "1"}) as own, serve(completion()) as endpoint:
        model = ChatOpenAI(model="m", base_url=endpoint.url, api_key="k", http_client=own)  # type: ignore[arg-type]
        assert ask_model(model, HELLO, timeout_s=20).text == "```bash\nls\n```"
        assert not own.is_closed


@pytest.mark.timeout(60)
def test_the_model_list_of_an_endpoint_has_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_takeover.evals.models.endpoints._LISTING_TIMEOUT_S", 0.5)
    for slow in (SLOW["header"], SLOW["body"]):
        with raw(slow) as (url, _):
            started = time.monotonic()
            assert describe_ambiguous_models(["openai:a", "openai:b"], url) is None
            assert time.monotonic() - started < 4

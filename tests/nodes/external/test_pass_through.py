"""Requests and replies pass a vendor's endpoint unchanged, except for the key."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, get_args

import psutil
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import SecretStr

from langgraph_takeover.nodes.external.apis import (
    MODEL_PATHS,
    Api,
    ModelRequest,
    WireRequest,
    parse_request,
    write_reply,
)
from langgraph_takeover.nodes.external.pass_through import VendorModel
from langgraph_takeover.nodes.model.calls import CallCount, ModelCall, ask_model
from langgraph_takeover.nodes.model.deadlines import Cancellation
from langgraph_takeover.nodes.model.model_errors import (
    ContextWindowError,
    ModelError,
    PermanentModelError,
    ReplyTimeoutError,
    ReplyTooLargeError,
)

KEY = "key-of-the-runtime-4711"
APIS: tuple[Api, ...] = get_args(Api)
MESSAGES = [HumanMessage("hello")]


class Seen(NamedTuple):
    """A request as the vendor received it."""

    path: str
    headers: dict[str, str]
    body: bytes


class Vendor:
    """A vendor's endpoint on loopback."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        """Status, headers and content of each reply; the last one is repeated."""
        self.delay = threading.Event()
        self.delay.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.seen.append(Seen(self.path, headers, body))
                status, fields, content = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                outer.delay.wait(20)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **fields}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    endpoint = Vendor()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


def build_request(api: Api, stream: bool) -> tuple[ModelRequest, bytes]:
    """A request with unusual spacing, which only a copy of the bytes keeps."""
    turn = {"role": "user", "content": "hello"}
    fields = {"model": "m", "stream": stream, "messages": [turn], "input": [turn], "metadata": {"x": 1e3}}
    body = json.dumps(fields, indent=3).encode()
    return parse_request(api, body), body


def build_model(api: Api, vendor: Vendor, **fields: Any) -> VendorModel:
    return VendorModel(api=api, base_url=vendor.url, api_key=SecretStr(KEY), **fields)


def ask(api: Api, vendor: Vendor, wire: WireRequest, timeout_s: float = 20) -> AIMessage:
    return ask_model(build_model(api, vendor).bind(wire=wire), MESSAGES, timeout_s=timeout_s)


@pytest.mark.cases(2)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_bytes_pass_unchanged(vendor: Vendor, api: Api, stream: bool) -> None:
    request, body = build_request(api, stream)
    call = {"name": "shell", "args": {"command": "ls"}, "id": "c1", "type": "tool_call"}
    reply = write_reply(request, AIMessage("I look.", tool_calls=[call]))
    # A field that no reader knows.
    content = reply.body.replace(b'"object"', b'"new_field": [1,  2], "object"') + b"\n"
    vendor.answers = [(200, {"Content-Type": reply.content_type + "; charset=utf-8"}, content)]
    headers = {
        "authorization": "Bearer placeholder",
        "x-api-key": "placeholder",
        "cookie": "secret=1",
        "host": "evil",
        "connection": "close, x-stainless-os",
        "transfer-encoding": "identity",
        "x-forwarded-for": "10.0.0.1",
        "openai-organization": "other",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "a,b",
        "openai-beta": "responses=v1",
        "user-agent": "the-agent/1.0",
    }
    answer = ask(api, vendor, WireRequest(MODEL_PATHS[api] + "?beta=true", headers, body))

    seen = vendor.seen[0]
    assert (seen.path, seen.body) == (MODEL_PATHS[api] + "?beta=true", body)
    names = ("anthropic-version", "anthropic-beta", "openai-beta", "user-agent")
    assert {name: seen.headers[name] for name in names} == {name: headers[name] for name in names}
    dropped = {"cookie", "x-forwarded-for", "transfer-encoding", "openai-organization"}
    assert not dropped & seen.headers.keys()
    own, other = ("x-api-key", "authorization") if api == "messages" else ("authorization", "x-api-key")
    assert seen.headers[own].removeprefix("Bearer ") == KEY
    assert other not in seen.headers
    assert "evil" not in seen.headers["host"]

    assert (answer.text, answer.tool_calls) == ("I look.", [call])
    delivered = write_reply(request, answer)
    assert delivered.body == content
    assert delivered.content_type == reply.content_type


def test_a_compressed_reply_is_delivered_decompressed(vendor: Vendor) -> None:
    request, body = build_request("chat", False)
    content = write_reply(request, AIMessage("hello")).body
    fields = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    packed = gzip.compress(content)
    vendor.answers = [(200, {**fields, "Content-Length": str(len(packed))}, packed)]
    reply = ask("chat", vendor, WireRequest(MODEL_PATHS["chat"], {"accept-encoding": "br"}, body))
    assert write_reply(request, reply).body == content


ERRORS: list[tuple[int, dict[str, Any], type[Exception], bool]] = [
    (429, {"error": {"message": "slow down", "type": "rate_limit_error"}}, ModelError, True),
    (429, {"error": {"message": "no credit", "code": "insufficient_quota"}}, PermanentModelError, False),
    (529, {"type": "error", "error": {"message": "busy", "type": "overloaded_error"}}, ModelError, True),
    (500, {}, ModelError, True),
    (401, {"error": {"message": f"wrong key {KEY}"}}, PermanentModelError, False),
    (404, {"error": {"message": "no such model"}}, PermanentModelError, False),
    (302, {}, PermanentModelError, False),
    (400, {"error": {"message": "prompt is too long: 9 > 8"}}, ContextWindowError, False),
    (400, {"error": {"message": "too much", "code": "context_length_exceeded"}}, ContextWindowError, False),
]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("status", "document", "error", "is_transient"), ERRORS)
def test_refusals_of_the_vendor(
    vendor: Vendor, status: int, document: dict[str, Any], error: type[Exception], is_transient: bool
) -> None:
    fields = {"Content-Type": "application/json", "Location": "http://127.0.0.1:1/"}
    vendor.answers = [(status, fields, json.dumps(document).encode())]
    with pytest.raises(error) as caught:
        ask("chat", vendor, WireRequest(MODEL_PATHS["chat"], {}, build_request("chat", False)[1]))
    assert getattr(caught.value, "is_transient", False) is is_transient
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_transient_failures_are_retried_and_counted(vendor: Vendor) -> None:
    request, body = build_request("messages", True)
    good = write_reply(request, AIMessage("hello"))
    stream = {"Content-Type": good.content_type}
    vendor.answers = [(529, {}, b"busy"), (200, stream, good.body[:200]), (200, stream, good.body)]
    count = CallCount()
    model = build_model("messages", vendor).bind(wire=WireRequest(MODEL_PATHS["messages"], {}, body))
    reply = ModelCall(model, MESSAGES, 60, 3, count, Cancellation()).ask()
    assert reply.text == "hello"
    assert len(vendor.seen) == 3
    # The refusal is not billed; the reply that was cut off is.
    assert count.billable == 2
    assert reply.response_metadata["uncounted_calls"] == 1


def test_a_late_and_a_huge_reply(vendor: Vendor) -> None:
    wire = WireRequest(MODEL_PATHS["chat"], {}, build_request("chat", False)[1])
    vendor.answers = [(200, {"Content-Type": "application/json"}, b"x" * 70_000_000)]
    with pytest.raises(ReplyTooLargeError):
        ask("chat", vendor, wire)
    vendor.delay.clear()
    with pytest.raises(ReplyTimeoutError):
        ask("chat", vendor, wire, timeout_s=0.5)
    vendor.delay.set()


def test_a_long_stream_is_no_large_message(vendor: Vendor) -> None:
    """A reply of 2,000 tokens, an event of 300 bytes for each: more than a reply may have in characters."""
    request, body = build_request("responses", True)
    reply = write_reply(request, AIMessage("hello"))
    delta = {"type": "response.output_text.delta", "delta": "word", "obfuscation": "x" * 500}
    content = (
        b"".join(b"event: d\ndata: %s\n\n" % json.dumps(delta).encode() for _ in range(2_000)) + reply.body
    )
    assert len(content) > 2**20
    vendor.answers = [(200, {"Content-Type": reply.content_type}, content)]
    answer = ask("responses", vendor, WireRequest(MODEL_PATHS["responses"], {}, body))
    assert write_reply(request, answer).body == content
    assert len(str(answer.additional_kwargs)) < len(content) / 20


@pytest.mark.parametrize(
    "path", ["/v1/files", "/v1/chat/completions/../files", "http://10.0.0.1/", "/v1/chat/completions?a b"]
)
def test_other_paths_never_reach_the_vendor(vendor: Vendor, path: str) -> None:
    with pytest.raises(PermanentModelError, match="unknown path"):
        ask("chat", vendor, WireRequest(path, {}, b"{}"))
    assert vendor.seen == []


def test_the_key_is_never_shown(vendor: Vendor) -> None:
    request, body = build_request("chat", False)
    content = write_reply(request, AIMessage(f"your key is {KEY}")).body
    vendor.answers = [(200, {"Content-Type": "application/json"}, content)]
    model = build_model("chat", vendor, model_name="m")
    reply = ask("chat", vendor, WireRequest(MODEL_PATHS["chat"], {}, body))
    assert KEY.encode() not in write_reply(request, reply).body
    assert KEY not in f"{reply!r} {model!r} {model.model_dump_json()} {model._identifying_params}"
    with pytest.raises(PermanentModelError, match="wire"):
        model.invoke("hello")


def test_an_endpoint_that_cannot_be_reached() -> None:
    model = VendorModel(api="chat", base_url="http://127.0.0.1:9/v1/", api_key=SecretStr(KEY))
    assert model.url == "http://127.0.0.1:9/v1/chat/completions"
    bound = model.bind(wire=WireRequest(MODEL_PATHS["chat"], {}, b"{}"))
    with pytest.raises(ModelError, match="could not be reached") as caught:
        ask_model(bound, MESSAGES, timeout_s=10)
    assert caught.value.is_transient


HOSTILE_REPLIES: dict[str, tuple[dict[str, str], bytes, type[Exception]]] = {
    "a gzip bomb": (
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        gzip.compress(b" " * 100_000_000, 1),
        ReplyTooLargeError,
    ),
    "a bomb of a stream": (
        {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"},
        gzip.compress(b"data: {}\n\n" * 10_000_000, 1),
        ReplyTooLargeError,
    ),
    "compressed twice": (
        {"Content-Type": "application/json", "Content-Encoding": "gzip, gzip"},
        gzip.compress(gzip.compress(b"{}")),
        ReplyTooLargeError,
    ),
    "compressed without a limit": (
        {"Content-Type": "application/json", "Content-Encoding": "zstd"},
        b"\x28\xb5\x2f\xfd",
        ReplyTooLargeError,
    ),
    "huge headers": ({"Content-Type": "application/json", "X-A": "a" * 2_000_000}, b"{}", ModelError),
    "a wrong type": ({"Content-Type": "text/html"}, b"<html>", ModelError),
    "a stream of another type": ({"Content-Type": "text/event-stream"}, b"{}", ModelError),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", HOSTILE_REPLIES)
def test_hostile_replies_of_a_vendor(vendor: Vendor, name: str) -> None:
    fields, content, error = HOSTILE_REPLIES[name]
    vendor.answers = [(200, {**fields, "Content-Length": str(len(content))}, content)]
    process = psutil.Process()
    before = process.memory_info().rss
    with pytest.raises(error) as caught:
        ask("chat", vendor, WireRequest(MODEL_PATHS["chat"], {}, build_request("chat", False)[1]))
    assert "\n" not in str(caught.value)
    # The endpoint is a thread of this process.
    assert process.memory_info().rss - before < 200 * 1024**2


def test_a_reply_that_drips_ends_with_the_time_of_the_call(vendor: Vendor) -> None:
    outer = vendor.server.RequestHandlerClass

    def drip(self: Any) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b": wait\n\n")
                time.sleep(0.05)

    outer.do_POST = drip  # type: ignore[attr-defined]
    started = time.monotonic()
    with pytest.raises(ReplyTimeoutError):
        ask("chat", vendor, WireRequest(MODEL_PATHS["chat"], {}, b"{}"), timeout_s=1)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("api", APIS)
def test_text_alone_needs_no_request_of_an_agent(vendor: Vendor, api: Api) -> None:
    """Notes are written by the vendor's own model, too."""
    request, _ = build_request(api, stream=True)
    reply = write_reply(request, AIMessage("Goal: fix it."))
    vendor.answers = [(200, {"Content-Type": reply.content_type}, reply.body)]
    model = build_model(api, vendor, model_name="m", max_output_tokens=700)
    answered = ask_model(model, [SystemMessage("Be brief."), HumanMessage("hello")], timeout_s=20)
    assert answered.text == "Goal: fix it."
    seen = vendor.seen[0]
    parsed = parse_request(api, seen.body)
    assert [each.text for each in parsed.messages] == ["Be brief.", "hello"]
    assert (parsed.model, parsed.stream, parsed.tools) == ("m", True, ())
    assert b"700" in seen.body
    assert seen.path == MODEL_PATHS[api]
    with pytest.raises(PermanentModelError, match="needs the request of an external agent"):
        ask_model(build_model(api, vendor), MESSAGES, timeout_s=20)


def test_a_short_placeholder_of_a_key_changes_no_reply(vendor: Vendor) -> None:
    request, body = build_request("chat", stream=False)
    reply = write_reply(request, AIMessage("run exec_command in x"))
    vendor.answers = [(200, {"Content-Type": reply.content_type}, reply.body)]
    model = VendorModel(api="chat", base_url=vendor.url, api_key=SecretStr("x"))
    wire = WireRequest(MODEL_PATHS["chat"], {}, body)
    assert ask_model(model.bind(wire=wire), MESSAGES, timeout_s=20).text == "run exec_command in x"

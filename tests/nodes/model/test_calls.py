"""Every failure of an endpoint becomes a one-line error; bugs of our own are raised unchanged."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langgraph_takeover.base.secret_names import REDACTED
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.context.settings import Prices
from langgraph_takeover.nodes.model.calls import ask_model, ask_with_schema, find_api_keys
from langgraph_takeover.nodes.model.model_errors import ContextWindowError, ModelError, ReplyTimeoutError
from langgraph_takeover.nodes.model.tool_schemas import build_tool_schemas
from langgraph_takeover.nodes.model.usage import measure_usage

from ...chat_server import ChatServer

KEY = "sk-very-secret-123456"
ROOT = Path(__file__).parents[3]


class Endpoint(ThreadingHTTPServer):
    """An HTTP server that sends the same answer to every request."""

    daemon_threads = True

    def __init__(
        self, status: int, body: bytes, headers: dict[str, str], *, drip: bytes, missing_bytes: int
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body, self.headers = status, body, headers
        self.drip, self.missing_bytes = drip, missing_bytes
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        endpoint = self.server
        endpoint.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(endpoint.status)
        headers = {"Content-Type": "application/json", "retry-after-ms": "1"} | endpoint.headers
        if not endpoint.drip:
            headers["Content-Length"] = str(len(endpoint.body) + endpoint.missing_bytes)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if endpoint.drip:
            try:
                while True:
                    self.wfile.write(endpoint.drip)
                    time.sleep(0.05)
            except OSError:
                return
        self.wfile.write(endpoint.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(
    body: Any, status: int = 200, *, drip: bytes = b"", missing_bytes: int = 0, **headers: str
) -> Iterator[Endpoint]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    endpoint = Endpoint(status, content, named, drip=drip, missing_bytes=missing_bytes)
    Thread(target=endpoint.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield endpoint
    finally:
        endpoint.shutdown()
        endpoint.server_close()


def client(url: str, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=url, api_key=SecretStr(KEY), max_retries=2, timeout=20, **settings)


def failure(endpoint: Endpoint, timeout_s: float = 20, **settings: Any) -> Exception:
    with pytest.raises((ModelError, ContextWindowError)) as caught:
        ask_model(client(endpoint.url, **settings), [HumanMessage("hello")], timeout_s=timeout_s)
    error = caught.value
    line = str(error)
    assert line.strip()
    assert "\n" not in line
    assert len(line) < 400
    assert "Traceback" not in line
    assert KEY not in line
    # A log with the exception chain shows no more either.
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    return error


def completion(message: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    answer = {"role": "assistant", "content": "```bash\nls\n```"} | (message or {})
    choice = {"index": 0, "message": answer, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
    return {k: v for k, v in (body | {"choices": [choice]} | changes).items() if v is not None}


@pytest.mark.parametrize("field", ["finish_reason", "stop_reason"])
def test_a_reply_without_text_that_ends_at_the_window_is_an_overflow(field: str) -> None:
    metadata = {field: "model_context_window_exceeded"}
    for content, is_overflow in (("", True), ("Half a", False)):
        reply = AIMessage(content, response_metadata=metadata)
        model = RunnableLambda(lambda _, reply=reply: reply)
        if is_overflow:
            with pytest.raises(ContextWindowError, match="model_context_window_exceeded"):
                ask_model(model, [HumanMessage("hello")], timeout_s=20)
        else:
            assert ask_model(model, [HumanMessage("hello")], timeout_s=20).text == content


def stream_reply(*words: str, reason: str | None = "stop") -> bytes:
    """Return the events of a reply streamed word by word; without a finish reason it is cut off."""
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": word}} for word in words]
    if reason is not None:
        choices.append({"delta": {}, "finish_reason": reason})
    events = [json.dumps({**head, "choices": [{"index": 0, **choice}]}) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in (*events, *(["[DONE]"] if reason else []))).encode()


EVENTS = {"Content_Type": "text/event-stream"}


def error_body(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "some_error", "code": code}}


def test_a_good_reply() -> None:
    with serve(completion()) as endpoint:
        reply = ask_model(client(endpoint.url), messages := [HumanMessage("hello")], timeout_s=20)
    assert reply.text == "```bash\nls\n```"
    assert measure_usage(reply, messages) == Usage(prompt_tokens=7, completion_tokens=3)


def test_cached_tokens_are_counted() -> None:
    usage = {
        "prompt_tokens": 70,
        "completion_tokens": 3,
        "total_tokens": 73,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    with serve(completion(usage=usage)) as endpoint:
        reply = ask_model(client(endpoint.url), messages := [HumanMessage("hello")], timeout_s=20)
    assert measure_usage(reply, messages) == Usage(prompt_tokens=70, cached_tokens=64, completion_tokens=3)


def test_missing_usage_is_estimated_and_marked() -> None:
    with serve(completion(usage=None)) as endpoint:
        reply = ask_model(client(endpoint.url), messages := [HumanMessage("hello, you")], timeout_s=20)
    # Four characters per token, rounded up, for the messages and the reply.
    assert measure_usage(reply, messages) == Usage(prompt_tokens=3, completion_tokens=4, estimated=True)


def counts(prompt: Any = 7, completion: Any = 3, total: Any = 10, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total} | more


def make_cached_usage(count: Any) -> dict[str, Any]:
    return counts(prompt_tokens_details={"cached_tokens": count})


NONSENSE: dict[str, Any] = {
    "negative": counts(-99_999_999_999, 3, -99_999_999_996),
    "negative completion": counts(7, -99_999_999_999, 10),
    "negative total": counts(total=-1),
    "text": counts("many"),
    "fraction": counts(7.5),
    "not a number": counts(float("nan")),
    "infinite": counts(total=float("inf")),
    "list": counts([7]),
    "object": counts({"a": 7}),
    "more than any context window": counts(10**9, 3, 10**9 + 3),
    "more than 64 bits": counts(10**30, 3, 10**30 + 3),
    "nothing": counts(0, 0, 0),
    "no completion": counts(7, 0, 7),
    "less in all than in its parts": counts(total=9),
    "more cached than sent": make_cached_usage(8),
    "negative cached": make_cached_usage(-1),
    "cached text": make_cached_usage("all"),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", NONSENSE)
def test_impossible_usage_is_replaced_by_an_estimate(name: str) -> None:
    with serve(completion(usage=NONSENSE[name])) as endpoint:
        reply = ask_model(client(endpoint.url), messages := [HumanMessage("hello, you")], timeout_s=20)
    assert measure_usage(reply, messages) == Usage(prompt_tokens=3, completion_tokens=4, estimated=True)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "usage", ["lots", [1], counts(prompt_tokens_details=[1]), counts(prompt_tokens_details="x")]
)
def test_usage_of_a_wrong_shape_makes_the_answer_malformed(usage: Any) -> None:
    with serve(completion(usage=usage)) as endpoint:
        assert "malformed" in str(failure(endpoint))


def test_usage_below_any_tokenizer_is_replaced_by_an_estimate() -> None:
    with serve(completion()) as endpoint:
        reply = ask_model(client(endpoint.url), messages := [HumanMessage("x" * 8_000)], timeout_s=20)
    assert measure_usage(reply, messages) == Usage(prompt_tokens=2_000, completion_tokens=4, estimated=True)


def test_tokens_in_neither_part_count_as_completion() -> None:
    with serve(completion(usage=counts(total=60))) as endpoint:
        reply = ask_model(client(endpoint.url), messages := [HumanMessage("hello, you")], timeout_s=20)
    assert measure_usage(reply, messages) == Usage(prompt_tokens=7, completion_tokens=53)


@pytest.mark.parametrize(
    "counted",
    [
        {"input_tokens": -5, "output_tokens": 1, "total_tokens": 0},
        {"input_tokens": True, "output_tokens": 1, "total_tokens": 2},
        {"input_tokens": 1, "output_tokens": 1, "input_token_details": 3},
        {},
        "x",
        [1],
        5,
    ],
)
def test_usage_of_custom_models_is_checked_too(counted: Any) -> None:
    def reply(_: Any) -> AIMessage:
        made = AIMessage("hello")
        made.usage_metadata = counted
        return made

    messages = [HumanMessage("hello, you")]
    answer = ask_model(RunnableLambda(reply), messages, timeout_s=20)
    assert answer.usage_metadata is None
    assert measure_usage(answer, messages).estimated


COUNTS = st.integers() | st.floats() | st.booleans() | st.none() | st.text()
NAMES = ("input_tokens", "output_tokens", "total_tokens", "input_token_details")


@given(st.dictionaries(st.sampled_from(NAMES), COUNTS | st.dictionaries(st.just("cache_read"), COUNTS)))
def test_no_reported_usage_is_negative(counted: Any) -> None:
    reply = AIMessage("hello")
    reply.usage_metadata = counted
    usage = measure_usage(reply, [HumanMessage("hello, you")])
    assert (usage.prompt_tokens or 0) >= (usage.cached_tokens or 0) >= 0
    assert (usage.completion_tokens or 0) >= 0
    assert Prices(prompt=3, completion=7, cached=1).compute_cost(usage) >= 0


@pytest.mark.parametrize("value", [10**30, "\ud800", [[1, {"a": 10**30}]], {"a": "\udfff"}])
def test_every_reply_can_be_stored(value: Any) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    arguments = json.dumps({"command": "ls", "more": value})
    call = {"id": "1", "type": "function", "function": {"name": "shell", "arguments": arguments}}
    body = completion({"tool_calls": [call]}, created=value, system_fingerprint=value) | {"id": value}
    with serve(body) as endpoint:
        reply = ask_model(client(endpoint.url), [HumanMessage("hello")], timeout_s=20)
    serializer = JsonPlusSerializer()
    stored = serializer.loads_typed(serializer.dumps_typed(reply))
    assert (stored.content, stored.tool_calls) == (reply.content, reply.tool_calls)


@pytest.mark.parametrize("depth", [70, 600])
def test_a_deeply_nested_reply_is_malformed(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": f'{{"a": {nested}}}'}}
    with serve(completion({"tool_calls": [call]})) as endpoint:
        assert "nested deeper than 64" in str(failure(endpoint))


def test_lone_surrogates_are_replaced() -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "shell", "arguments": '{"command": "\\ud800"}'},
    }
    with serve(completion({"content": "a\ud800b", "tool_calls": [call]})) as endpoint:
        reply = ask_model(client(endpoint.url), [HumanMessage("hello")], timeout_s=20)
    assert reply.text == "a\ufffdb"
    assert reply.tool_calls[0]["args"] == {"command": "\ufffd"}


def test_calls_without_an_id_get_one() -> None:
    calls = [{"type": "function", "function": {"name": "shell", "arguments": text}} for text in ("{}", "{")]
    with serve(completion({"content": None, "tool_calls": calls})) as endpoint:
        reply = ask_model(client(endpoint.url), [HumanMessage("hello")], timeout_s=20)
    ids = [reply.tool_calls[0]["id"], reply.invalid_tool_calls[0]["id"]]
    assert all(ids)
    assert len(set(ids)) == 2


def test_connection_refused() -> None:
    with serve(completion()) as endpoint:
        pass
    error = failure(endpoint)
    assert isinstance(error, ModelError)
    assert str(error) == "the endpoint could not be reached: [Errno 111] Connection refused"


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_refused_requests(status: int) -> None:
    with serve(error_body(f"Incorrect API key provided: {KEY}.\nSee there."), status) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelError)
    assert str(error) == f"the endpoint answered {status}: Incorrect API key provided: [key]."
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_failures_are_retried_first(status: int) -> None:
    with serve(error_body("try again"), status) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelError)
    assert str(error) == f"the endpoint answered {status}: try again"
    assert len(endpoint.requests) == 3


def test_a_rate_limit_in_tokens_is_not_an_overflow() -> None:
    with serve(error_body("Request too large for context window of your tier (TPM)"), 429) as endpoint:
        assert isinstance(failure(endpoint), ModelError)


@pytest.mark.sampled(6)
@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{not json", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "malformed"),
        (b"null", "malformed"),
        (b"3", "malformed"),
        (completion(choices=[]), "malformed"),
        (completion(choices=None), "choices"),
        (completion() | {"choices": None}, "choices"),
        (completion(choices=[{"index": 0}]), "malformed"),
        (completion(choices=[{"index": 0, "message": None, "finish_reason": "stop"}]), "malformed"),
        (completion(choices="x"), "malformed"),
        (completion(usage={"prompt_tokens": "many"}), "malformed"),
        (error_body("model not loaded"), "model not loaded"),
        (completion({"content": {"a": 1}}), "malformed"),
        (completion({"role": "user"}), "HumanMessage"),
    ],
    ids=str,
)
def test_answers_of_a_wrong_shape(body: Any, says: str) -> None:
    with serve(body) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelError)
    assert says in str(error)


@pytest.mark.parametrize("status", [200, 404, 502])
def test_a_web_page(status: int) -> None:
    page = b"<!DOCTYPE html>\n<html><body>Welcome to nginx!</body></html>"
    with serve(page, status, Content_Type="text/html") as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelError)
    assert "web page; does the base URL end in /v1?" in str(error)


def test_a_truncated_body() -> None:
    with serve(completion(), missing_bytes=50) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelError)
    assert "connection to the endpoint broke: peer closed connection" in str(error)


@pytest.mark.parametrize("reason", [None, ""])
def test_a_whole_body_without_a_finish_reason_is_a_whole_reply(reason: str | None) -> None:
    choice = completion()["choices"][0]
    for body in (
        choice | {"finish_reason": reason},
        {k: v for k, v in choice.items() if k != "finish_reason"},
    ):
        with serve(completion(choices=[body])) as endpoint:
            reply = ask_model(client(endpoint.url), [HumanMessage("hello")], timeout_s=20)
        assert reply.text == "```bash\nls\n```"
        assert len(endpoint.requests) == 1


def make_call(arguments: Any, **extra: Any) -> dict[str, Any]:
    return {"id": 0, "type": "function", "function": {"name": "shell", "arguments": arguments}, **extra}


def ask_for_calls(*parts: list[dict[str, Any]], is_streamed: bool) -> AIMessage:
    """Return a reply with calls, which come in parts if it is streamed; no message has a role."""
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    ends = [*[None] * (len(parts) - 1), "tool_calls"]
    chunks = [
        {**head, "choices": [{"index": 0, "delta": {"tool_calls": part}, "finish_reason": end}]}
        for part, end in zip(parts, ends, strict=True)
    ]
    events = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode()
    whole = {"index": 0, "message": {"content": None, "tool_calls": parts[0]}}
    body = events + b"data: [DONE]\n\n" if is_streamed else completion(choices=[whole])
    with serve(body, **(EVENTS if is_streamed else {})) as endpoint:
        model = client(endpoint.url, streaming=is_streamed)
        reply = ask_model(model, [HumanMessage("hello")], timeout_s=20)
    assert len(endpoint.requests) == 1
    return reply


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_object_as_arguments_and_a_number_as_id(is_streamed: bool) -> None:
    reply = ask_for_calls([make_call({"command": "ls"}, index=0)], is_streamed=is_streamed)
    assert [(each["args"], each["id"]) for each in reply.tool_calls] == [({"command": "ls"}, "0")]
    assert not reply.invalid_tool_calls


@pytest.mark.parametrize(
    ("arguments", "args"),
    [
        (json.dumps('{"command": "ls"}'), {"command": "ls"}),
        ("null", {}),
        ("[]", {}),
        (None, {}),
        ('["ls"]', {"malformed_arguments": '["ls"]'}),
        ([5], {"malformed_arguments": "[5]"}),
        ("true", {"malformed_arguments": "true"}),
        ('"5"', {"malformed_arguments": "5"}),
        ('"ls"', None),
        ("{'command': 'ls'}", None),
    ],
)
def test_arguments_that_are_no_object(arguments: Any, args: Any) -> None:
    # Such a call is corrected in the conversation; LangChain refuses the whole reply, which was paid.
    reply = ask_for_calls([make_call(arguments)], is_streamed=False)
    assert [each["args"] for each in reply.tool_calls] == ([] if args is None else [args])
    assert len(reply.invalid_tool_calls) == (args is None)


def test_streamed_calls_without_an_index() -> None:
    first, rest = make_call('{"command": '), {"id": "", "function": {"arguments": '"ls"}'}}
    second = make_call('{"command": "pwd"}', extra_content={"google": {"thought_signature": "s"}}, id=1)
    reply = ask_for_calls([first], [rest], [second], is_streamed=True)
    assert [each["args"]["command"] for each in reply.tool_calls] == ["ls", "pwd"]
    assert [each["call"] for each in reply.additional_kwargs["call_fields"]] == [1]


@pytest.mark.timeout(30)
def test_an_endless_slow_body() -> None:
    with serve(b"", drip=b" ") as endpoint:
        error = failure(endpoint, timeout_s=0.5)
    assert isinstance(error, ReplyTimeoutError)


def test_a_streamed_reply() -> None:
    with serve(stream_reply("```bash\n", "ls\n", "```"), **EVENTS) as endpoint:
        reply = ask_model(client(endpoint.url, streaming=True), [HumanMessage("hello")], timeout_s=20)
    assert endpoint.requests[0]["stream"]
    assert reply.text == "```bash\nls\n```"


@pytest.mark.parametrize("done", [b"", b"data: [DONE]\n\n"])
def test_a_stream_without_a_finish_reason(done: bytes) -> None:
    with serve(stream_reply("```bash\n", "rm -", reason=None) + done, **EVENTS) as endpoint:
        error = failure(endpoint, streaming=True)
    assert isinstance(error, ModelError)
    assert error.is_transient
    assert "cut off" in str(error)


def test_a_truncated_stream() -> None:
    with serve(stream_reply("```bash\n", "rm -", reason=None), missing_bytes=50, **EVENTS) as endpoint:
        error = failure(endpoint, streaming=True)
    assert isinstance(error, ModelError)
    assert error.is_transient
    assert "peer closed connection" in str(error)


@pytest.mark.timeout(30)
def test_an_endless_slow_stream() -> None:
    with serve(b"", drip=stream_reply("word ", reason=None), **EVENTS) as endpoint:
        error = failure(endpoint, timeout_s=0.5, streaming=True)
    assert isinstance(error, ReplyTimeoutError)


@pytest.mark.slow
def test_an_overdue_call_does_not_keep_the_process_alive() -> None:
    script = f"""
import sys
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph_takeover.nodes.model.calls import ModelError, ask_model
try:
    ask_model(ChatOpenAI(model="m", base_url=sys.argv[1], api_key={KEY!r}), [HumanMessage("x")], timeout_s=0.5)
except ModelError as error:
    print(error, flush=True)
"""
    with serve(b"", drip=b" ") as endpoint:
        done = subprocess.run(
            [sys.executable, "-c", script, endpoint.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no complete reply within")


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (
            400,
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            "context_length_exceeded",
        ),
        (400, "Please reduce the length of the messages.", "context_length_exceeded"),
        (400, "Your input exceeds the context window of this model.", None),
        (
            400,
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4900 in the "
            "messages, 100 in the completion).",
            "400",
        ),
        (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", None),
        (
            400,
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            None,
        ),
        (500, "the request exceeds the available context size (4096 tokens), try increasing it", None),
        (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens).", None),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens", None),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", None),
        (
            400,
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            None,
        ),
    ],
)
def test_context_overflow_messages_of_several_servers(status: int, message: str, code: str | None) -> None:
    with serve(error_body(message, code), status) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ContextWindowError)
    assert str(error) == message[:300]


def test_context_overflow_from_servers_with_flat_errors() -> None:
    body = {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}
    with serve(body, 400) as endpoint:
        assert isinstance(failure(endpoint), ContextWindowError)


def test_keys_of_bound_models_are_hidden_too() -> None:
    with serve(error_body(f"bad key {KEY}"), 401) as endpoint:
        bound = client(endpoint.url).bind_tools(build_tool_schemas(offer_handoff=False))
        with pytest.raises(ModelError, match=r"bad key \[key\]$"):
            ask_model(bound, [HumanMessage("hello")], timeout_s=20)


ENCODED = base64.b64encode(f"Bearer {KEY}".encode()).decode()


@pytest.mark.parametrize("spelt", [ENCODED, KEY.encode().hex(), "".join(f"%{ord(c):02x}" for c in KEY)])
def test_no_error_or_reply_contains_an_encoded_key(spelt: str) -> None:
    with serve(error_body(f"bad header {spelt}!"), 401) as endpoint:
        assert REDACTED in str(failure(endpoint))
    call = {
        "id": spelt,
        "type": "function",
        "function": {"name": "shell", "arguments": json.dumps({spelt: spelt})},
    }
    message = {"content": spelt, "tool_calls": [call], "id": spelt, "name": spelt}
    body = completion(message, system_fingerprint=spelt, model=spelt, usage=counts(more=spelt)) | {
        "id": spelt
    }
    with serve(body) as endpoint:
        reply = ask_model(client(endpoint.url), [HumanMessage("hello")], timeout_s=20)
    assert spelt[4:-4] not in repr(reply)


def test_keys_in_headers_and_urls_are_found() -> None:
    headers = {
        "X-Api-Key": "gateway-key-1",
        "Authorization": "Bearer gateway-key-2",
        "X-Title": "harmless-title-3",
    }
    address = "http://me:gateway-key-4@127.0.0.1:9/v1"
    model = ChatOpenAI(model="m", base_url=address, api_key=SecretStr(KEY), default_headers=headers)
    assert {KEY, "gateway-key-1", "gateway-key-2", "gateway-key-4"} <= set(
        find_api_keys(model.bind(stop=["x"]))
    )
    assert "harmless-title-3" not in find_api_keys(model)
    with pytest.raises(ModelError) as caught:
        ask_model(model, [HumanMessage("hello")], timeout_s=20)
    assert "gateway" not in str(caught.value)


def test_long_errors_are_parsed_quickly() -> None:
    with serve(error_body("input token count " * 200_000), 400) as endpoint:
        started = time.monotonic()
        failure(endpoint)
    assert time.monotonic() - started < 10


class Buggy(BaseChatModel):
    """A model of ours with a bug of ours."""

    bug: str

    @property
    def _llm_type(self) -> str:
        return "buggy"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if self.bug == "type":
            raise TypeError("a bug of ours")
        if self.bug == "json":
            json.loads("{")
        if self.bug == "within":
            AIMessage(content=3)  # type: ignore[arg-type]
        if self.bug == "exit":
            raise KeyboardInterrupt
        return ChatResult(generations=[ChatGeneration(message=AIMessage("ok"))])


@pytest.mark.parametrize(
    ("bug", "kind"),
    [("type", TypeError), ("json", ValueError), ("within", ValueError), ("exit", KeyboardInterrupt)],
)
def test_a_bug_of_ours_is_raised_unchanged(bug: str, kind: type[BaseException]) -> None:
    with pytest.raises(kind) as caught:
        ask_model(Buggy(bug=bug), [HumanMessage("hello")], timeout_s=20)
    assert not isinstance(caught.value, ModelError | ContextWindowError)
    assert caught.tb is not None


def test_a_model_may_raise_model_errors() -> None:
    def fail(_: Any) -> Any:
        raise ModelError("own error")

    with pytest.raises(ModelError, match=r"^own error$"):
        ask_model(RunnableLambda(fail), [HumanMessage("x")], timeout_s=5)
    with pytest.raises(ModelError, match="a str instead of a reply"):
        ask_model(RunnableLambda(lambda _: "text"), [HumanMessage("x")], timeout_s=5)


def test_the_time_limit_of_a_call_with_a_schema_covers_both_requests(chat_server: ChatServer) -> None:
    def answer_late(request: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(3)
        return chat_server.reply("{}")

    chat_server.answer = answer_late
    schema, started = {"title": "note", "type": "object", "properties": {}}, time.monotonic()
    with pytest.raises(ReplyTimeoutError):
        ask_with_schema(client(chat_server.url), [HumanMessage("hello")], schema, timeout_s=1)
    assert time.monotonic() - started < 2
    assert len(chat_server.requests) == 1

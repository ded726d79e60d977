"""Every way an endpoint can fail ends as one clear line, told apart from bugs of our own."""

from __future__ import annotations

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
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from handoff.event import Usage
from nodes.actions import native_tools
from nodes.replies import ContextOverflow, ModelFailed, ReplyOverdue, ask, usage_of

KEY = "sk-very-secret-123456"
ROOT = Path(__file__).parents[2]


class Endpoint(ThreadingHTTPServer):
    """An HTTP server that gives one answer to every request."""

    daemon_threads = True

    def __init__(
        self, status: int, body: bytes, headers: dict[str, str], *, drip: bytes, lacking: int
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body, self.headers = status, body, headers
        self.drip, self.lacking = drip, lacking
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
            headers["Content-Length"] = str(len(endpoint.body) + endpoint.lacking)
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
def served(
    body: Any, status: int = 200, *, drip: bytes = b"", lacking: int = 0, **headers: str
) -> Iterator[Endpoint]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    endpoint = Endpoint(status, content, named, drip=drip, lacking=lacking)
    Thread(target=endpoint.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield endpoint
    finally:
        endpoint.shutdown()
        endpoint.server_close()


def client(url: str, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=url, api_key=SecretStr(KEY), max_retries=2, timeout=20, **settings)


def failure(endpoint: Endpoint, timeout_s: float = 20, **settings: Any) -> Exception:
    with pytest.raises((ModelFailed, ContextOverflow)) as caught:
        ask(client(endpoint.url, **settings), [HumanMessage("hello")], timeout_s=timeout_s)
    error = caught.value
    line = str(error)
    assert line.strip()
    assert "\n" not in line
    assert len(line) < 400
    assert "Traceback" not in line
    assert KEY not in line
    # What is logged with the whole chain shows no more.
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    return error


def completion(message: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    answer = {"role": "assistant", "content": "```bash\nls\n```"} | (message or {})
    choice = {"index": 0, "message": answer, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
    return {k: v for k, v in (body | {"choices": [choice]} | changes).items() if v is not None}


def streamed(*words: str, reason: str | None = "stop") -> bytes:
    """The events of a reply that is sent word by word; without a reason it is cut before its end."""
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": word}} for word in words]
    if reason is not None:
        choices.append({"delta": {}, "finish_reason": reason})
    told = [json.dumps({**head, "choices": [{"index": 0, **choice}]}) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in (*told, *(["[DONE]"] if reason else []))).encode()


EVENTS = {"Content_Type": "text/event-stream"}


def error_body(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "some_error", "code": code}}


def test_a_good_reply() -> None:
    with served(completion()) as endpoint:
        reply = ask(client(endpoint.url), asked := [HumanMessage("hello")], timeout_s=20)
    assert reply.text == "```bash\nls\n```"
    assert usage_of(reply, asked) == Usage(prompt_tokens=7, completion_tokens=3)


def test_cached_tokens_are_counted() -> None:
    usage = {
        "prompt_tokens": 70,
        "completion_tokens": 3,
        "total_tokens": 73,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    with served(completion(usage=usage)) as endpoint:
        reply = ask(client(endpoint.url), asked := [HumanMessage("hello")], timeout_s=20)
    assert usage_of(reply, asked) == Usage(prompt_tokens=70, cached_tokens=64, completion_tokens=3)


def test_usage_that_is_not_told_is_estimated_and_says_so() -> None:
    with served(completion(usage=None)) as endpoint:
        reply = ask(client(endpoint.url), asked := [HumanMessage("hello, you")], timeout_s=20)
    # Four characters a token, rounded up: of what was asked, and of the reply.
    assert usage_of(reply, asked) == Usage(prompt_tokens=3, completion_tokens=4, estimated=True)


def test_lone_surrogates_never_enter() -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "shell", "arguments": '{"command": "\\ud800"}'},
    }
    with served(completion({"content": "a\ud800b", "tool_calls": [call]})) as endpoint:
        reply = ask(client(endpoint.url), [HumanMessage("hello")], timeout_s=20)
    assert reply.text == "a\ufffdb"
    assert reply.tool_calls[0]["args"] == {"command": "\ufffd"}


def test_calls_without_an_id_are_given_one() -> None:
    calls = [{"type": "function", "function": {"name": "shell", "arguments": text}} for text in ("{}", "{")]
    with served(completion({"content": None, "tool_calls": calls})) as endpoint:
        reply = ask(client(endpoint.url), [HumanMessage("hello")], timeout_s=20)
    ids = [reply.tool_calls[0]["id"], reply.invalid_tool_calls[0]["id"]]
    assert all(ids)
    assert len(set(ids)) == 2


def test_connection_refused() -> None:
    with served(completion()) as endpoint:
        pass
    error = failure(endpoint)
    assert isinstance(error, ModelFailed)
    assert str(error) == "the endpoint could not be reached: [Errno 111] Connection refused"


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_refused_requests(status: int) -> None:
    with served(error_body(f"Incorrect API key provided: {KEY}.\nSee there."), status) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelFailed)
    assert str(error) == f"the endpoint answered {status}: Incorrect API key provided: [key]."
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_failures_are_retried_first(status: int) -> None:
    with served(error_body("try again"), status) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelFailed)
    assert str(error) == f"the endpoint answered {status}: try again"
    assert len(endpoint.requests) == 3


def test_a_rate_limit_in_tokens_is_no_overflow() -> None:
    with served(error_body("Request too large for context window of your tier (TPM)"), 429) as endpoint:
        assert isinstance(failure(endpoint), ModelFailed)


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
    with served(body) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelFailed)
    assert says in str(error)


@pytest.mark.parametrize("status", [200, 404, 502])
def test_a_web_page(status: int) -> None:
    page = b"<!DOCTYPE html>\n<html><body>Welcome to nginx!</body></html>"
    with served(page, status, Content_Type="text/html") as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelFailed)
    assert "web page; does the base URL end in /v1?" in str(error)


def test_a_torn_body() -> None:
    with served(completion(), lacking=50) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ModelFailed)
    assert "connection to the endpoint broke: peer closed connection" in str(error)


@pytest.mark.parametrize("reason", [None, ""])
def test_a_reply_without_an_end(reason: str | None) -> None:
    choice = completion()["choices"][0]
    for body in (
        choice | {"finish_reason": reason},
        {k: v for k, v in choice.items() if k != "finish_reason"},
    ):
        with served(completion(choices=[body])) as endpoint:
            error = failure(endpoint)
        assert isinstance(error, ModelFailed)
        assert "cut off" in str(error)


@pytest.mark.timeout(30)
def test_a_body_that_drips_for_ever() -> None:
    with served(b"", drip=b" ") as endpoint:
        error = failure(endpoint, timeout_s=0.5)
    assert isinstance(error, ReplyOverdue)


def test_a_streamed_reply() -> None:
    with served(streamed("```bash\n", "ls\n", "```"), **EVENTS) as endpoint:
        reply = ask(client(endpoint.url, streaming=True), [HumanMessage("hello")], timeout_s=20)
    assert endpoint.requests[0]["stream"]
    assert reply.text == "```bash\nls\n```"


@pytest.mark.parametrize("done", [b"", b"data: [DONE]\n\n"])
def test_a_stream_without_an_end(done: bytes) -> None:
    with served(streamed("```bash\n", "rm -", reason=None) + done, **EVENTS) as endpoint:
        error = failure(endpoint, streaming=True)
    assert isinstance(error, ModelFailed)
    assert error.passes
    assert "cut off" in str(error)


def test_a_torn_stream() -> None:
    with served(streamed("```bash\n", "rm -", reason=None), lacking=50, **EVENTS) as endpoint:
        error = failure(endpoint, streaming=True)
    assert isinstance(error, ModelFailed)
    assert error.passes
    assert "peer closed connection" in str(error)


@pytest.mark.timeout(30)
def test_a_stream_that_drips_for_ever() -> None:
    with served(b"", drip=streamed("word ", reason=None), **EVENTS) as endpoint:
        error = failure(endpoint, timeout_s=0.5, streaming=True)
    assert isinstance(error, ReplyOverdue)


def test_an_overdue_call_does_not_keep_the_process() -> None:
    script = f"""
import sys
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from nodes.replies import ModelFailed, ask
try:
    ask(ChatOpenAI(model="m", base_url=sys.argv[1], api_key={KEY!r}), [HumanMessage("x")], timeout_s=0.5)
except ModelFailed as error:
    print(error, flush=True)
"""
    with served(b"", drip=b" ") as endpoint:
        done = subprocess.run(
            [sys.executable, "-c", script, endpoint.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no whole reply within")


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
def test_context_overflow_in_the_words_of_several_servers(
    status: int, message: str, code: str | None
) -> None:
    with served(error_body(message, code), status) as endpoint:
        error = failure(endpoint)
    assert isinstance(error, ContextOverflow)
    assert str(error) == message[:300]


def test_context_overflow_from_servers_with_flat_errors() -> None:
    body = {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}
    with served(body, 400) as endpoint:
        assert isinstance(failure(endpoint), ContextOverflow)


def test_keys_of_bound_models_are_hidden_too() -> None:
    with served(error_body(f"bad key {KEY}"), 401) as endpoint:
        bound = client(endpoint.url).bind_tools(native_tools(offer_handoff=False))
        with pytest.raises(ModelFailed, match=r"bad key \[key\]$"):
            ask(bound, [HumanMessage("hello")], timeout_s=20)


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
def test_a_bug_of_ours_stays_what_it_is(bug: str, kind: type[BaseException]) -> None:
    with pytest.raises(kind) as caught:
        ask(Buggy(bug=bug), [HumanMessage("hello")], timeout_s=20)
    assert not isinstance(caught.value, ModelFailed | ContextOverflow)
    assert caught.tb is not None


def test_a_model_may_tell_its_own_failures() -> None:
    def fail(_: Any) -> Any:
        raise ModelFailed("told")

    with pytest.raises(ModelFailed, match=r"^told$"):
        ask(RunnableLambda(fail), [HumanMessage("x")], timeout_s=5)
    with pytest.raises(ModelFailed, match="a str where a reply was due"):
        ask(RunnableLambda(lambda _: "text"), [HumanMessage("x")], timeout_s=5)

"""An endpoint's wait is obeyed within the call's time, shown, and ended by a stop; its values are not trusted."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langgraph_takeover.nodes.model.calls import CallCount, ModelCall, ask_with_schema
from langgraph_takeover.nodes.model.deadlines import CallCancelledError, Cancellation, WaitEndedError
from langgraph_takeover.nodes.model.model_errors import ModelError, PermanentModelError, WaitTooLongError
from langgraph_takeover.nodes.model.refusals import MAX_WAIT_S, read_wait

from ...chat_server import ChatServer
from ..test_retries_and_budgets import answer_in_turn, client, error_answer

NOW = 1_800_000_000.0


def date(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(NOW + seconds, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {"retry-after": "7"}, 7),
        (503, {"retry-after": " 7.5 "}, 7.5),
        (529, {"retry-after": "7"}, 7),
        (429, {"retry-after": "2m"}, 120),
        (429, {"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        (429, {"retry-after": date(30), "date": date(0)}, 30),
        (503, {"retry-after": date(3_630), "date": date(3_600)}, 30),  # its clock is an hour ahead
        (429, {"x-ratelimit-reset-requests": "1m30.5s"}, 90.5),
        (429, {"x-ratelimit-reset-tokens": "20ms"}, 0.02),
        (429, {"x-ratelimit-reset": str(NOW + 5), "date": date(0)}, 5),
        (429, {"x-ratelimit-reset": str(int(NOW + 5) * 1000), "date": date(0)}, 5),
        (429, {"ratelimit-reset": "9"}, 9),
        (
            429,
            {
                "x-ratelimit-limit-requests": "500",
                "x-ratelimit-remaining-requests": "499",
                "x-ratelimit-limit-tokens": "30000",
                "x-ratelimit-remaining-tokens": "900",
                "x-ratelimit-reset-requests": "120ms",
                "x-ratelimit-reset-tokens": "8s",
            },
            8,
        ),
        (429, {"x-ratelimit-reset-requests": "3s", "x-ratelimit-reset-tokens": "8s"}, 8),
        (503, {"x-ratelimit-reset-requests": "3s"}, None),
        (429, {"retry-after": "soon", "x-ratelimit-reset-requests": "3s"}, 3),
        (429, {"retry-after": "Fri, 15 Jan 2027 09:00:30 +0100", "date": date(0)}, 30),
        (429, {"retry-after": "12 seconds"}, 12),
        (
            429,
            {
                "anthropic-ratelimit-requests-limit": "50",
                "anthropic-ratelimit-requests-remaining": "49",
                "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:01Z",
                "anthropic-ratelimit-tokens-limit": "50000",
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:42Z",
                "date": date(0),
            },
            42,
        ),
    ],
)
def test_the_wait_of_a_refusal(status: int, headers: dict[str, str], wait: float | None) -> None:
    assert read_wait(status, headers) == (None if wait is None else pytest.approx(wait, abs=0.01))


@pytest.mark.parametrize(
    "value",
    [
        *("", "-5", "0", "nan", "inf", "-inf", "1e9", "0x10", "١٢", "5, 5", "5s5", "s", "1" * 100, "🦜"),
        *("Mon, 99 Foo 1", "Thu, 01 Jan 1970 00:00:00 GMT", "9999999-01-01", date(-30)),
        "Fri, 31 Dec 9999 23:59:59 -9999",
    ],
)
def test_a_useless_value_is_no_wait(value: str) -> None:
    for name in ("retry-after", "retry-after-ms", "x-ratelimit-reset-tokens"):
        assert read_wait(429, {name: value, "date": date(0)}) is None


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("Rate limit reached: Limit 30000. Please try again in 12.5s. Visit …", 12.5),
        ("Please try again in 6m0s.", 360),
        ("try again in 20ms", 0.02),
        ("Please retry after 1 minute, 5 seconds.", 65),
        ("'details': [{'@type': '…RetryInfo', 'retryDelay': '12.25s'}]", 12.25),
        (f"'headers': {{'X-RateLimit-Reset': '{int(NOW + 9)}000'}}", 9),
        ("try again later, or in 5s", None),
        ("try again in -5s", None),
        ("try again in 0s", None),
        ("retry after nan", None),
        (" " * 10_000 + "try again in 5s", None),
    ],
)
def test_a_wait_in_the_text(text: str, wait: float | None) -> None:
    expected = None if wait is None else pytest.approx(wait, abs=0.01)
    assert read_wait(429, {"date": date(0)}, text) == expected
    assert read_wait(429, {"retry-after": "7"}, text) == 7


def test_a_huge_wait_is_bounded() -> None:
    assert read_wait(429, {"retry-after": "9" * 9 + "h"}) == MAX_WAIT_S
    assert read_wait(429, {"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}) == MAX_WAIT_S
    assert read_wait(429, {"retry-after-ms": "9" * 20}) == MAX_WAIT_S
    assert read_wait(429, {"retry-after": "10", "date": "nonsense"}) == 10


def make_call(server: ChatServer, timeout_s: float = 60) -> ModelCall:
    return ModelCall(client(server.url), [HumanMessage("hello")], timeout_s, 3, CallCount(), Cancellation())


def ask(call: ModelCall, *, is_async: bool) -> AIMessage:
    async def check_reply(work: Any) -> Any:
        return await asyncio.to_thread(work)

    return asyncio.run(call.aask(check_reply)) if is_async else call.ask()


@pytest.mark.cases(2)
@pytest.mark.parametrize("is_async", [False, True])
def test_the_wait_is_obeyed_and_shown(chat_server: ChatServer, is_async: bool) -> None:
    chat_server.refusal_headers = {"Retry-After-Ms": "1700"}
    chat_server.answer = answer_in_turn(error_answer(429, "slow down"), chat_server.reply("fine"))
    shown: list[tuple[float, str]] = []
    call = make_call(chat_server)._replace(on_wait=lambda seconds, error: shown.append((seconds, str(error))))
    assert ask(call, is_async=is_async).text == "fine"
    assert shown == [(1.7, "the endpoint answered 429: slow down")]
    first, second = chat_server.times
    assert second - first >= 1.7


@pytest.mark.parametrize("is_async", [False, True])
def test_a_wait_beyond_the_budget_ends_with_one_line(chat_server: ChatServer, is_async: bool) -> None:
    chat_server.refusal_headers = {"Retry-After": "3600"}
    chat_server.answer = lambda request: error_answer(503, "down")
    with pytest.raises(WaitTooLongError) as caught:
        ask(make_call(chat_server, timeout_s=20), is_async=is_async)
    assert len(chat_server.requests) == 1
    assert str(caught.value).startswith(
        "the endpoint answered 503: down; it asks to wait 3,600 s, but the call has "
    )
    assert (caught.value.status, caught.value.retry_after_s) == (503, 3600)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", ["cancel", "end_waits"])
def test_a_stop_ends_the_wait(chat_server: ChatServer, is_async: bool, how: str) -> None:
    chat_server.refusal_headers = {"Retry-After": "50"}
    chat_server.answer = lambda request: error_answer(429)
    call = make_call(chat_server)

    def stop(seconds: float, error: ModelError) -> None:
        end = (
            call.cancellation.cancel
            if how == "cancel"
            else lambda: setattr(call.cancellation, "ends_waits", True)
        )
        threading.Timer(0.1, end).start()

    started = time.monotonic()
    with pytest.raises(CallCancelledError) as caught:
        ask(call._replace(on_wait=stop), is_async=is_async)
    assert time.monotonic() - started < 20
    assert isinstance(caught.value, WaitEndedError) == (how == "end_waits")
    assert len(chat_server.requests) == 1


@pytest.mark.parametrize("retries", [0, 5])
def test_the_client_does_not_retry_beside_the_runtime(chat_server: ChatServer, retries: int) -> None:
    chat_server.refusal_headers = {"Retry-After-Ms": "10"}
    chat_server.answer = lambda request: error_answer(429)
    model = ChatOpenAI(model="m", base_url=chat_server.url, api_key=SecretStr("k"), max_retries=retries)
    with pytest.raises(ModelError, match="answered 429"):
        make_call(chat_server)._replace(model=model).ask()
    assert len(chat_server.requests) == 3


def test_a_wait_counts_as_a_part_of_a_try(chat_server: ChatServer) -> None:
    """Three callers whose endpoint answers one of them each second: each of them has its turn."""
    lock, answered = threading.Lock(), [0.0]

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        with lock:
            if time.monotonic() - answered[0] < 0.99:
                return error_answer(429)
            answered[0] = time.monotonic()
        return chat_server.reply("fine")

    chat_server.answer, chat_server.refusal_headers = answer, {"Retry-After": "1"}
    call = make_call(chat_server)._replace(max_attempts=2)
    with ThreadPoolExecutor(3) as pool:
        assert [each.text for each in pool.map(lambda _: call.ask(), range(3))] == ["fine"] * 3
    with pytest.raises(ModelError):
        call._replace(max_attempts=1).ask()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_within_a_stream(chat_server: ChatServer, is_async: bool) -> None:
    error = {"message": "slow down, try again in 1.2s", "type": "tokens", "code": "rate_limit_exceeded"}
    broken = b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in (chunk("a"), {"error": error}))
    whole = b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(chunk("fine", "stop")).encode()
    chat_server.answer = answer_in_turn((200, broken), (200, whole))
    model = client(chat_server.url, streaming=True)
    assert ask(make_call(chat_server)._replace(model=model), is_async=is_async).text == "fine"
    assert chat_server.times[1] - chat_server.times[0] >= 1.2


def chunk(text: str, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": text, **delta},
        "finish_reason": finish_reason,
    }
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


@pytest.mark.parametrize("is_async", [False, True])
def test_fragments_of_a_call_whose_id_changes_are_joined(chat_server: ChatServer, is_async: bool) -> None:
    parts = [("a", "shell", '{"command": "rm -rf '), ("b", None, "/tmp/x"), ("c", "", '"}')]
    chunks = [
        chunk("", tool_calls=[{"index": 0, "id": name, "function": {"name": tool, "arguments": text}}])
        for name, tool, text in parts
    ]
    stream = b"".join(
        b"data: %s\n\n" % json.dumps(each).encode() for each in (*chunks, chunk("", "tool_calls"))
    )
    chat_server.answer = lambda request: (200, stream + b"data: [DONE]\n\n")
    call = make_call(chat_server)._replace(model=client(chat_server.url, streaming=True))
    reply = ask(call, is_async=is_async)
    assert [(each["id"], each["args"]) for each in reply.tool_calls] == [("a", {"command": "rm -rf /tmp/x"})]
    assert not reply.invalid_tool_calls


@pytest.mark.parametrize(
    "error",
    [
        {"message": "no credit", "type": "insufficient_quota", "code": None},
        {"message": "no credit", "type": "exceeded_current_quota_error"},
        {"message": "RateLimitError: insufficient_quota", "code": "429"},
    ],
)
def test_a_lack_of_credit_is_not_waited_for(chat_server: ChatServer, error: dict[str, Any]) -> None:
    chat_server.refusal_headers = {"Retry-After": "1"}
    chat_server.answer = lambda request: (429, json.dumps({"error": error}).encode())
    with pytest.raises(PermanentModelError):
        make_call(chat_server).ask()
    assert len(chat_server.requests) == 1


class OtherClient(BaseChatModel):
    """A client of another library: its errors have an HTTP answer, or were raised from one that has."""

    url: str
    wrap: Callable[[httpx.HTTPStatusError], Exception] = lambda error: error

    @property
    def _llm_type(self) -> str:
        return "other"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        answer = httpx.post(f"{self.url}/chat/completions", json={})
        try:
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            raise self.wrap(error) from error
        return ChatResult(generations=[ChatGeneration(message=AIMessage("fine"))])


class BotoError(Exception):
    """Has its answer as botocore's errors do."""

    def __init__(self, error: httpx.HTTPStatusError) -> None:
        super().__init__("throttled")
        headers = dict(error.response.headers)
        metadata = {"HTTPStatusCode": error.response.status_code, "HTTPHeaders": headers}
        self.response = {"ResponseMetadata": metadata}


@pytest.mark.cases(3)
@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: KeyError("wrapped"), BotoError])
def test_another_client_waits_too(chat_server: ChatServer, wrap: Any) -> None:
    chat_server.refusal_headers = {"Retry-After-Ms": "600"}
    chat_server.answer = answer_in_turn(error_answer(429), chat_server.reply(""))
    call = make_call(chat_server)._replace(model=OtherClient(url=chat_server.url, wrap=wrap))
    assert call.ask().text == "fine"
    assert chat_server.times[1] - chat_server.times[0] >= 0.6


def test_another_client_without_a_connection() -> None:
    model = OtherClient(url="http://127.0.0.1:9")
    with pytest.raises(ModelError, match="the endpoint could not be reached"):
        ModelCall(model, [HumanMessage("hello")], 60, 1, CallCount(), Cancellation()).ask()


def test_a_call_that_nothing_stops_waits_for_a_limited_time(chat_server: ChatServer) -> None:
    chat_server.refusal_headers = {"Retry-After": "1"}
    chat_server.answer = lambda request: error_answer(429, "slow down")
    schema = {"title": "notes", "type": "object", "properties": {}}
    with pytest.raises(WaitTooLongError, match="it asks to wait 1 s"):
        ask_with_schema(
            client(chat_server.url), [HumanMessage("hello")], schema, timeout_s=600, max_wait_s=1.5
        )
    assert len(chat_server.requests) == 2


def test_a_schema_call_waits_too(chat_server: ChatServer) -> None:
    chat_server.refusal_headers = {"Retry-After-Ms": "100"}
    chat_server.answer = answer_in_turn(error_answer(429), chat_server.reply("{}"))
    schema = {"title": "notes", "type": "object", "properties": {}}
    ask_with_schema(client(chat_server.url), [HumanMessage("hello")], schema, timeout_s=20)
    assert ["response_format" in each for each in chat_server.requests] == [True, True]

"""Awaited calls of OpenAI's client have the limits of synchronous ones."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx2
import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_takeover.nodes.model.calls import CallCount, ModelCall
from langgraph_takeover.nodes.model.deadlines import CallCancelledError, Cancellation
from langgraph_takeover.nodes.model.model_errors import ModelError, ReplyTimeoutError, ReplyTooLargeError

from .test_calls import KEY, client, completion, serve


def ask(
    url: str, *, timeout_s: float = 20, cancellation: Cancellation | None = None, **settings: Any
) -> AIMessage:
    """Await one call, with up to two attempts."""
    call = ModelCall(
        client(url, **settings),
        [HumanMessage("hello")],
        timeout_s,
        2,
        CallCount(),
        cancellation or Cancellation(),
    )

    async def check_reply(work: Any) -> Any:
        return await asyncio.to_thread(work)

    return asyncio.run(call.aask(check_reply))


def test_a_reply_arrives_without_the_key() -> None:
    with serve(completion({"content": f"the key is {KEY}"})) as endpoint:
        reply = ask(endpoint.url)
    assert KEY not in reply.text
    assert reply.text.startswith("the key is ")


def test_an_oversized_reply_is_refused_while_it_is_read() -> None:
    with (
        serve(completion({"content": "x" * 5 * 1024**2})) as endpoint,
        pytest.raises(ReplyTooLargeError, match="4 MiB"),
    ):
        ask(endpoint.url)
    assert len(endpoint.requests) == 1, "a refused reply was asked for again"


def test_a_redirect_is_not_followed() -> None:
    with (
        serve(completion({"content": "secret"})) as inside,
        serve(b"", 302, Location=f"{inside.url}/chat/completions") as endpoint,
        pytest.raises(ModelError),
    ):
        ask(endpoint.url)
    assert inside.requests == []


def test_a_reply_that_never_ends_ends_at_the_deadline() -> None:
    started = time.monotonic()
    with serve(b"", drip=b" ") as endpoint, pytest.raises(ReplyTimeoutError):
        ask(endpoint.url, timeout_s=0.5)
    assert time.monotonic() - started < 20


def test_a_failed_attempt_is_repeated() -> None:
    with serve(b"{}", 503) as endpoint, pytest.raises(ModelError):
        ask(endpoint.url)
    assert len(endpoint.requests) == 2, "the client retried, too"


def test_a_cancelled_call_sends_nothing_more() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with serve(completion({"content": "late"})) as endpoint, pytest.raises(CallCancelledError):
        ask(endpoint.url, cancellation=cancellation)


def test_a_synchronous_http_client_of_the_user_stays_in_use() -> None:
    seen: list[str] = []

    class Recording(httpx2.Client):
        def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:
            seen.append(str(request.url))
            return super().send(request, **settings)

    with serve(completion({"content": "ok"})) as endpoint, Recording() as own:
        assert ask(endpoint.url, http_client=own).text == "ok"
    assert len(seen) == 1

"""Transient failures of an endpoint are retried; usage and cost are counted and limited."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langgraph_takeover import open_home
from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.context.settings import Prices
from langgraph_takeover.nodes.model.calls import CallCount, ModelCall
from langgraph_takeover.nodes.model.deadlines import Cancellation
from langgraph_takeover.nodes.model.model_errors import (
    ContextWindowError,
    ModelError,
    PermanentModelError,
    ReplyTimeoutError,
)
from langgraph_takeover.nodes.state_events import load_events

from ..chat_server import ChatServer
from ..graph.conftest import RunHarness
from .model.test_calls import serve

Answer = tuple[int, bytes]
LOOK = "```bash\nls\n```"


def client(url: str, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=url, api_key=SecretStr("k"), max_retries=0, **settings)


def error_answer(status: int, message: str = "try again", code: str | None = None) -> Answer:
    return status, json.dumps({"error": {"message": message, "code": code}}).encode()


def answer_in_turn(*answers: Answer) -> Callable[[dict[str, Any]], Answer]:
    remaining = iter(answers)
    return lambda request: next(remaining)


def ask_server(server: ChatServer, *, tries: int = 3, timeout_s: float = 60.0) -> AIMessage:
    return ask(server.url, tries, timeout_s)


def ask(url: str, tries: int, timeout_s: float) -> AIMessage:
    messages: list[BaseMessage] = [HumanMessage("hello")]
    return ModelCall(client(url), messages, timeout_s, tries, CallCount(), Cancellation()).ask()


@pytest.mark.cases(3)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_transient_failures_are_retried(chat_server: ChatServer, status: int) -> None:
    chat_server.answer = answer_in_turn(error_answer(status), chat_server.reply("fine"))
    assert ask_server(chat_server).text == "fine"
    assert len(chat_server.requests) == 2
    assert chat_server.requests[0] == chat_server.requests[1]


@pytest.mark.cases(3)
@pytest.mark.parametrize("tries", [1, 2, 3])
def test_the_number_of_attempts_is_limited(chat_server: ChatServer, tries: int) -> None:
    chat_server.answer = lambda request: error_answer(503, "loading")
    with pytest.raises(ModelError, match=r"^the endpoint answered 503: loading$"):
        ask_server(chat_server, tries=tries)
    assert len(chat_server.requests) == tries


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, None), (401, "invalid_api_key"), (403, None), (404, None), (429, "insufficient_quota")],
)
def test_permanent_failures_are_not_retried(chat_server: ChatServer, status: int, code: str | None) -> None:
    chat_server.answer = lambda request: error_answer(status, "no", code)
    with pytest.raises(PermanentModelError, match=f"^the endpoint answered {status}: no$"):
        ask_server(chat_server)
    assert len(chat_server.requests) == 1


def test_an_overflow_is_not_retried(chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: error_answer(400, "too long", "context_length_exceeded")
    with pytest.raises(ContextWindowError):
        ask_server(chat_server)
    assert len(chat_server.requests) == 1


def test_a_slow_body_ends_at_the_deadline_of_all_attempts() -> None:
    with serve(b"", drip=b" ") as endpoint:
        with pytest.raises(ReplyTimeoutError, match=r"^no complete reply within "):
            ask(endpoint.url, 3, 0.5)
        assert len(endpoint.requests) == 1


def test_no_pause_outlasts_the_deadline(chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: error_answer(503, "loading")
    with pytest.raises(ModelError, match="loading"):
        ask_server(chat_server, tries=1_000, timeout_s=2.0)
    assert 1 < len(chat_server.requests) < 10


@pytest.mark.slow
def test_a_truncated_reply_is_retried(chat_server: ChatServer) -> None:
    truncated, whole = chat_server.cut_reply("ls -"), chat_server.reply("whole")
    chat_server.answer = answer_in_turn(truncated, truncated, whole)
    assert ask_server(chat_server).text == "whole"
    chat_server.answer = lambda request: truncated
    with pytest.raises(ModelError, match=r"^the endpoint's answer is not JSON: "):
        ask_server(chat_server)


# Costs and budgets


def reply_with_usage(text: str, prompt: int, cached: int, completion: int) -> Answer:
    status, body = ChatServer.reply(text)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return status, json.dumps(json.loads(body) | {"usage": usage}).encode()


def test_cached_tokens_have_their_own_price() -> None:
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=100_000)
    assert Prices(prompt=2, completion=10, cached=0.5).compute_cost(usage) == pytest.approx(1.2 + 0.2 + 1.0)
    assert Prices(prompt=2, completion=10, cached=0).compute_cost(usage) == pytest.approx(1.2 + 1.0)
    assert Prices(prompt=2, completion=10).compute_cost(usage) == pytest.approx(2.0 + 1.0)
    assert Prices(prompt=2, completion=10).compute_cost(Usage()) == 0


def test_a_run_adds_up_its_cost(bench: RunHarness, chat_server: ChatServer) -> None:
    chat_server.answer = answer_in_turn(
        reply_with_usage(LOOK, 1_000, 0, 10),
        reply_with_usage(LOOK, 1_100, 1_000, 20),
        reply_with_usage("<finish></finish>", 1_200, 1_100, 5),
    )
    prices = Prices(prompt=10, completion=100, cached=1)
    state = bench.run(client(chat_server.url), prices=prices)
    assert (state["spent"]["prompt_tokens"], state["spent"]["completion_tokens"]) == (3_300, 35)
    assert state["spent"]["cost"] == pytest.approx((1_200 * 10 + 2_100 * 1 + 35 * 100) / 1e6)


def test_missing_usage_is_marked_as_estimated(bench: RunHarness, chat_server: ChatServer) -> None:
    def reply_without_usage(text: str) -> Answer:
        status, body = chat_server.reply(text)
        return status, json.dumps(json.loads(body) | {"usage": None}).encode()

    chat_server.answer = answer_in_turn(
        reply_without_usage(LOOK), chat_server.reply("<finish></finish>", prompt_tokens=7)
    )
    state = bench.run(client(chat_server.url))
    first, last = (load_events(state)[index].usage for index in (0, 2))
    assert first is not None
    assert last is not None
    characters = sum(len(message.text) for message in state["messages"][:2])
    assert first.estimated
    assert first.prompt_tokens == -(-characters // 4)
    assert (last.estimated, last.prompt_tokens) == (False, 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cap", "reason", "calls"),
    [
        ({"max_steps": 2}, "max_steps", 2),
        ({"max_events": 4}, "max_events", 2),
        ({"max_tokens": 250}, "max_tokens", 3),
        ({"max_cost": 0.0025, "prices": Prices(prompt=10, completion=1)}, "max_cost", 3),
        ({"max_seconds": 0.5}, "max_seconds", None),
    ],
)
@pytest.mark.parametrize("asked_for", [True, False])
def test_each_budget_stops_the_run_and_hands_over_if_requested(
    bench: RunHarness,
    chat_server: ChatServer,
    cap: dict[str, Any],
    reason: str,
    calls: int | None,
    asked_for: bool,
) -> None:
    chat_server.answer = lambda request: chat_server.reply("```bash\nsleep 0.2\n```", prompt_tokens=100)
    state = bench.run(client(chat_server.url), points=("requested",) if asked_for else (), **cap)
    assert state["stop_reason"] == reason
    made = len(chat_server.requests)
    assert made == calls or calls is None
    if not asked_for:
        assert bench.store.list_ids() == ()
        return
    (name,) = state["records"]
    record = bench.store.load(name)
    assert (record.point.kind, record.point.detail) == ("requested", f"{reason} after {state['steps']} steps")
    assert len(record.trace) == len(state["events"])
    # The successor has a budget of its own.
    chat_server.answer = lambda request: chat_server.reply("<finish>Done.</finish>")
    done = bench.take_over(client(chat_server.url), "trace", name)
    assert (done["stop_reason"], done["steps"]) == ("finished", 1)
    # So has a resumed run after its cap is raised.
    more = {name: 1_000 for name in cap if name != "prices"} | {n: v for n, v in cap.items() if n == "prices"}
    assert bench.resume(client(chat_server.url), **more).stop_reason == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("usage", [(-99_999_999_999, 0, 10), (10, 10**12, -5), (0, 0, 0)])
def test_no_reported_usage_defeats_a_budget(
    bench: RunHarness, chat_server: ChatServer, usage: tuple[int, int, int]
) -> None:
    chat_server.answer = lambda request: reply_with_usage(LOOK, *usage)
    settings: dict[str, Any] = {"prices": Prices(prompt=10, completion=100, cached=1), "max_steps": 20}
    for thread, cap in (("tokens", {"max_tokens": 5_000}), ("cost", {"max_cost": 0.05})):
        state = bench.run(client(chat_server.url), thread=thread, run_id=thread, **settings, **cap)
        assert state["stop_reason"] == next(iter(cap))
        assert state["steps"] < 20
        assert all(spent >= 0 for spent in state["spent"].values())
        assert load_events(state)[0].usage.estimated  # type: ignore[union-attr]


def test_a_run_can_resume_after_its_endpoint_failed(bench: RunHarness, chat_server: ChatServer) -> None:
    chat_server.answer = answer_in_turn(chat_server.reply(LOOK), error_answer(401, "expired"))
    with pytest.raises(PermanentModelError, match="expired"):
        bench.run(client(chat_server.url))
    chat_server.answer = answer_in_turn(error_answer(500), chat_server.reply("<finish></finish>"))
    done = bench.resume(client(chat_server.url))
    assert (done.stop_reason, done.steps) == ("finished", 2)


# Calls that the endpoint did not count


@pytest.mark.slow
def test_failed_attempts_that_may_be_billed_are_counted(bench: RunHarness, chat_server: ChatServer) -> None:
    chat_server.answer = answer_in_turn(
        error_answer(429),  # refused: not billed
        chat_server.cut_reply("half a rep"),
        (200, b"no JSON"),
        chat_server.reply(LOOK),
        chat_server.reply(LOOK, prompt_tokens=None),
        chat_server.reply("<finish></finish>"),
    )
    outcome = bench.run_to_outcome(client(chat_server.url), model_tries=4)
    assert outcome.stop_reason == "finished"
    assert outcome.uncounted_calls == 3  # two attempts, and a reply without usage
    assert outcome.prompt_tokens > 200  # the budgets use estimates


def run_until_killed(bench: RunHarness, server: ChatServer, *replies: Answer, is_first: bool = True) -> None:
    """Start or resume a run in another process, which SIGKILL ends in its call after these replies."""
    remaining, child = list(replies), 0

    def answer_or_kill(request: dict[str, Any]) -> Answer:
        if remaining:
            return remaining.pop(0)
        while not child:
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        return error_answer(500)

    server.answer = answer_or_kill
    child = os.fork()
    if child == 0:
        try:
            # Open a new home, because forked processes cannot share connections.
            with open_home(bench.home.directory, bench.home.ledger.url) as bench.home:
                (bench.run if is_first else bench.resume)(client(server.url))
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("before", "expected"),
    [([], 1), ([LOOK], 1), ([LOOK, "half a rep"], 2)],
    ids=["first call", "second call", "second attempt"],
)
def test_a_call_in_flight_at_a_kill_is_uncounted(
    bench: RunHarness, chat_server: ChatServer, before: list[str], expected: int
) -> None:
    replies = [chat_server.cut_reply(text) if "half" in text else chat_server.reply(text) for text in before]
    run_until_killed(bench, chat_server, *replies)
    chat_server.answer = answer_in_turn(chat_server.reply(LOOK), chat_server.reply("<finish></finish>"))
    outcome = bench.resume(client(chat_server.url))
    assert (outcome.stop_reason, outcome.uncounted_calls) == ("finished", expected)


class PersonWithServer(ChatOpenAI):
    is_llm: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("settings", "make", "stop_reason"),
    [
        ({"max_steps": 1}, client, "max_steps"),
        ({}, lambda url: PersonWithServer(model="m", base_url=url, api_key=SecretStr("k")), "finished"),
    ],
    ids=["spent budget", "no LLM"],
)
def test_a_lost_call_counts_without_a_further_call(
    bench: RunHarness,
    chat_server: ChatServer,
    settings: dict[str, Any],
    make: Callable[[str], ChatOpenAI],
    stop_reason: str,
) -> None:
    run_until_killed(bench, chat_server, chat_server.reply(LOOK))
    chat_server.answer = lambda request: chat_server.reply("<finish></finish>")
    outcome = bench.resume(make(chat_server.url), **settings)
    assert (outcome.stop_reason, outcome.uncounted_calls) == (stop_reason, 1)
    chat_server.answer = lambda request: chat_server.reply("<finish></finish>")
    assert bench.resume(client(chat_server.url), max_steps=9).uncounted_calls == 1


def test_calls_lost_in_several_sessions_are_counted_once_each(
    bench: RunHarness, chat_server: ChatServer
) -> None:
    run_until_killed(bench, chat_server)
    run_until_killed(bench, chat_server, is_first=False)
    half = chat_server.cut_reply("half a rep")
    chat_server.answer = answer_in_turn(half, error_answer(401, "expired"))
    with pytest.raises(PermanentModelError, match="expired"):
        bench.resume(client(chat_server.url))
    chat_server.answer = answer_in_turn(chat_server.reply(LOOK), error_answer(401, "expired"))
    with pytest.raises(PermanentModelError, match="expired"):
        bench.resume(client(chat_server.url))
    chat_server.answer = lambda request: chat_server.reply("<finish></finish>")
    assert bench.resume(client(chat_server.url)).uncounted_calls == 3


def test_counted_calls_leave_nothing_uncounted(bench: RunHarness, chat_server: ChatServer) -> None:
    chat_server.answer = answer_in_turn(error_answer(503), chat_server.reply("<finish></finish>"))
    assert bench.run_to_outcome(client(chat_server.url)).uncounted_calls == 0


def test_a_call_that_ended_with_the_agent_s_time_is_uncounted(
    bench: RunHarness, chat_server: ChatServer
) -> None:
    def late(request: dict[str, Any]) -> Answer:
        time.sleep(1.5)
        return chat_server.reply(LOOK)

    chat_server.answer = late
    outcome = bench.run_to_outcome(client(chat_server.url), max_seconds=1.0)
    assert (outcome.stop_reason, outcome.uncounted_calls) == ("max_seconds", 1)


def test_a_billed_attempt_before_an_overflow_is_uncounted(bench: RunHarness, chat_server: ChatServer) -> None:
    overflow = 400, b'{"error": {"message": "maximum context length is 6250 tokens"}}'
    chat_server.answer = answer_in_turn(
        chat_server.reply(LOOK), chat_server.cut_reply("half a rep"), overflow
    )
    outcome = bench.run_to_outcome(client(chat_server.url))
    assert (outcome.stop_reason, outcome.uncounted_calls) == ("context_overflow", 1)

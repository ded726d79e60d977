"""`condense`: long conversations lose their oldest observations, in both protocols and across a resume."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langgraph_takeover import Agent, open_run
from langgraph_takeover.errors import ModelError, SettingsError
from langgraph_takeover.nodes.model.window import KEPT_STEPS

from ..chat_server import ChatServer
from .conftest import RunHarness, scripted_model

COMMAND = "python3 -c \"print('x' * 6000)\"; echo {}"
STEPS = 9
WINDOW = 9_000


class LongWorker:
    """A model that prints 6,000 characters a step, and whose server counts four characters per token."""

    def __init__(self, protocol: str, fail_at: int | None = None) -> None:
        self.protocol, self.fail_at = protocol, fail_at

    def __call__(self, request: dict[str, Any]) -> tuple[int, bytes]:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        if turn == self.fail_at:
            return 401, b'{"error": {"message": "expired"}}'
        tokens = sum(len(str(message.get("content"))) for message in request["messages"]) // 4
        if self.protocol == "text":
            text = "<finish></finish>" if turn == STEPS else f"```bash\n{COMMAND.format(turn)}\n```"
            return ChatServer.reply(text, prompt_tokens=tokens)
        name, arguments = ("finish", {}) if turn == STEPS else ("shell", {"command": COMMAND.format(turn)})
        status, content = ChatServer.reply("", "tool_calls", tokens)
        body = json.loads(content)
        call = {"id": f"c{turn}", "type": "function"}
        call["function"] = {"name": name, "arguments": json.dumps(arguments)}  # type: ignore[assignment]
        body["choices"][0]["message"]["tool_calls"] = [call]
        return status, json.dumps(body).encode()


def client(url: str) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=url, api_key=SecretStr("k"), max_retries=0)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["text", pytest.param("native", marks=pytest.mark.slow)])
def test_a_long_run_is_condensed_and_a_resumed_one_sends_the_same(
    bench: RunHarness, chat_server: ChatServer, protocol: Any
) -> None:
    settings: dict[str, Any] = {"protocol": protocol, "condense": True, "window_tokens": WINDOW}
    chat_server.answer = LongWorker(protocol)
    outcome = bench.run_to_outcome(client(chat_server.url), **settings)
    assert outcome.stop_reason == "finished"
    sent = [request["messages"] for request in chat_server.requests]
    left_out = [sum("was left out" in str(message["content"]) for message in each) for each in sent]
    assert left_out == sorted(left_out)
    assert 1 < len(set(left_out)) <= 1 + STEPS // 2  # not condensed at every step
    assert outcome.state["condensed"] == left_out[-1] > KEPT_STEPS
    for messages in sent:
        assert messages[:2] == sent[0]
        assert sum(len(str(message["content"])) for message in messages) / 4 < 0.81 * WINDOW
        answers = [message for message in messages if message["role"] in ("tool", "user")][1:]
        assert all("xxx" in message["content"] for message in answers[-KEPT_STEPS:])
        if protocol == "native":
            called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
            assert [message["tool_call_id"] for message in answers] == called
        else:
            assert [message["role"] for message in messages[1:]] == ["user", "assistant"] * (
                len(messages) // 2 - 1
            ) + ["user"]
    # The record of the run stays complete.
    shown = [event.text for event in outcome.events if event.kind == "observation"]
    assert all("xxx" in text for text in shown)

    chat_server.requests.clear()
    chat_server.answer = LongWorker(protocol, fail_at=STEPS - 2)
    with pytest.raises(ModelError, match="expired"):
        bench.run(client(chat_server.url), thread="other", run_id="other", **settings)
    del chat_server.requests[-1]
    chat_server.answer = LongWorker(protocol)
    resumed = bench.resume(client(chat_server.url), thread="other", **settings)
    assert resumed.state["condensed"] == outcome.state["condensed"]
    assert [request["messages"] for request in chat_server.requests] == sent


def test_an_overflow_that_the_estimate_missed_is_condensed_once(
    bench: RunHarness, chat_server: ChatServer
) -> None:
    worker = LongWorker("text")

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        if sum(len(message["content"]) for message in request["messages"]) > 25_000:
            return 400, b'{"error": {"message": "maximum context length is 6250 tokens", "code": null}}'
        return worker(request)

    chat_server.answer = answer
    outcome = bench.run_to_outcome(
        client(chat_server.url), condense=True, window_tokens=100_000, snapshot_every="never"
    )
    assert outcome.stop_reason == "finished"
    assert outcome.state["condensed"] > 0
    stopped = bench.run_to_outcome(
        client(chat_server.url), thread="2", run_id="2", window_tokens=100_000, snapshot_every="never"
    )
    assert stopped.stop_reason == "context_overflow"
    assert "condensed" not in stopped.state


def test_a_known_window_stops_a_run_before_its_prompt_is_sent(
    bench: RunHarness, chat_server: ChatServer
) -> None:
    """A server that cuts long prompts silently would answer."""
    chat_server.answer = LongWorker("text")
    outcome = bench.run_to_outcome(client(chat_server.url), window_tokens=WINDOW, snapshot_every="never")
    assert outcome.stop_reason == "context_overflow"
    largest = max(sum(len(message["content"]) for message in r["messages"]) for r in chat_server.requests)
    assert largest / 4 < WINDOW


def test_condensing_needs_a_window_and_one_agent(bench: RunHarness) -> None:
    model = scripted_model()
    with pytest.raises(
        SettingsError, match=r"condense needs the model's context window \(pass window_tokens"
    ):
        bench.run(model, condense=True)
    with (
        pytest.raises(SettingsError, match="condense: not for a team"),
        open_run(
            bench.home,
            "team",
            agents=[Agent(name="a", model=model)],
            sandbox=bench.spec,
            condense=True,
            window_tokens=5000,
        ),
    ):
        pass

"""The real command lines of external agents accept our replies."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from pydantic import SecretStr

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.adapter import AgentAdapter
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.nodes.external.apis import HttpReply, ModelRequest, write_error, write_reply
from langgraph_takeover.nodes.external.bridge import Bridge, RequestKind
from langgraph_takeover.nodes.external.http import HeldRequest
from langgraph_takeover.nodes.external.pass_through import VendorModel
from langgraph_takeover.nodes.model.calls import CallCount, ModelCall
from langgraph_takeover.nodes.model.deadlines import Cancellation
from langgraph_takeover.testing.agents.agent_programs import AgentKit, AgentRun

from ...agent_programs import find_test_program

pytestmark = pytest.mark.slow
_WAIT_S = 120
_TASK = "Create the file a.txt, then check it."
_WORKSPACE = "/testbed"


class Run:
    """What a run of an agent left."""

    def __init__(
        self, code: int, output: str, requests: list[ModelRequest], bridge: Bridge, workspace: Path
    ) -> None:
        self.code, self.output, self.requests, self.bridge = code, output, requests, bridge
        self.workspace = workspace

    def results(self) -> dict[str, str]:
        """The results of all calls, as the last request shows them."""
        messages = self.requests[-1].messages
        return {each.tool_call_id: each.text for each in messages if isinstance(each, ToolMessage)}


Answer = AIMessage | Callable[[HeldRequest], HttpReply]


def classify(request: ModelRequest, headers: Mapping[str, str]) -> RequestKind:
    return "main" if request.tools else "aside"


def run_agent(
    agent: AgentAdapter,
    path: Path,
    answers: list[Answer],
    model: str = "scripted-model",
    *,
    passes_on: bool = False,
) -> Run:
    """Run an agent to its end, with a reply for each of its requests."""
    kit = AgentKit(agent, find_test_program(agent).host_argv, path)
    listener = socket.create_server(("127.0.0.1", 0))
    launch = kit.launch(listener.getsockname()[1], _TASK).model_copy(update={"model": model})
    requests: list[ModelRequest] = []
    bridge = Bridge(
        listener,
        api=agent.api,
        classify=classify,
        is_expected=lambda request: True,
        answer_side=lambda request, count: AIMessage("A title"),
        model_name=model,
        passes_on=passes_on,
    )
    with bridge, kit.start(launch) as process:
        for answer in answers:
            requests.append(answer_next(bridge, process, answer))
        code = process.wait(_WAIT_S)
    return Run(code, process.stdout + process.stderr, requests, bridge, kit.workspace)


def answer_next(bridge: Bridge, process: AgentRun, answer: Answer) -> ModelRequest:
    ends_at = time.monotonic() + _WAIT_S
    while (held := bridge.wait(0.5)) is None:
        if not process.is_running:
            pytest.fail(f"the agent ended: {process.stdout} {process.stderr} {bridge.refused}")
        assert time.monotonic() < ends_at, f"no request within {_WAIT_S} s"
    reply = write_reply(held.request, answer) if isinstance(answer, AIMessage) else answer(held)
    assert held.reply(reply)
    return held.request


def call(agent: AgentAdapter, number: int, action: str | Action) -> dict[str, object]:
    own = agent.write_call(
        Action("shell", {"command": action}) if isinstance(action, str) else action, _WORKSPACE
    )
    assert own is not None
    return {"name": own.name, "args": dict(own.arguments), "id": f"call_{number}", "type": "tool_call"}


def reply(text: str, *calls: dict[str, object]) -> AIMessage:
    usage = {
        "input_tokens": 1_000,
        "output_tokens": 20,
        "total_tokens": 1_020,
        "input_token_details": {"cache_read": 600},
    }
    return AIMessage(text, tool_calls=list(calls), usage_metadata=usage)


def finish(agent: AgentAdapter) -> AIMessage:
    end = Action("finish", {})
    calls = [call(agent, 9, end)] if agent.write_call(end, _WORKSPACE) else []
    return reply("All done.", *calls)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("agent", ADAPTERS.values(), ids=ADAPTERS)
def test_text_and_calls_one_by_one_and_in_parallel(agent: AgentAdapter, tmp_path: Path) -> None:
    run = run_agent(
        agent,
        tmp_path,
        [
            reply("I create the file.", call(agent, 1, "echo alpha > a.txt; echo made")),
            reply("", call(agent, 2, "cat a.txt")),
            reply("Two at once.", call(agent, 3, "echo third"), call(agent, 4, "echo fourth")),
            finish(agent),
        ],
    )
    assert run.code == 0, run.output
    assert (run.workspace / "a.txt").read_text() == "alpha\n"
    results = run.results()
    assert list(results) == ["call_1", "call_2", "call_3", "call_4"]
    for number, text in enumerate(("made", "alpha", "third", "fourth"), start=1):
        assert text in results[f"call_{number}"]
    # Qwen Code begins every conversation with an exchange of its own.
    replies = [message for message in run.requests[-1].messages if isinstance(message, AIMessage)][-3:]
    assert [message.text for message in replies] == ["I create the file.", "", "Two at once."]
    assert [len(message.tool_calls) for message in replies] == [1, 1, 2]
    assert run.requests[-1].messages[0].type == "system"
    assert call(agent, 1, "ls")["name"] in [tool["function"]["name"] for tool in run.requests[0].tools]
    assert run.bridge.refused.keys() <= {"lost connections", "path"}


@pytest.mark.parametrize("agent", ADAPTERS.values(), ids=ADAPTERS)
def test_an_error_reply_reaches_the_user(agent: AgentAdapter, tmp_path: Path) -> None:
    def refuse(held: HeldRequest) -> HttpReply:
        return write_error(held.request.api, 400, "the endpoint refused this request: code-4711")

    run = run_agent(agent, tmp_path, [refuse])
    assert "code-4711" in run.output
    # Qwen Code 0.15 reports the error and ends as after a success.
    assert run.code in ((0, 1) if agent.name == "qwen-code" else (1,))


@pytest.mark.parametrize("name", ["codex", "claude-code", "qwen-code"])
def test_an_agent_works_through_its_vendors_endpoint(name: str, tmp_path: Path) -> None:
    """The endpoint is a second bridge: it holds the requests that the first one passes on."""
    agent = ADAPTERS[name]
    listener = socket.create_server(("127.0.0.1", 0))
    vendor = Bridge(
        listener,
        api=agent.api,
        classify=lambda request, headers: "main",
        is_expected=lambda request: True,
        answer_side=lambda request, count: AIMessage("unused"),
    )
    model = VendorModel(
        api=agent.api,
        base_url=f"http://127.0.0.1:{listener.getsockname()[1]}",
        api_key=SecretStr("key-of-the-runtime"),
    )
    sent: list[bytes] = []

    def pass_on(held: HeldRequest, answer: AIMessage) -> HttpReply:
        def serve() -> bytes:
            received = vendor.wait(30)
            assert received is not None
            assert received.request.wire is not None
            vendor_reply = write_reply(received.request, answer)
            sent.append(vendor_reply.body)
            assert received.reply(vendor_reply)
            return received.request.wire.body

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            wire = held.request.wire
            assert wire is not None
            assert json.loads(wire.body) == held.request.body  # the run drops nothing that the agent needs
            bound = model.bind(wire=wire)
            message = ModelCall(bound, held.request.messages, 30, 1, CallCount(), Cancellation()).ask()
            assert served.result() == wire.body
        assert [call["id"] for call in message.tool_calls] == [call["id"] for call in answer.tool_calls]
        delivered = write_reply(held.request, message)
        assert delivered.body == sent[-1]
        return delivered

    answers = [reply("I create the file.", call(agent, 1, "echo alpha > a.txt")), finish(agent)]
    with vendor:
        passing = [partial(pass_on, answer=answer) for answer in answers]
        run = run_agent(agent, tmp_path, passing, passes_on=True)
    assert run.code == 0, run.output
    assert (run.workspace / "a.txt").read_text() == "alpha\n"
    assert vendor.refused == {}
    assert run.bridge.refused == {}


def test_codex_applies_a_custom_call(tmp_path: Path) -> None:
    agent = ADAPTERS["codex"]
    patch = "*** Begin Patch\n*** Add File: b.txt\n+beta\n*** End Patch"
    custom = {"name": "apply_patch", "args": {"input": patch}, "id": "call_1", "type": "tool_call"}
    run = run_agent(agent, tmp_path, [reply("", custom), finish(agent)], model="gpt-5.5")
    assert run.code == 0, run.output
    assert "apply_patch" in run.requests[0].custom_tools
    assert (run.workspace / "b.txt").read_text() == "beta\n"
    assert "Success" in run.results()["call_1"]
    last = run.requests[-1].messages[-2]
    assert isinstance(last, AIMessage)
    assert last.tool_calls[0]["args"] == {"input": patch}

"""Reasoning, signatures and content blocks of a reply survive, or are dropped where they would make a request invalid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from langgraph_takeover import RunStatus, resume, take_over
from langgraph_takeover.base.secret_names import REDACTED
from langgraph_takeover.nodes.agent.step_edits import align_step_edit
from langgraph_takeover.nodes.model.message_content import CLIENT, adapt_messages
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.state_events import RESULT_OF, TOOL

from ...chat_server import ChatServer
from ...graph.conftest import DONE, RunHarness, Scripted, parse_events, scripted_model

SECRET = "hunter-2-hunter-2"
THINKING = {"type": "thinking", "thinking": "The user wants a listing.", "signature": "EqQBCkYIBxgC"}
"""As Anthropic's client stores a block of extended thinking."""
HIDDEN = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": {"command": "ls"}}
CITED = {
    "type": "text",
    "text": "I list the files.",
    "citations": [{"type": "char_location", "cited_text": "ls", "document_index": 0}],
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


class OtherClient(Scripted):
    """A client of another provider."""


def claude_reply(*blocks: Any, command: str = "ls") -> AIMessage:
    call = {"name": "shell", "args": {"command": command}, "id": "toolu_1", "type": "tool_call"}
    metadata = {"model_provider": "anthropic", "stop_reason": "tool_use"}
    return AIMessage(list(blocks), tool_calls=[call], response_metadata=metadata)  # type: ignore[list-item]


def claude_finish() -> AIMessage:
    call = {"name": "finish", "args": {"message": "Done."}, "id": "toolu_2", "type": "tool_call"}
    return AIMessage([THINKING], tool_calls=[call])  # type: ignore[list-item]


BLOCKS = [THINKING, HIDDEN, CITED, IMAGE, TOOL_USE]


def test_blocks_are_sent_back_unchanged(bench: RunHarness) -> None:
    model = scripted_model(claude_reply(*BLOCKS), claude_finish())
    state = bench.run(model, protocol="native")
    sent = model.seen[1][-2]
    assert isinstance(sent, AIMessage)
    assert sent.content == BLOCKS
    assert bench.load_state().values["messages"][2].content == BLOCKS
    assert parse_events(state)[0].text.startswith("I list the files.")
    assert "EqQB" not in json.dumps(state["events"])


def test_they_survive_a_resume_in_the_same_client(bench: RunHarness) -> None:
    model = scripted_model(claude_reply(*BLOCKS), claude_finish())
    bench.run(model, protocol="native", max_steps=1)
    bench.resume(model, protocol="native", max_steps=2)
    assert model.seen[-1][-2].content == BLOCKS


def test_another_client_gets_their_text(bench: RunHarness) -> None:
    bench.run(scripted_model(claude_reply(*BLOCKS), claude_finish()), protocol="native", max_steps=1)
    other = OtherClient(replies=["", claude_finish()], seen=[], tools=[])
    assert bench.resume(other, protocol="native", max_steps=2).status is RunStatus.FINISHED
    reply, answer = other.seen[-1][-2:]
    assert isinstance(reply, AIMessage)
    assert isinstance(answer, ToolMessage)
    assert reply.content == "I list the files."
    assert [each["id"] for each in reply.tool_calls] == ["toolu_1"] == [answer.tool_call_id]


@pytest.mark.parametrize("view", ["trace", "transcript", "continuation"])
def test_a_successor_gets_their_text(bench: RunHarness, view: Any) -> None:
    edit = "sed -i 's/n + 1/n * 2/' pkg/core.py"
    predecessor = scripted_model(claude_reply(THINKING, CITED, command=edit), claude_finish())
    bench.run(predecessor, protocol="native", points=("first_source_edit",))
    other = OtherClient(replies=[claude_finish()] * 4, seen=[], tools=[])
    outcome = take_over(
        bench.home, "next", record_id="run.first_source_edit", view=view, model=other, sandbox=bench.spec,
        protocol="native", points=(),
    )  # fmt: skip
    assert outcome.status is RunStatus.FINISHED
    sent = json.dumps([message.content for message in other.seen[0]])
    assert "signature" not in sent
    assert "I list the files." in sent


@pytest.mark.parametrize(
    "block",
    [
        {**THINKING, "thinking": f"The key is {SECRET}."},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": SECRET}],
            "encrypted_content": "gAAA",
        },
        {"type": "reasoning", "reasoning": f"It is {SECRET}.", "extras": {"signature": "EqQB"}},
    ],
    ids=["anthropic", "openai", "standard"],
)
def test_a_secret_in_signed_reasoning_withholds_the_reply(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch, block: Any
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", SECRET)
    model = scripted_model(claude_reply(block, CITED, command="echo ran >>notes.txt"), claude_finish())
    state = bench.run(model, protocol="native")
    reply, correction = model.seen[1][-2:]
    assert isinstance(reply, AIMessage)
    assert (reply.content, reply.tool_calls) == ("I list the files.", [])
    assert isinstance(correction, HumanMessage)
    assert correction.text.startswith("Your reasoning repeats a secret")
    assert [event["tool"] for event in state["events"]] == ["unreadable", "unreadable", "finish"]
    assert SECRET not in json.dumps([message.content for message in model.seen[1]])


def test_a_secret_beside_the_reasoning_is_redacted_alone(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", SECRET)
    text = {"type": "text", "text": f"I use {SECRET}."}
    model = scripted_model(claude_reply(THINKING, text), claude_finish())
    bench.run(model, protocol="native")
    sent: Any = model.seen[1][-2].content
    assert sent == [THINKING, {"type": "text", "text": f"I use {REDACTED}."}]


def test_a_signature_goes_with_a_text_that_looks_like_a_key(bench: RunHarness) -> None:
    key = "sk-" + "abcdefgh12345678" * 2
    text = {"type": "text", "text": f"It is {key}.", "extras": {"signature": "EqQB"}}
    model = scripted_model(claude_reply(THINKING, text), claude_finish())
    bench.run(model, protocol="native")
    assert model.seen[1][-2].content == [THINKING, {"type": "text", "text": f"It is {REDACTED}."}]


def test_reasoning_without_text_and_calls(bench: RunHarness) -> None:
    other = OtherClient(replies=["", DONE], seen=[], tools=[])
    bench.run(scripted_model(AIMessage([THINKING])), max_steps=1)  # type: ignore[list-item]
    bench.resume(other, max_steps=2)
    assert other.seen[-1][-2].content == "…"


def test_a_person_who_edits_a_call_keeps_the_reasoning() -> None:
    """The provider wants the reasoning before the call; it makes its copy of the call anew."""
    event = {"index": 0, "kind": "action", "tool": "shell", "text": "", "arguments": {"command": "pwd"}}
    values = align_step_edit({"messages": [claude_reply(*BLOCKS)], "events": [event]}, AgentState())
    (reply,) = values["messages"]
    assert reply.content == [THINKING, HIDDEN, CITED, IMAGE]
    assert reply.tool_calls[0]["args"] == {"command": "pwd"}


# The Responses API, over OpenAI's client.


@pytest.fixture
def server() -> Iterator[ChatServer]:
    server = ChatServer()
    yield server
    server.close()


REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "List first."}],
    "encrypted_content": "gAAAAABn-signed",
}


def serve_responses(server: ChatServer, *commands: str) -> ChatOpenAI:
    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        number = sum(item.get("type") == "reasoning" for item in request["input"])
        output: list[dict[str, Any]] = [{**REASONING, "id": f"rs_{number}"}]
        for place, command in enumerate(commands if not number else ("",)):
            name = "shell" if command else "finish"
            arguments = json.dumps({"command": command} if command else {"message": "Done."})
            output.append(
                {"id": f"fc_{number}{place}", "type": "function_call", "call_id": f"call_{number}{place}", "name": name,
                 "arguments": arguments, "status": "completed"}
            )  # fmt: skip
        body = {
            "id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", "status": "completed",
            "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                      "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 3}},
        }  # fmt: skip
        return 200, json.dumps(body).encode()

    server.answer = answer
    return ChatOpenAI(
        model="m", base_url=server.url, api_key="none", max_retries=0, use_responses_api=True, store=False,  # type: ignore[arg-type]
        include=["reasoning.encrypted_content"], output_version="responses/v1",
    )  # fmt: skip


def test_reasoning_items_of_the_responses_api(bench: RunHarness, server: ChatServer) -> None:
    state = bench.run(serve_responses(server, "echo one", "echo two"), protocol="native")
    assert state["stop_reason"] == "finished"
    sent = server.requests[1]["input"]
    (reasoning,) = [item for item in sent if item.get("type") == "reasoning"]
    assert reasoning["encrypted_content"] == REASONING["encrypted_content"]
    assert reasoning["summary"] == REASONING["summary"]
    kinds = [item.get("type") for item in sent[-5:]]
    assert kinds == [
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    assert [item["output"] for item in sent[-2:]] == ["[exit code 0]\none\n", "[exit code 0]\ntwo\n"]


def test_a_reply_of_another_provider_becomes_a_valid_request(bench: RunHarness, server: ChatServer) -> None:
    bench.run(scripted_model(claude_reply(*BLOCKS), claude_finish()), protocol="native", max_steps=1)
    done = resume(
        bench.home, "thread", model=serve_responses(server, "ls"), sandbox=bench.spec, protocol="native", points=(),
        max_steps=3, run_id="run",
    )  # fmt: skip
    assert done.status is RunStatus.FINISHED
    kinds = [item.get("type") for item in server.requests[0]["input"]]
    assert kinds[-2:] == ["function_call", "function_call_output"]
    assert "EqQB" not in json.dumps(server.requests[0])


def test_adapted_messages_leave_the_state_alone() -> None:
    model = scripted_model(DONE)
    foreign = claude_reply(*BLOCKS)
    foreign.response_metadata[CLIENT] = "langchain_anthropic.chat_models.ChatAnthropic"
    person = HumanMessage("hello", name="ann")
    shown = adapt_messages([person, foreign], model)
    assert shown[0] is person
    assert (foreign.content, shown[1].content) == (BLOCKS, "I list the files.")


def test_results_in_the_text_protocol_name_tool_and_call(bench: RunHarness, server: ChatServer) -> None:
    texts = iter(["```bash\nls\n```", "no action", DONE])
    server.answer = lambda request: ChatServer.reply(next(texts))
    model = ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0)  # type: ignore[arg-type]
    state = bench.run(model)
    results = [each for each in state["messages"] if RESULT_OF in each.additional_kwargs]
    named = [(each.additional_kwargs[TOOL], each.additional_kwargs[RESULT_OF]) for each in results]
    assert named == [("shell", "e0"), ("unreadable", "e2")]
    assert all("name" not in message for message in server.requests[-1]["messages"])
    assert server.requests[-1]["messages"][3]["content"].startswith("[exit code 0]\n")

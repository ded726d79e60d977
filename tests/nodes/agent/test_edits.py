"""Edits of a step by a person keep its event and its message consistent."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.nodes.agent.step_edits import align_step_edit
from langgraph_takeover.nodes.model.actions import parse_action
from langgraph_takeover.nodes.state import AgentState, InputError
from langgraph_takeover.nodes.state_events import load_event


def action(command: str, index: int = 0, **others: Any) -> dict[str, Any]:
    arguments = {"command": command}
    return {
        "index": index,
        "kind": "action",
        "tool": "shell",
        "text": "old",
        "arguments": arguments,
        **others,
    }


def state(event_count: int = 0) -> AgentState:
    return AgentState(messages=[], events=[action("pwd", index) for index in range(event_count)])


def text(update: dict[str, Any]) -> str:
    return load_event(update["events"][-1], update["messages"]).text


def bash(command: str) -> str:
    return f"```bash\n{command}\n```"


def test_a_reply_with_the_same_action_is_unchanged() -> None:
    message = f"I look first.\n{bash('ls')}"
    update = align_step_edit(
        {"events": [action("ls", text=message)], "messages": [AIMessage(message)], "steps": 1}, state()
    )
    assert update["messages"][0].content == text(update) == message
    assert update["steps"] == 1


@pytest.mark.parametrize("message", [bash("rm -r ."), "I am done.", f"{bash('ls')}\n{bash('pwd')}"])
def test_a_reply_with_another_action_is_rewritten(message: str) -> None:
    update = align_step_edit(
        {"events": [action("ls", 4)], "messages": [AIMessage(message, id="m")]}, state(4)
    )
    assert update["messages"] == [AIMessage(bash("ls"), id="m")]
    assert text(update) == bash("ls")


def test_a_missing_reply_is_appended() -> None:
    update = align_step_edit(
        {"events": [action("ls")], "messages": [{"role": "user", "content": "Go on."}]}, state()
    )
    assert update["messages"] == [HumanMessage("Go on."), AIMessage(bash("ls"))]


def test_a_native_call_is_rewritten_as_a_call() -> None:
    call = {"name": "shell", "args": {"command": "rm -r ."}, "id": "c"}
    old: dict[str, Any] = {"tool_calls": [{"function": {"arguments": "rm -r ."}}], "refusal": None}
    reply = AIMessage("I tidy up.", tool_calls=[call], additional_kwargs=old)
    data = {**reply.model_dump(), "type": "ai"}
    update = align_step_edit({"events": [action("ls")], "messages": [data]}, state())
    (message,) = update["messages"]
    assert parse_action(message, "native", offer_handoff=False) == Action("shell", {"command": "ls"})
    assert (message.tool_calls[0]["id"], message.additional_kwargs) == ("c", {"refusal": None})
    assert text(update) == 'I tidy up.\n{"name": "shell", "arguments": {"command": "ls"}}'


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"events": [action("ls", 2), action("pwd", 4)]}, "the next index is 3, not 4"),
        ({"events": [{"index": 2}]}, "events.0.kind: Field required"),
        ({"messages": [{"content": "?"}]}, "messages: pass messages such as"),
    ],
)
def test_invalid_edits_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        align_step_edit(values, state(2))


def two_calls() -> AIMessage:
    calls = [{"name": "shell", "args": {"command": command}, "id": command} for command in ("ls", "pwd")]
    return AIMessage("I look.", tool_calls=calls)


def test_a_reply_with_two_calls_leaves_the_second_open() -> None:
    update = align_step_edit({"events": [action("ls")], "messages": [two_calls()]}, state())
    assert update["open_calls"] == 1


def test_a_further_call_cannot_be_edited_by_itself() -> None:
    before = AgentState(messages=[two_calls()], events=state(2)["events"], open_calls=1)
    with pytest.raises(InputError, match="a further call of a reply cannot be edited by itself"):
        align_step_edit({"events": [action("rm -r .", 2)]}, before)

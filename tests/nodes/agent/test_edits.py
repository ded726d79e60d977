"""What a person edited of a step, told alike in all its places."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.nodes.agent.edits import align_step_edit
from langgraph_takeover.nodes.model.actions import parse_action
from langgraph_takeover.nodes.state import InputError


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


def bash(command: str) -> str:
    return f"```bash\n{command}\n```"


def test_a_reply_that_says_the_same_stays_with_its_thoughts() -> None:
    said = f"I look first.\n{bash('ls')}"
    written = align_step_edit(
        {"events": [action("ls", text=said)], "messages": [AIMessage(said)], "steps": 1}, 0
    )
    assert written["messages"][0].content == written["events"][0]["text"] == said
    assert written["steps"] == 1


@pytest.mark.parametrize("said", [bash("rm -r ."), "I am done.", f"{bash('ls')}\n{bash('pwd')}"])
def test_a_reply_that_says_something_else_is_written_anew(said: str) -> None:
    written = align_step_edit({"events": [action("ls", 4)], "messages": [AIMessage(said, id="m")]}, 4)
    assert written["messages"] == [AIMessage(bash("ls"), id="m")]
    assert written["events"][0]["text"] == bash("ls")


def test_a_reply_that_was_left_out_is_written_after_what_was_given() -> None:
    written = align_step_edit(
        {"events": [action("ls")], "messages": [{"role": "user", "content": "Go on."}]}, 0
    )
    assert written["messages"] == [HumanMessage("Go on."), AIMessage(bash("ls"))]


def test_a_call_is_written_anew_as_a_call() -> None:
    call = {"name": "shell", "args": {"command": "rm -r ."}, "id": "c"}
    old: dict[str, Any] = {"tool_calls": [{"function": {"arguments": "rm -r ."}}], "refusal": None}
    reply = AIMessage("I tidy up.", tool_calls=[call], additional_kwargs=old)
    message = {**reply.model_dump(), "type": "ai"}
    written = align_step_edit({"events": [action("ls")], "messages": [message]}, 0)
    (said,) = written["messages"]
    assert parse_action(said, "native", offer_handoff=False) == Action("shell", {"command": "ls"})
    assert (said.tool_calls[0]["id"], said.additional_kwargs) == ("c", {"refusal": None})
    assert written["events"][0]["text"] == 'I tidy up.\n{"name": "shell", "arguments": {"command": "ls"}}'


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"events": [action("ls", 2), action("pwd", 4)]}, "the next index is 3, not 4"),
        ({"events": [{"index": 2}]}, "events.0.kind: Field required"),
        ({"messages": [{"content": "?"}]}, "messages: pass messages such as"),
    ],
)
def test_what_cannot_be_added_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        align_step_edit(values, 2)

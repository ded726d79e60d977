"""The order of turns in a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_takeover.nodes.model.endpoint_rules import complete_turns, repair_messages

CALLS = AIMessage("", tool_calls=[{"name": "shell", "args": {}, "id": "a"}])
RESULT = ToolMessage("r", tool_call_id="a")
MISTRAL, OTHER = (
    SimpleNamespace(model_name="devstral-small"),
    SimpleNamespace(bound=SimpleNamespace(model_name="gpt")),
)
IMAGE: Any = {"type": "image", "url": "u"}


@pytest.mark.parametrize(
    ("messages", "types"),
    [
        ([], []),
        ([HumanMessage("one")], ["human"]),
        ([SystemMessage("be"), HumanMessage("one"), HumanMessage("two")], ["system", "human"]),
        ([SystemMessage("be"), AIMessage("one")], ["system", "human", "ai", "human"]),
        ([AIMessage("one"), CALLS, RESULT], ["human", "ai", "human", "ai", "tool"]),
        (
            [HumanMessage("one"), CALLS, RESULT, RESULT, AIMessage("two")],
            ["human", "ai", "tool", "tool", "ai", "human"],
        ),
    ],
)
def test_turns_alternate(messages: list[BaseMessage], types: list[str]) -> None:
    completed = complete_turns(messages, OTHER)
    assert [each.type for each in completed] == types
    again = complete_turns(completed, OTHER)
    assert all(left is right for left, right in zip(again, completed, strict=True))


def test_merged_messages_keep_everything() -> None:
    messages = [HumanMessage("one\n", name="a"), HumanMessage("two", name="a"), HumanMessage([IMAGE])]
    (merged,) = complete_turns(messages, OTHER)
    assert merged.content == [{"type": "text", "text": "one\n\ntwo"}, IMAGE]
    (named,) = complete_turns(messages[:2], OTHER)
    assert (named.text, named.name) == ("one\n\ntwo", "a")
    assert messages[0].text == "one\n"


def test_a_user_after_a_result() -> None:
    messages = [HumanMessage("one"), CALLS, RESULT, HumanMessage("two")]
    assert [each.type for each in complete_turns(messages, MISTRAL)] == ["human", "ai", "tool", "ai", "human"]
    assert complete_turns(messages, OTHER) == messages


def test_arguments_that_are_no_object_become_one() -> None:
    bad: Any = {"name": "shell", "args": '{"command": ', "id": "b", "error": None}
    reply = CALLS.model_copy(update={"invalid_tool_calls": [bad]})
    repaired = repair_messages([HumanMessage("one"), reply, RESULT], OTHER)
    assert isinstance(repaired[1], AIMessage)
    assert [(each["id"], each["args"]) for each in repaired[1].tool_calls] == [
        ("a", {}),
        ("b", {"malformed_arguments": '{"command": '}),
    ]
    assert [each.tool_call_id for each in repaired[2:] if isinstance(each, ToolMessage)] == ["a", "b"]
    assert reply.invalid_tool_calls == [bad]

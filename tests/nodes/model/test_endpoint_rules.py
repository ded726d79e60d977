"""Repairs of conversations are deterministic, incremental, and leave valid messages alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_takeover.nodes.model.endpoint_rules import (
    NO_RESULT,
    ConversationRepair,
    GrowingRequest,
    complete_turns,
    repair_replies,
    repair_reply,
    write_calls_as_text,
)
from langgraph_takeover.nodes.model.message_content import NO_TEXT, adapt_messages


def repair_messages(messages: list[BaseMessage], model: Named) -> list[BaseMessage]:
    return ConversationRepair(model).add(messages)


class Named:
    def __init__(self, model_name: str = "m") -> None:
        self.model_name = model_name


THOUGHT = {"type": "thinking", "thinking": "t"}


def reply(*ids: str, content: Any = "", **extra: Any) -> AIMessage:
    calls = [{"name": "shell", "args": {"n": n}, "id": each} for n, each in enumerate(ids)]
    return AIMessage(content, tool_calls=calls, additional_kwargs=extra)


def result(name: str, text: str = "r") -> ToolMessage:
    return ToolMessage(text, tool_call_id=name)


def list_ids(messages: list[BaseMessage]) -> list[tuple[list[str], list[str]]]:
    """The ids of each reply's calls, and of the results after it."""
    shown: list[tuple[list[str], list[str]]] = []
    for each in messages:
        if isinstance(each, AIMessage):
            shown.append(([str(call["id"]) for call in each.tool_calls], []))
        elif isinstance(each, ToolMessage):
            shown[-1][1].append(each.tool_call_id)
    return shown


def test_results_keep_the_order_of_equal_calls() -> None:
    repaired = repair_messages([reply("a", "a"), result("a", "1"), result("a", "2")], Named())
    ((calls, results),) = list_ids(repaired)
    assert calls == results
    assert len({*calls}) == 2
    assert [each.text for each in repaired[1:]] == ["1", "2"]


def test_results_move_to_their_calls() -> None:
    messages = [reply("a", "b"), result("b", "2"), HumanMessage("stop"), result("a", "1"), result("x", "?")]
    repaired = repair_messages(messages, Named())
    assert [each.text for each in repaired[1:]] == ["1", "2", "stop", "Result of call x:\n?"]


@pytest.mark.parametrize(
    ("model", "name", "is_kept"),
    [
        ("gpt-5", "call_" + "x" * 24, True),
        ("claude-opus", "toolu_01", True),
        ("kimi-k2", "functions.shell:0", True),
        ("gpt-5", "functions.shell:0", False),
        ("devstral-small", "call_e4", False),
        ("devstral-small", "aB3456789", True),
    ],
)
def test_a_valid_id_stays(model: str, name: str, is_kept: bool) -> None:
    messages = [reply(name), result(name)]
    repaired = repair_messages(messages, Named(model))
    assert (repaired == messages) == is_kept
    assert list_ids(repaired)[0][0] == list_ids(repaired)[0][1]


def test_copies_of_changed_calls_are_dropped() -> None:
    content = [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use", "id": "a"}]
    changed = repair_reply(reply("a", content=content, tool_calls=["raw"]), [reply("a")], model=Named())
    assert changed.content == content[:1]
    assert changed.additional_kwargs == {}
    kept = reply("b", content=content, tool_calls=["raw"])
    assert repair_reply(kept, [reply("a")], model=Named()) is kept


def test_a_result_beside_a_renamed_call_is_renamed() -> None:
    # LangChain answers calls of a structured response itself, in the model's step.
    replies = [reply("a", "a"), result("a", "1"), result("a", "2"), reply("a"), result("a", "3")]
    repaired = repair_replies(replies, [reply("a")], Named())
    assert all(calls == results for calls, results in list_ids(repaired))
    assert len({"a", *(name for calls, _ in list_ids(repaired) for name in calls)}) == 4
    assert [each.text for each in repaired] == ["", "1", "2", "", "3"]


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (AIMessage(" \n"), "…"),
        (AIMessage([{"type": "text", "text": ""}]), "…"),
        (AIMessage([THOUGHT, {"type": "text", "text": " "}]), [THOUGHT, {"type": "text", "text": "…"}]),
        (AIMessage([THOUGHT]), [THOUGHT, {"type": "text", "text": "…"}]),
        (reply("a", content=[THOUGHT]), [THOUGHT]),
        (reply("a", content="\n\n"), ""),
        (reply("a", content=[]), []),
        (HumanMessage(""), "…"),
        (HumanMessage([{"type": "image", "url": "u"}]), 1),
    ],
)
def test_no_text_is_blank(message: BaseMessage, content: Any) -> None:
    (repaired, *_) = repair_messages([message], Named())
    assert (len(repaired.content) if content == 1 else repaired.content) == content
    assert (repaired is message) == (repaired.content == message.content)


def test_later_system_messages_are_of_the_user() -> None:
    messages = [SystemMessage("one"), HumanMessage("two"), SystemMessage("three")]
    assert [each.type for each in repair_messages(messages, Named())] == ["system", "human", "human"]
    begun = ConversationRepair(Named(), has_begun=True)
    assert [each.type for each in begun.add(messages)] == ["human"] * 3


def test_names_of_agents_are_valid() -> None:
    messages = [HumanMessage("go", name="a/b"), AIMessage("Done.", name="Code Reviewer")]
    assert [each.name for each in repair_messages(messages, Named())] == ["a_b", "Code_Reviewer"]
    # Mistral refuses any name.
    assert [each.name for each in repair_messages(messages, Named("mistral-small"))] == [None, None]


def test_calls_as_text() -> None:
    messages = [HumanMessage("go"), reply("a", "b"), result("a", "1"), result("b", "2"), HumanMessage("?")]
    shown = write_calls_as_text(messages)
    assert [(each.type, each.text) for each in shown[1:]] == [
        ("ai", 'shell {"n": 0}\n\nshell {"n": 1}'),
        ("human", "1\n\n2\n\n?"),
    ]
    assert write_calls_as_text(messages[:1]) == messages[:1]


MESSAGES = st.lists(
    st.one_of(
        st.lists(st.sampled_from(["a", "b", "", "x" * 50]), max_size=3).map(lambda ids: reply(*ids)),
        st.sampled_from(["a", "b", "c"]).map(result),
        st.sampled_from([HumanMessage("go"), HumanMessage(""), AIMessage(" "), SystemMessage("be")]),
    ),
    max_size=12,
)


@given(MESSAGES)
def test_every_repaired_conversation_is_valid(messages: list[BaseMessage]) -> None:
    repaired = repair_messages(messages, Named())
    ids: list[str] = []
    for calls, results in list_ids(repaired):
        assert calls == results
        ids += calls
    assert len(ids) == len({*ids})
    assert repair_messages(messages, Named()) == repaired
    again = ConversationRepair(Named())
    assert again.add(repaired) == repaired
    assert all(left is right for left, right in zip(again.add([]), [], strict=True))
    assert not again.repairs


@given(MESSAGES, MESSAGES)
def test_growing_gives_the_same(first: list[BaseMessage], second: list[BaseMessage]) -> None:
    # As in a run: a request is built when each call has its result.
    first, second = (
        [each for each in repair_messages(part, Named()) if NO_RESULT not in each.text]
        for part in (first, second)
    )
    first = repair_messages(first, Named())
    growing = ConversationRepair(Named())
    grown = [*growing.add(first), *growing.add(second)]
    assert grown == repair_messages([*first, *second], Named())


@given(MESSAGES, st.lists(st.integers(0, 12), max_size=8), st.sampled_from(["m", "mistral-small"]))
def test_requests_of_a_growing_conversation(messages: list[BaseMessage], ends: list[int], name: str) -> None:
    model: Any = Named(name)
    growing = GrowingRequest(model)
    messages = [each.model_copy() for each in messages]
    for end in [*range(len(messages) + 1), *ends]:
        whole = ConversationRepair(model)
        expected = complete_turns(whole.add(adapt_messages(messages[:end], model)), model)
        repaired, repair = growing.repair(messages[:end])
        assert repaired == expected
        assert (repair.ids, repair.repairs) == (whole.ids, whole.repairs)


def test_a_message_that_was_changed_is_read_again() -> None:
    messages: list[Any] = [HumanMessage("go"), reply("a"), result("a"), reply("b"), result("b"), reply("c")]
    growing = GrowingRequest(Named())
    growing.repair(messages)
    messages[2].content = " "
    assert growing.repair(messages)[0][2].text == NO_TEXT
    messages[0] = HumanMessage("stop")
    assert growing.repair(messages)[0][0].text == "stop"

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.nodes.model.usage import count_chars
from langgraph_takeover.nodes.model.window import (
    KEPT_STEPS,
    MeasuredConversation,
    Request,
    build_request,
    condense_fully,
    measure_conversation,
)

PROMPT: list[BaseMessage] = [
    SystemMessage("s" * 400),
    HumanMessage("continue"),
    AIMessage("```bash\nearlier agent\n```"),
    HumanMessage("o" * 4000),
    HumanMessage("the task"),
]
"""A first prompt with another agent's messages, as the view `transcript` has."""
MODEL = FakeListChatModel(responses=[])


def text_steps(count: int, chars: int = 4000) -> list[BaseMessage]:
    return [
        message
        for n in range(count)
        for message in (AIMessage(f"```bash\ncommand {n}\n```"), HumanMessage(f"{n}" + "x" * chars))
    ]


def native_steps(count: int, chars: int = 4000) -> list[BaseMessage]:
    found: list[BaseMessage] = []
    for n in range(count):
        calls = [{"name": "shell", "args": {"command": f"{n}"}, "id": f"c{n}_{k}"} for k in range(1 + n % 2)]
        found.append(AIMessage("", tool_calls=calls))
        found += [ToolMessage(f"{n}" + "x" * chars, tool_call_id=call["id"]) for call in calls]
    return found


def measure(messages: list[BaseMessage], known: MeasuredConversation | None = None) -> MeasuredConversation:
    return measure_conversation(messages, MODEL, known)


def request(
    steps: list[BaseMessage],
    replies: int,
    window: int | None,
    known: MeasuredConversation | None = None,
    **settings: Any,
) -> Request:
    values = {"condense": True, "condensed": 0, "last_usage": None} | settings
    found = build_request(measure([*PROMPT, *steps], known), replies, window_tokens=window, **values)
    assert found.chars == count_chars(found.messages)
    return found


def counted(messages: list[BaseMessage], chars_per_token: float = 4.0) -> Usage:
    return Usage(prompt_tokens=round(count_chars(messages) / chars_per_token), completion_tokens=1)


def test_without_a_known_window_nothing_changes() -> None:
    steps = text_steps(50)
    assert request(steps, 50, None)[:3] == ([*PROMPT, *steps], 0, False)


def test_below_the_threshold_nothing_is_left_out() -> None:
    steps = text_steps(10)
    total = count_chars([*PROMPT, *steps]) / 4
    assert request(steps, 10, int(total / 0.79)).condensed == 0
    assert request(steps, 10, int(total / 0.81)).condensed > 0
    assert request(steps, 10, int(total / 0.81), condense=False).condensed == 0


@pytest.mark.parametrize("make", [text_steps, native_steps])
def test_the_oldest_observations_become_a_marker_and_the_messages_stay_valid(make: Any) -> None:
    steps = make(12)
    before = [*PROMPT, *steps]
    window = int(count_chars(before) / 4)
    found = request(steps, 12, window, last_usage=counted(before[:-2]))
    assert 0 < found.condensed <= 12 - KEPT_STEPS
    assert len(found.messages) == len(before)
    assert [type(each) for each in found.messages] == [type(each) for each in before]
    changed = [index for index, (a, b) in enumerate(zip(before, found.messages, strict=True)) if a != b]
    assert changed
    assert min(changed) >= len(PROMPT)  # the first prompt stays, with the other agent's observations
    assert all(not isinstance(before[index], AIMessage) for index in changed)
    assert all("was left out" in found.messages[index].text for index in changed)
    assert not set(changed) & set(range(len(before) - 2 * KEPT_STEPS, len(before)))
    for call, answer in pairwise(found.messages):
        if isinstance(answer, ToolMessage) and isinstance(call, AIMessage):
            assert answer.tool_call_id == call.tool_calls[0]["id"]
    # Down to 60 % of the window, not further than necessary.
    assert count_chars(found.messages) / 4 <= 0.61 * window
    assert count_chars(found.messages) / 4 > 0.6 * window - 2500


def test_a_condensed_conversation_stays_as_it_is_until_it_grows_again() -> None:
    steps = text_steps(12)
    window = int(count_chars([*PROMPT, *steps]) / 4)
    first = request(steps, 12, window)
    longer = [*steps, *text_steps(1, 100)]
    second = request(longer, 13, window, condensed=first.condensed, last_usage=counted(first.messages))
    assert second.condensed == first.condensed
    assert second.messages[: len(first.messages)] == first.messages
    third = request([*longer, *text_steps(4)], 17, window, condensed=second.condensed)
    assert third.condensed > second.condensed
    assert request(steps, 12, window) == first  # the same again, as after a resume


def test_what_a_person_says_after_an_observation_stays() -> None:
    steps = [*text_steps(8)[:2], HumanMessage("I am a person" + "y" * 4000), *text_steps(8)]
    found = request(steps, 9, 6000)
    assert found.condensed > 1
    assert any(message.text.startswith("I am a person") for message in found.messages)


def test_the_latest_steps_stay_even_if_they_exceed_the_window() -> None:
    found = request(text_steps(KEPT_STEPS, 40_000), KEPT_STEPS, 8000)
    assert found.condensed == 0
    assert found.exceeds_window


@pytest.mark.parametrize(("rate", "exceeds"), [(2.0, True), (4.0, True), (5.0, False)])
def test_the_size_is_estimated_at_the_rate_of_the_last_call(rate: float, exceeds: bool) -> None:
    steps = text_steps(6)
    before = [*PROMPT, *steps]
    window = int(count_chars(before) / 4.2)
    usage = counted(before[:-2], rate)
    assert request(steps, 6, window, condense=False, last_usage=usage).exceeds_window is exceeds


def test_without_a_count_only_a_much_longer_prompt_is_an_overflow() -> None:
    """Four characters per token is a guess: a prompt that may fit is sent."""
    chars = count_chars(PROMPT)
    assert not request([], 0, int(chars / 4 / 1.2)).exceeds_window
    assert request([], 0, int(chars / 4 / 1.6)).exceeds_window
    estimated = Usage(prompt_tokens=10**6, completion_tokens=1, estimated=True)
    assert not request(text_steps(1), 1, 5000, last_usage=estimated).exceeds_window


def test_an_endpoint_that_refuses_a_conversation_gets_the_latest_observations_only() -> None:
    steps = text_steps(9)
    found = condense_fully(measure([*PROMPT, *steps]), 9)
    assert found.condensed == 9 - KEPT_STEPS
    left_out = [message for message in found.messages if "was left out" in message.text]
    assert len(left_out) == 9 - KEPT_STEPS


def test_condensing_never_lengthens_a_conversation() -> None:
    steps = text_steps(60, chars=20)
    before = [*PROMPT, *steps]
    usage, window = counted(before[:-2]), int(count_chars(before) / 4 / 0.82)
    found = request(steps, 60, window, last_usage=usage)
    assert found.messages == before
    assert not found.exceeds_window
    assert condense_fully(measure(before), 60).messages == before
    mixed = [*steps, *text_steps(5)]
    assert count_chars(request(mixed, 65, 10_000, last_usage=counted([*PROMPT, *steps])).messages) < 40_000


def test_tool_schemas_do_not_make_an_observation_larger() -> None:
    """They count in the tokens of the call before, but not in the characters of its messages."""
    steps = native_steps(1, 10_000)
    schemas = 2000
    usage = Usage(prompt_tokens=count_chars(PROMPT) // 4 + schemas, completion_tokens=1)
    tokens = count_chars([*PROMPT, *steps]) // 4 + schemas
    assert not request(steps, 1, int(tokens * 1.01), condense=False, last_usage=usage).exceeds_window
    assert request(steps, 1, int(tokens * 0.99), condense=False, last_usage=usage).exceeds_window


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["steps", "person", "fork", "reload", "edit", "edit last", "another model"]),
        st.integers(0, 5),
        st.sampled_from([20, 4000, 9000]),
    ),
    min_size=1,
    max_size=8,
)


@given(CHANGES, st.sampled_from([None, 4000, 12_000, 40_000]), st.booleans(), st.sampled_from([2.5, 4.0]))
def test_an_extended_conversation_is_as_one_that_is_read_anew(
    changes: list[tuple[str, int, int]], window: int | None, native: bool, rate: float
) -> None:
    """Whatever happens between two requests: new steps, a fork, a state from a database, an edited message."""
    messages, replies, condensed, usage = [*PROMPT], 0, 0, None
    model, known = MODEL, None
    for kind, number, chars in changes:
        if kind == "steps":
            messages, replies = (
                [*messages, *(native_steps if native else text_steps)(number, chars)],
                replies + number,
            )
        elif kind == "person":
            messages = [*messages, HumanMessage("p" * chars)]
        elif kind == "fork":
            kept = [n for n, each in enumerate(messages) if isinstance(each, AIMessage)][1:][number:]
            if kept:
                messages, replies, condensed, usage = messages[: kept[0]], min(replies, number), number, None
        elif kind == "reload":
            messages = [each.model_copy() for each in messages]
        elif kind == "edit":
            place = number % len(messages)
            edited = messages[place].model_copy(update={"content": "e" * chars})
            messages = [*messages[:place], edited, *messages[place + 1 :]]
        elif kind == "edit last":
            messages = [*messages[:-1], messages[-1].model_copy(update={"content": "e" * chars})]
        else:
            model = FakeListChatModel(responses=[])
        known = measure_conversation(messages, model, known)
        settings: Any = {
            "window_tokens": window,
            "condense": True,
            "condensed": condensed,
            "last_usage": usage,
        }
        found = build_request(known, replies, **settings)
        fresh = measure_conversation(messages, model)
        assert found == build_request(fresh, replies, **settings)
        assert found.chars == count_chars(found.messages)
        assert condense_fully(known, replies) == condense_fully(fresh, replies)
        condensed, usage = found.condensed, counted(found.messages, rate)


def test_a_reply_that_another_client_received_is_sent_without_its_content_in_an_extended_conversation() -> (
    None
):
    foreign = AIMessage(
        [{"type": "thinking", "thinking": "…", "signature": "s"}, {"type": "text", "text": "Hello."}],
        response_metadata={"client": "another.Client"},
    )
    known = measure(PROMPT)
    found = build_request(
        measure([*PROMPT, foreign], known),
        1,
        window_tokens=None,
        condense=False,
        condensed=0,
        last_usage=None,
    )
    assert found.messages[-1].content == "Hello."


def test_the_request_is_a_list_of_its_own() -> None:
    steps = text_steps(3)
    known = measure([*PROMPT, *steps])
    settings: Any = {"window_tokens": None, "condense": False, "condensed": 1, "last_usage": None}
    first = build_request(known, 3, **settings)
    expected = [*first.messages]
    first.messages.clear()
    assert build_request(measure([*PROMPT, *steps], known), 3, **settings).messages == expected

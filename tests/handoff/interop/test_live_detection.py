"""Live detection equals detection in the complete recording, however the messages or events arrive."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.detection import HandoffPoint, PointDetector, TraceError, detect_points
from langgraph_takeover.handoff.interop import live_detection
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.readers import parse_trace, read_traces
from langgraph_takeover.handoff.trace.conversation import list_steps
from langgraph_takeover.handoff.trace.events import Trace

from ...random_examples import SEED, examples

KINDS = ["first_source_edit", "first_validation", "first_post_failure_edit"]
STEPS = [
    ("cat src/core.py", "def double(n):\n    return n + 1\n", 0),
    ("sed -i 's/n + 1/n * 3/' src/core.py", "", 0),
    ("python3 -m pytest -q", "F\n1 failed in 0.01s", 1),
    ("sed -i 's/n \\* 3/n * 2/' src/core.py", "", 0),
    ("python3 -m pytest -q", ".\n1 passed in 0.01s", 0),
]
PLACE: dict[str, Any] = {"workspace": "/testbed", "base_directories": ("src",)}


def chat_messages(steps: Iterable[tuple[str, str, int]] = STEPS, *, ids: bool = True) -> list[BaseMessage]:
    messages: list[BaseMessage] = [HumanMessage("Make it double.", id="h" if ids else None)]
    for number, (command, output, code) in enumerate(steps):
        call = {"name": "shell", "args": {"command": command}, "id": f"call-{number}"}
        messages.append(AIMessage("", tool_calls=[call], id=f"a{number}" if ids else None))
        messages.append(
            ToolMessage(
                output,
                tool_call_id=f"call-{number}",
                artifact={"exit_code": code},
                id=f"t{number}" if ids else None,
            )
        )
    return messages


def openai_messages() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Make it double."}]
    for command, output, code in STEPS:
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        # As some servers do, each reply restarts its ids.
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [{"id": "call_0", "function": function}]}
        )
        messages.append({"role": "tool", "tool_call_id": "call_0", "content": f"{output}\nexit code: {code}"})
    return messages


def kinds(points: Iterable[HandoffPoint]) -> list[str]:
    return [point.kind for point in points]


@pytest.mark.parametrize("messages", [chat_messages(), chat_messages(ids=False), openai_messages()])
def test_points_come_with_the_message_that_shows_them(messages: list[Any]) -> None:
    detector = PointDetector(**PLACE)
    found = {n: kinds(new) for n, message in enumerate(messages) if (new := detector.feed(message))}
    assert found == {4: KINDS[:1], 6: KINDS[1:2], 8: KINDS[2:]}
    assert kinds(detector.points) == KINDS
    assert list(detect_points(messages, **PLACE)) == list(detector.points)


@pytest.mark.parametrize("messages", [chat_messages(), chat_messages(ids=False), openai_messages()])
def test_a_growing_list_reports_nothing_twice(messages: list[Any]) -> None:
    """A repeated edit after the failure would be a point of its own."""
    detector = PointDetector(**PLACE)
    for n in range(1, len(messages) + 1):
        new = detector.feed({"messages": messages[:n]})
        assert detector.feed(messages[:n]) == ()
        assert kinds(new) == {5: KINDS[:1], 7: KINDS[1:2], 9: KINDS[2:]}.get(n, [])


def test_a_list_fed_twice_is_not_an_edit_after_a_failure() -> None:
    messages = chat_messages(STEPS[:3], ids=False)
    detector = PointDetector(**PLACE)
    assert kinds(detector.feed(messages)) == KINDS[:2]
    assert detector.feed(messages) == ()


def test_a_trimmed_list_continues() -> None:
    messages = chat_messages()
    detector = PointDetector(**PLACE)
    detector.feed(messages[:7])
    summary = HumanMessage("So far: a wrong edit.", id="summary")
    assert detector.feed([summary, *messages[5:7]]) == ()
    assert kinds(detector.feed([summary, *messages[5:]])) == KINDS[2:]


def test_a_long_list_of_equal_messages_can_be_trimmed() -> None:
    detector = PointDetector(**PLACE)
    equal = [{"role": "user", "content": "go on"}] * 600
    detector.feed(equal)
    assert detector.feed(equal[100:]) == ()
    assert kinds(detector.feed([*equal[300:], *chat_messages(STEPS[:3], ids=False)])) == KINDS[:2]


def test_the_cost_of_a_trimmed_list_is_linear() -> None:
    compared = 0

    class Counted(bytes):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return bytes(self) == other

        __hash__ = bytes.__hash__

    conversation = live_detection._Conversation()
    conversation._seen = [Counted(b"a") for _ in range(1_000)]
    assert conversation._count_seen([Counted(b"a") for _ in range(900)]) == 900
    assert compared < 10 * 1_900


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_a_list_continues_after_the_longest_part_that_was_seen(seen: str, text: str) -> None:
    conversation = live_detection._Conversation()
    conversation._seen = [letter.encode() for letter in seen]
    lengths = [
        max(n for n in range(len(seen) + 1) if text[:end].endswith(seen[len(seen) - n :]))
        for end in range(1, len(text) + 1)
    ]
    longest = max(lengths, default=0)
    expected = len(seen) if text.startswith(seen) else lengths.index(longest) + 1 if longest else 0
    assert conversation._count_seen([letter.encode() for letter in text]) == expected


def test_the_same_failing_step_twice_is_two_steps() -> None:
    """Two equal steps in a row, without ids, are in a growing list twice."""
    messages = chat_messages([STEPS[1], STEPS[2], STEPS[2]], ids=False)
    for message in messages[-2:]:
        if isinstance(message, ToolMessage):
            message.tool_call_id = "call-1"
        elif isinstance(message, AIMessage):
            message.tool_calls[0]["id"] = "call-1"
    detector = PointDetector(**PLACE)
    for n in range(1, len(messages) + 1):
        detector.feed(messages[:n])
    edit = chat_messages([STEPS[3]], ids=False)[1:]
    (point,) = detector.feed([*messages, *edit])
    assert (point.kind, point.event_index) == ("first_post_failure_edit", 7)


def test_answers_of_one_reply_count_in_the_order_of_the_calls() -> None:
    calls = [{"name": "shell", "args": {"command": c}, "id": str(n)} for n, (c, *_) in enumerate(STEPS[1:3])]
    answers = [
        ToolMessage(output, tool_call_id=str(n), artifact={"exit_code": code})
        for n, (_, output, code) in enumerate(STEPS[1:3])
    ]
    detector = PointDetector(**PLACE)
    assert detector.feed([AIMessage("", tool_calls=calls), answers[1]]) == ()
    assert kinds(detector.feed(answers[0])) == KINDS[:2]


def test_the_repository_is_guessed() -> None:
    steps = [("cd /app && sed -i s/a/b/ /app/src/core.py", "", 0), STEPS[2]]
    detector = PointDetector()
    detector.feed(chat_messages([("ls src", "core.py", 0), *steps]))
    assert [point.detail for point in detector.points][:1] == ["edited src/core.py"]


@pytest.mark.parametrize("directory", ["/workspace", "/workspace/org__repo__1.0", "/home/user/src/x", "/"])
@pytest.mark.parametrize("form", ["cd {} && sed -i s/a/b/ core.py", "sed -i s/a/b/ {}/core.py"])
def test_a_repository_in_any_directory_is_found(directory: str, form: str) -> None:
    edit = form.format(directory if "cd" in form else directory.rstrip("/"))
    detector = PointDetector()
    detector.feed(chat_messages([("ls", "core.py", 0), (edit, "", 0), ("pytest -q", "1 failed in 1s", 1)]))
    assert [(point.kind, point.event_index) for point in detector.points] == [
        ("first_source_edit", 3),
        ("first_validation", 5),
    ]
    assert detector.points[0].detail == "edited core.py"


@pytest.mark.parametrize(
    "item", ["text", 3, [3], [{"role": "nobody"}], {"index": 0, "kind": "x", "tool": ""}]
)
def test_other_things_are_refused_in_one_line(item: Any) -> None:
    with pytest.raises(TraceError) as caught:
        PointDetector().feed(item)
    assert "\n" not in str(caught.value)
    assert "(feed " in str(caught.value)


def test_events_and_messages_need_two_detectors() -> None:
    events = parse_trace(chat_messages()).events
    detector = PointDetector()
    detector.feed(events[:2])
    with pytest.raises(TraceError, match="messages after events"):
        detector.feed(chat_messages())
    detector = PointDetector()
    detector.feed(chat_messages())
    with pytest.raises(TraceError, match="events after messages"):
        detector.feed(events)


_NAMES = ["role", "content", "tool_calls", "messages", "id", "function", "args", "name", "type", "index"]
_VALUES = st.recursive(
    st.none() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=5),
    max_leaves=10,
)


@settings(max_examples=examples(50))
@given(_VALUES)
def test_strange_input_is_an_error_of_its_own_or_nothing(item: Any) -> None:
    with contextlib.suppress(TraceError):
        assert PointDetector().feed([{"role": "assistant", "content": "", "tool_calls": [item]}, item]) == ()


def test_deeply_nested_input_is_an_error_of_its_own() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TraceError):
        PointDetector().feed({"role": "user", "content": deep})


def recorded_traces(directory: Path) -> Iterator[Trace]:
    for path in sorted((directory / "trajectories").rglob("*")):
        if path.suffix in (".json", ".jsonl", ".traj"):
            with contextlib.suppress(TraceError):  # a file that is no trace
                yield from (each for each in read_traces(path) if isinstance(each, Trace))


def to_messages(trace: Trace) -> list[BaseMessage]:
    messages: list[BaseMessage] = []
    for number, (action, observation) in enumerate(list_steps(trace.events)):
        call = {"name": action.tool, "args": dict(action.arguments), "id": f"c{number}"}
        messages.append(AIMessage(action.text, tool_calls=[call], id=f"a{number}"))
        if observation is not None:
            code = {} if observation.exit_code is None else {"exit_code": observation.exit_code}
            messages.append(ToolMessage(observation.text, tool_call_id=f"c{number}", artifact=code))
    return messages


def feed_growing_lists(detector: PointDetector, items: Sequence[Any], draw: random.Random) -> None:
    """Feed ever longer beginnings of a list, cut at random places, the last one twice."""
    end = 0
    while end < len(items):
        end = draw.randint(end + 1, len(items))
        detector.feed(items[:end])
    assert detector.feed(items) == ()


@pytest.mark.slow
def test_recorded_runs_have_the_same_points_live(real_data: Path) -> None:
    """Event by event, message by message, and in lists that grow; the place is that of the recording."""
    draw, count = random.Random(SEED), 0
    for trace in recorded_traces(real_data):
        messages = to_messages(trace)
        if not messages:
            continue
        recording = parse_trace(messages)
        for source, items in ((trace, list(trace.events)), (recording, messages)):
            expected = list_points(source.events, source.base_directories, source.workspace)
            place = {"workspace": source.workspace, "base_directories": source.base_directories}
            assert tuple(detect_points(items, **place)) == expected, trace.id
            detector = PointDetector(**place)
            feed_growing_lists(detector, items, draw)
            assert detector.points == expected, trace.id
            count += len(expected)
    assert count > 100

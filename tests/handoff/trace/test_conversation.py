"""Views as chat history: valid in both protocols for any trace, and trimmed at whole steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import convert_to_openai_messages

from langgraph_takeover.handoff.delegation_selection import (
    WINDOW_SHARE,
    build_read_cache,
    select_record_payload,
)
from langgraph_takeover.handoff.names import ActionProtocol
from langgraph_takeover.handoff.records.record import EditedFile, HandoffRecord
from langgraph_takeover.handoff.trace.conversation import RESULT_NOT_RECORDED
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, FileRead
from langgraph_takeover.handoff.views import VIEWS, Recipient, find_view, measure_view
from langgraph_takeover.nodes.model.actions import parse_action
from langgraph_takeover.sandbox.interface import FileChange

from ...random_examples import examples
from ..test_views import FAILED, PASSED, PROMPT, record, sha256, step, traces

PROTOCOLS: tuple[ActionProtocol, ...] = ("text", "native")


def make_step(
    index: int, tool: str, arguments: dict[str, str], reply: str, output: str, **fields: Any
) -> list[Event]:
    """One action and its observation."""
    return [
        Event(index=index, kind="action", tool=tool, text=reply, arguments=arguments),
        Event(index=index + 1, kind="observation", tool=tool, text=output, **fields),
    ]


def make_shell_step(index: int, command: str, output: str, code: int = 0, **fields: Any) -> list[Event]:
    reply = f"```bash\n{command}\n```"
    return make_step(index, "shell", {"command": command}, reply, output, exit_code=code, **fields)


EVERY_TOOL = (
    *make_step(0, "shell", {"command": "ls"}, "I look.\n\n```bash\nls\n```", "[exit code 0]\na"),
    *make_step(2, "editor", {"command": "view", "path": "a"}, 'So.\n<editor path="a"/>', "a, lines 1 to 1 of 1:\n     1\tx"),
    *make_step(4, "editor", {"command": "create", "path": "b", "content": "x\n</editor>\n"}, "b", "b has been created."),
    *make_step(6, "lookup", {"arguments": '{"word": "a", "n": 2}'}, '{"name": "lookup", "arguments": {}}', "found"),
    *make_step(8, UNREADABLE, {}, "hm", "Your reply holds no action."),
    *make_step(10, "recall", {"arguments": '{"what": "e1"}'}, "?", "e1"),
    *make_step(12, "handoff", {"message": "yours"}, "<handoff>yours</handoff>", "[handed over]"),
)  # fmt: skip


def check_history(messages: list[BaseMessage], protocol: ActionProtocol) -> None:
    """Check the rules of all endpoints: human messages first and last, results after calls, alternating roles."""
    assert isinstance(messages[0], HumanMessage)
    assert isinstance(messages[-1], HumanMessage)
    for before, after in pairwise(messages):
        calls = [call["id"] for call in getattr(before, "tool_calls", [])]
        if calls:
            assert isinstance(after, ToolMessage)
            assert [after.tool_call_id] == calls
        else:
            assert not isinstance(after, ToolMessage)
            assert type(before) is not type(after) or isinstance(before, ToolMessage)
    ids = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    assert len(set(ids)) == len(ids)
    if protocol == "text":
        assert not ids
    assert all(message.text or getattr(message, "tool_calls", []) for message in messages)
    convert_to_openai_messages(messages)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", list(VIEWS))
@given(trace=traces())
@settings(max_examples=examples(15))
def test_every_view_is_valid_history(name: str, protocol: ActionProtocol, trace: tuple[Event, ...]) -> None:
    for cut in range(len(trace), max(len(trace) - 3, 0), -1):  # also without a result of the last action
        check_history(find_view(name)(record(trace[:cut]), Recipient(protocol=protocol)), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_transcript_replays_every_tool_call(protocol: ActionProtocol) -> None:
    messages = find_view("transcript")(record(EVERY_TOOL), Recipient(protocol=protocol))
    check_history(messages, protocol)
    replies = [message for message in messages if isinstance(message, AIMessage)]
    assert len(replies) == 7
    for event, reply in zip(EVERY_TOOL[::2], replies, strict=True):
        action = parse_action(reply, protocol, offer_handoff=True, extra_tools=("lookup", "recall"))
        assert action.tool == event.tool
        if event.tool not in (UNREADABLE, "lookup", "recall"):
            arguments = {k: v.rstrip("\n") if protocol == "text" else v for k, v in event.arguments.items()}
            assert action == (event.tool, arguments) or event.arguments.get("command") == "create"
    texts = [message.text for message in messages]
    assert sum("lines 1 to 1 of 1" in text for text in texts) == 1
    assert "I look." in replies[0].text


def test_an_action_without_a_result_gets_a_placeholder_result() -> None:
    messages = find_view("transcript")(record(EVERY_TOOL[:3]), Recipient(protocol="native"))
    assert messages[-2].text == RESULT_NOT_RECORDED
    check_history(messages, "native")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_long_transcript_omits_its_oldest_steps(protocol: ActionProtocol) -> None:
    trace = tuple(e for n in range(100) for e in step(2 * n, f"echo number-{n}", f"output-{n} " + "x" * 500))
    complete = find_view("transcript")(record(trace), Recipient(protocol=protocol))
    assert "left out" not in complete[0].text
    for window in (4000, 8000, 16000):
        messages = find_view("transcript")(record(trace), Recipient(protocol=protocol, window_tokens=window))
        check_history(messages, protocol)
        replies = [message for message in messages if isinstance(message, AIMessage)]
        assert 0 < len(replies) < 100
        assert f"[… {100 - len(replies)} earlier steps left out" in messages[0].text
        assert measure_view(messages).tokens < window
        assert "number-99" in str(replies[-1])
    assert messages[-1].text.endswith("# Task\n\n" + PROMPT)


CORE_TEXT = "def f():\n    return 1\n"


def read(index: int, path: str, text: str, *, command: str = "", clipped: bool = False) -> list[Event]:
    output = f"[exit code 0]\n{text[:5] if clipped else text}"
    reads = (FileRead(path=path, sha256=sha256(text)),)
    return make_shell_step(index, command or f"cat {path}", output, reads=reads)


def edit(index: int, path: str, before: str, after: str | None) -> list[Event]:
    change = FileChange(path=path, before=sha256(before), after=sha256(after) if after is not None else None)
    return make_shell_step(index, f"ed {path}", "[exit code 0]\n", changes=(change,))


def test_the_payload_marks_stale_entries() -> None:
    trace = (
        *read(0, "pkg/core.py", CORE_TEXT),
        *read(2, "pkg/read.py", "x = 1\n"),
        *make_shell_step(4, "grep -rn return_value .", "[exit code 0]\nhit"),
        *make_shell_step(6, "grep -rn nothing_of_it .", "[exit code 1]\n", 1),
        *step(8, "python -m unittest", FAILED, code=1),
        *edit(10, "pkg/core.py", CORE_TEXT, "def f():\n    return 2\n"),
        *step(12, "python -m unittest", PASSED),
        *make_step(14, "shell", {"command": "sleep 99"}, "s", "[stopped]", timed_out=True),
        *make_shell_step(16, "tox", "[exit code 127]\ntox: not found", 127),
    )
    test_record = record(trace, task=record(()).task.model_copy(update={"prompt": "Mend return_value in f."}))
    payload = select_record_payload(test_record, 128_000)
    assert [(f.path, f.stale, f.content) for f in payload.read_files] == [
        ("pkg/core.py", True, CORE_TEXT),
        ("pkg/read.py", False, "x = 1\n"),
    ]
    assert [(p.cmd, p.stale) for p in payload.probe_results] == [("grep -rn return_value .", True)]
    assert [(c.cmd, c.rc, c.stale) for c in payload.ran_commands] == [
        ("python -m unittest", 1, True),
        ("ed pkg/core.py", 0, False),
        ("python -m unittest", 0, False),
        ("sleep 99", None, False),
        ("tox", 127, False),
    ]
    assert [(d.what, d.why) for d in payload.dead_ends] == [
        ("sleep 99", "it did not end in time"),
        ("tox", "this exact command could not run: `tox` was not found under this name"),
    ]
    texts = [message.text for message in find_view("payload")(test_record)]
    assert "- pkg/core.py\n" in texts[-1]
    assert not any("return 1" in text for text in texts), "stale content must not appear as current"
    assert any("x = 1" in text for text in texts)
    assert sum("[stale: files have changed since this was run]" in text for text in texts) == 2


EDITED_TEXT = "def f():\n    return 2\n"


def make_edited_record(text: str = EDITED_TEXT, *later: Event, **changes: Any) -> HandoffRecord:
    trace = (
        *read(0, "pkg/core.py", CORE_TEXT),
        *edit(2, "pkg/core.py", CORE_TEXT, text),
        *edit(4, "pkg/new.py", "", "x = 1\n"),
        *later,
    )
    files = [("pkg/core.py", text), ("pkg/new.py", "x = 1\n")]
    edited = tuple(EditedFile(path=path, sha256=sha256(each), content=each) for path, each in files)
    return record(trace, edited_files=edited, **changes)


def test_edited_files_come_with_their_current_content() -> None:
    test_record = make_edited_record()
    payload = select_record_payload(test_record, 128_000)
    assert [(f.path, f.stale, f.event, f.content) for f in payload.read_files] == [
        ("pkg/core.py", False, None, EDITED_TEXT),
        ("pkg/new.py", False, None, "x = 1\n"),
    ]
    messages = find_view("payload")(test_record, Recipient(protocol="native"))
    check_history(messages, "native")
    texts = [message.text for message in messages]
    assert "pkg/core.py, lines 1 to 2 of 2:\n     1\tdef f():\n     2\t    return 2" in texts
    assert not any("return 1" in text for text in texts)
    assert "stale" not in texts[-1]
    assert "whose content is not among the results above; read them:\nnone" in texts[-1]
    assert build_read_cache(test_record)["pkg/core.py"].content == EDITED_TEXT


def test_a_partial_read_of_an_edited_file_is_completed() -> None:
    reads = (FileRead(path="pkg/core.py", sha256=sha256(EDITED_TEXT)),)
    part = make_shell_step(6, "sed -n 1p pkg/core.py", "[exit code 0]\ndef f():\n", reads=reads)
    found = select_record_payload(make_edited_record(EDITED_TEXT, *part), 128_000).read_files
    assert {file.path: file.content for file in found}["pkg/core.py"] == EDITED_TEXT


def test_a_redacted_edited_file_is_shown_but_not_served_from_the_cache() -> None:
    test_record = make_edited_record()
    hidden = test_record.edited_files[0].model_copy(update={"content": "def f():\n    return '[redacted]'\n"})
    test_record = test_record.model_copy(update={"edited_files": (hidden, *test_record.edited_files[1:])})
    assert any("[redacted]" in message.text for message in find_view("payload")(test_record))
    assert build_read_cache(test_record)["pkg/core.py"].content is None


def test_of_a_long_edited_file_the_changes_are_shown() -> None:
    lines = [f"line {number} {'x' * 40}\n" for number in range(1, 2001)]
    patch = (
        "diff --git a/pkg/core.py b/pkg/core.py\n--- a/pkg/core.py\n+++ b/pkg/core.py\n"
        "@@ -100,3 +100,3 @@\n-a\n+b\n@@ -1500,0 +1500,2 @@\n+c\n+d\n"
    )
    test_record = make_edited_record("".join(lines), patch=patch)
    texts = [message.text for message in find_view("payload")(test_record)]
    assert any(text.startswith("pkg/core.py, lines 40 to 162 of 2000:\n    40\tline 40 ") for text in texts)
    assert any(text.startswith("pkg/core.py, lines 1440 to 1561 of 2000:\n") for text in texts)
    assert not any("line 800 " in text for text in texts)
    for window in (1_000, 4_000, 16_000):
        recipient = Recipient(window_tokens=window)
        tokens = measure_view(find_view("payload")(test_record, recipient)).tokens
        empty = measure_view(find_view("payload")(record(()), recipient)).tokens
        assert tokens - empty < WINDOW_SHARE * window + 200


def test_a_missing_program_that_ran_by_another_name_is_named() -> None:
    trace = (
        *make_shell_step(0, "pylint a.py", "[exit code 127]\nbash: line 1: pylint: command not found", 127),
        *make_shell_step(2, "python -m pylint a.py", "[exit code 0]\nrated at 9/10"),
    )
    (end,) = select_record_payload(record(trace), 128_000).dead_ends
    assert end.why == (
        "this exact command could not run: `pylint` was not found under this name, but `python -m pylint` ran"
    )


def test_a_reverted_edit_is_a_dead_end() -> None:
    first, second = "def f():\n    return 2\n", "def f():\n    return 3\n"
    trace = (
        *edit(0, "a.py", CORE_TEXT, first),
        *edit(2, "a.py", first, CORE_TEXT),
        *edit(4, "a.py", CORE_TEXT, second),
    )
    (end,) = select_record_payload(record(trace), 128_000).dead_ends
    assert (end.what, end.event) == ("an edit of a.py", 3)


def test_the_read_cache_serves_only_complete_files() -> None:
    numbered = "pkg/v.py, lines 1 to 2 of 2:\n     1\tdef f():\n     2\t    return 1"
    part = "pkg/p.py, lines 1 to 1 of 2:\n     1\tdef f():"
    reads = [(FileRead(path=path, sha256=sha256(CORE_TEXT)),) for path in ("pkg/v.py", "pkg/p.py")]
    trace = (
        *read(0, "pkg/core.py", CORE_TEXT),
        *read(2, "pkg/clipped.py", CORE_TEXT, clipped=True),
        *make_step(4, "editor", {"command": "view", "path": "pkg/v.py"}, "v", numbered, reads=reads[0]),
        *make_step(6, "editor", {"command": "view", "path": "pkg/p.py"}, "v", part, reads=reads[1]),
    )
    cache = build_read_cache(record(trace))
    contents = {"core.py": CORE_TEXT, "clipped.py": None, "v.py": CORE_TEXT, "p.py": None}
    assert {path: file.content for path, file in cache.items()} == {
        f"pkg/{k}": v for k, v in contents.items()
    }
    assert all(sha256(file.content) == file.sha256 for file in cache.values() if file.content)


def test_a_payload_omits_searches_first_and_reads_last() -> None:
    trace: list[Event] = []
    for n in range(10):
        trace += make_shell_step(len(trace), f"grep -rn mend_it p{n}", "hit " * 500)
        trace += make_shell_step(len(trace), f"make p{n}", "made " * 400)
        trace += read(len(trace), f"pkg/f{n}.py", "line\n" * 400)
    task = record(()).task.model_copy(update={"prompt": "mend_it"})
    counts = {}
    for window in (2_000, 16_000, 24_000, 40_000, 128_000):
        payload = select_record_payload(record(tuple(trace), task=task), window)
        counts[window] = (len(payload.probe_results), len(payload.ran_commands), len(payload.read_files))
        total_chars = sum(
            len(trace[entry.event].text)
            for entry in (*payload.probe_results, *payload.ran_commands, *payload.read_files)
        )
        assert total_chars <= WINDOW_SHARE * window * 4
    assert counts == {
        2_000: (0, 0, 0),
        16_000: (0, 0, 7),
        24_000: (0, 3, 8),
        40_000: (4, 6, 8),
        128_000: (4, 6, 8),
    }
    assert select_record_payload(record(tuple(trace), task=task), 16_000).read_files[-1].path == "pkg/f9.py"

"""A successor's context in a real takeover: its tools, its history, and the answers to its first reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.views import VIEWS, find_view

from .conftest import DONE, EDIT, FIX, TEST, RunHarness, native_reply, parse_events, scripted_model

LOOK = "```bash\ncat pkg/core.py\n```"
VIEW = '<editor command="view" path="pkg/core.py"/>'
READ_TEST = "```bash\ncat test_core.py\n```"
SAID = {"command": "cat pkg/core.py"}
FINISH = native_reply(("finish", "{}"))


def calling(name: str, /, **arguments: Any) -> Any:
    return native_reply((name, json.dumps(arguments)))


def list_observations(state: Any, tool: str) -> list[str]:
    return [event.text for event in parse_events(state) if (event.kind, event.tool) == ("observation", tool)]


def predecessor(bench: RunHarness, *replies: Any, point: str = "first_validation", **settings: Any) -> str:
    settings = {"points": (point,), "policy": "stop", **settings}
    state = bench.run(scripted_model(*replies, DONE), **settings)
    (record,) = state["records"]
    return record


def recall(protocol: str, what: str) -> Any:
    if protocol == "native":
        return calling("recall", what=what)
    return f"```json\n{json.dumps({'name': 'recall', 'arguments': {'what': what}})}\n```"


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_the_cited_view_comes_with_the_tool_that_recalls(bench: RunHarness, protocol: str) -> None:
    record = predecessor(bench, LOOK, EDIT, TEST)
    model = scripted_model(
        recall(protocol, "e5"), recall(protocol, "assertEqual"), FINISH if protocol == "native" else DONE
    )
    state = bench.take_over(model, "cited", record, protocol=protocol)
    by_name, by_words = list_observations(state, "recall")
    assert "FAILED (failures=1)" in by_name
    assert by_name.startswith("<earlier-work id=")
    assert by_name.partition("\n")[2].startswith("## e5 · sandbox · observation · shell\n")
    assert "## e5 · " in by_words
    assert [event.tool for event in parse_events(state)][:4] == ["recall"] * 4
    assert not any(event.changes for event in parse_events(state))
    first = model.seen[0]
    assert "are events of the earlier work, from e0 to e5" in first[1].text
    if protocol == "native":
        assert "recall" in {each["function"]["name"] for each in model.tools}
    else:
        assert "- `recall`: " in first[0].text
    assert by_name in model.seen[1][-1].text


@pytest.mark.slow
@pytest.mark.parametrize("view", [view for view in VIEWS if view != "cited"])
def test_other_views_come_without_the_recall_tool(bench: RunHarness, view: str) -> None:
    record = predecessor(bench, EDIT, point="first_source_edit")
    model = scripted_model(
        *(recall("text", "e1"), DONE)[: 1 if view == "transcript" else 2], DONE, DONE, DONE
    )
    state = bench.take_over(model, view, record)
    assert "recall" not in model.seen[0][0].text
    assert list_observations(state, "recall") == []


@pytest.mark.cases(2)
@pytest.mark.parametrize("first", ["text", "native"])
@pytest.mark.parametrize("second", ["text", "native"])
@pytest.mark.parametrize("view", ["transcript", pytest.param("payload", marks=pytest.mark.slow)])
def test_history_is_replayed_in_the_successors_own_protocol(
    bench: RunHarness, view: str, first: Any, second: Any
) -> None:
    taken = {
        "text": (LOOK, EDIT, TEST),
        "native": (
            calling("shell", **SAID),
            calling("shell", command="sed -i 's/n + 1/n * 3/' pkg/core.py"),
            calling("shell", command="python3 -m unittest -q"),
        ),
    }
    record = predecessor(bench, *taken[first], protocol=first)
    done = FINISH if second == "native" else DONE
    model = scripted_model(*[done] * 5)
    state = bench.take_over(model, view, record, protocol=second)
    assert state["stop_reason"] == "finished"
    sent = model.seen[0]
    assert isinstance(sent[1], HumanMessage)
    assert isinstance(sent[-1], HumanMessage)
    assert sent[-1].text.endswith("  Trailing spaces stay.  \n")
    replies = [message for message in sent if isinstance(message, AIMessage)]
    answers = [message for message in sent if isinstance(message, ToolMessage)]
    assert len(replies) == 3
    assert len(answers) == (len(replies) if second == "native" else 0)
    assert all(bool(reply.tool_calls) == (second == "native") for reply in replies)
    assert any("FAILED (failures=1)" in message.text for message in sent)


@pytest.mark.slow
def test_the_read_cache_serves_files_that_are_as_the_predecessor_left_them(bench: RunHarness) -> None:
    record = predecessor(bench, READ_TEST, LOOK, EDIT, TEST)
    state = bench.take_over(
        scripted_model(*[DONE] * 4, READ_TEST, READ_TEST, LOOK, LOOK, DONE), "payload", record
    )
    assert state["stop_reason"] == "finished"  # the payload's own messages come before the replies
    state = bench.take_over(
        scripted_model(*[""] * 4, READ_TEST, READ_TEST, LOOK, "```bash\nsed -n 1,2p pkg/core.py\n```", DONE),
        "payload",
        record,
    )
    tests, again, core, core_again = list_observations(state, "shell")
    heading = "[unchanged since the earlier agent read it at e1: test_core.py]\n"
    assert tests.startswith(f"[exit code 0]\n{heading}import unittest\n")
    assert tests.replace(heading, "") == again
    assert core.startswith("[exit code 0]\n[unchanged since the earlier agent handed it over: pkg/core.py]\n")
    assert "return n * 3" in core
    assert "stale" not in core_again
    reads = [read.path for event in parse_events(state) for read in event.reads]
    assert reads == ["test_core.py", "test_core.py", "pkg/core.py", "pkg/core.py"]


@pytest.mark.slow
def test_the_editor_reads_from_the_cache_too(bench: RunHarness) -> None:
    record = predecessor(bench, VIEW, READ_TEST, TEST, point="requested", max_steps=3)
    part = '<editor command="view" path="pkg/core.py" start="2" end="2"/>'
    state = bench.take_over(scripted_model(*[""] * 3, part, VIEW, EDIT, DONE), "payload", record)
    first, second = list_observations(state, "editor")
    assert first == (
        "[unchanged since the earlier agent read it at e1: pkg/core.py]\n"
        "pkg/core.py, lines 2 to 2 of 2:\n     2\t    return n + 1"
    )
    assert second.startswith("pkg/core.py, lines 1 to 2 of 2:\n")


def test_a_file_changed_before_its_first_read_is_stale(bench: RunHarness) -> None:
    record = predecessor(bench, LOOK, READ_TEST, TEST, point="requested", max_steps=3)
    state = bench.take_over(scripted_model(*[""] * 3, EDIT, LOOK, DONE), "payload", record)
    assert "[stale: pkg/core.py" in list_observations(state, "shell")[-1]
    assert "return n * 3" in list_observations(state, "shell")[-1]


@pytest.mark.slow
@pytest.mark.parametrize("view", [view for view in VIEWS if view != "payload"])
def test_a_payload_replaces_the_read_cache(bench: RunHarness, view: str) -> None:
    record = predecessor(bench, READ_TEST, EDIT, point="first_source_edit")
    skipped = 2 if view == "transcript" else 0
    state = bench.take_over(scripted_model(*[""] * skipped, READ_TEST, DONE), view, record)
    assert list_observations(state, "shell")[0].startswith("[exit code 0]\nimport unittest")


@pytest.mark.slow
def test_a_successors_own_record_contains_all_the_work(bench: RunHarness) -> None:
    first = predecessor(bench, LOOK, EDIT, point="first_source_edit")
    state = bench.take_over(
        scripted_model(TEST, FIX, TEST, DONE),
        "repository",
        first,
        points=("first_validation",),
        run_id="second",
    )
    (second,) = state["records"]
    before, record = bench.store.load(first), bench.store.load(second)
    assert record.trace[: len(before.trace)] == before.trace
    assert [event.index for event in record.trace] == list(range(len(record.trace)))
    assert record.point.event_index == len(record.trace) - 1
    assert Evidence(record).source_files == ("pkg/core.py",)
    assert (Evidence(record).only_in_trace, Evidence(record).only_in_snapshot) == ((), ())
    assert "**Files already read:**\n- pkg/core.py (agent 1)\n" in find_view("structured")(record)[0].text
    third = bench.take_over(scripted_model(FIX, TEST, DONE), "structured", second)
    assert third["stop_reason"] == "finished"


def test_the_files_of_the_sandbox_are_listed_with_the_record(bench: RunHarness) -> None:
    record = predecessor(
        bench,
        "```bash\nmkdir -p 'a b' && touch 'a b/c' && ln -s nowhere link\n```",
        EDIT,
        point="first_source_edit",
    )
    assert bench.store.load(record).files == (
        "a b/c",
        "link",
        "pkg/__init__.py",
        "pkg/core.py",
        "test_core.py",
    )


def test_a_record_keeps_the_current_content_of_edited_files(bench: RunHarness) -> None:
    scratch = "```bash\necho 'print(1)' >made.py; printf 'a\\0b' >made.bin\n```"
    record = bench.store.load(predecessor(bench, LOOK, scratch, EDIT, TEST))
    assert [(file.path, file.content) for file in record.edited_files] == [
        ("pkg/core.py", "def double(n):\n    return n * 3\n"),
        ("made.py", "print(1)\n"),
    ]
    changed = {change.path: change.after for event in record.trace for change in event.changes}
    assert all(file.sha256 == changed[file.path] for file in record.edited_files)
    texts = [message.text for message in find_view("payload")(record)]
    shown = "pkg/core.py, lines 1 to 2 of 2:\n     1\tdef double(n):\n     2\t    return n * 3"
    assert sum(shown in text for text in texts) == 1
    assert not any("return n + 1" in text for text in texts)

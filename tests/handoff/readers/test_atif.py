"""ATIF documents of other programs lose nothing that a trace can hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.readers.atif import parse_text_calls
from langgraph_takeover.handoff.trace.atif_documents import build_document
from langgraph_takeover.handoff.trace.events import Trace

from .atif_examples import EXAMPLES, TASK, call, document, keys, reply


def read(tmp_path: Path, data: Any) -> list[Trace]:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data))
    traces = [trace for trace in read_traces(path) if isinstance(trace, Trace)]
    assert traces
    return traces


def summarize(trace: Trace) -> list[tuple[str, ...]]:
    """Tool and argument or answer of each event; the first line only."""
    return [
        (event.tool, event.arguments.get("command", "")) if event.kind == "action" else ("→", event.text)
        for event in trace.events
    ]


EXPECTED = {
    "calls of one reply": [
        ("editor", "view"), ("→", "x = 1"), ("shell", "pytest -q"), ("→", "1 failed in 0.1s\n[exit_code] 1"),
        ("editor", "str_replace"), ("→", "The file /app/src/a.py has been updated."),
        ("unreadable", ""), ("→", "All of them."), ("shell", "pytest -q"), ("→", "1 passed in 0.1s"), ("unreadable", ""),
    ],
    "thought by a call": [
        ("editor", "str_replace"), ("→", "The file /app/src/a.py has been edited."), ("finish", ""),
    ],
    "functions as text": [
        ("shell", "cat > /app/src/a.py <<'EOF'\nx = 2\nEOF"), ("→", "[The command completed with exit code 0.]"),
        ("unreadable", ""), ("→", "Please call a function."), ("finish", ""),
    ],
    "keystrokes as calls": [
        ("shell", "echo 'x = 2' > src/a.py"), ("→", ""), ("shell", "pytest -q"),
        ("→", "New Terminal Output:\n1 passed in 0.10s"), ("finish", ""),
    ],
    "keystrokes as JSON": [
        ("shell", "echo 'x = 2' > src/a.py"), ("→", ""), ("shell", "pytest -q"), ("→", "1 passed in 0.10s"),
        ("unreadable", ""), ("→", "ERROR: Missing required fields"), ("finish", ""), ("→", "Are you sure?"),
    ],
    "keystrokes as tags": [
        ("shell", "echo 'x = 2' > src/a.py"), ("→", ""), ("shell", "pytest -q"), ("→", "1 passed in 0.10s"), ("finish", ""),
    ],
    "a block as text": [
        ("shell", "ls"), ("→", "<returncode>0</returncode>\n<output>\na.py</output>"),
        ("unreadable", ""), ("→", "EXACTLY ONE action, please"),
    ],
    "images and audio": [("screenshot", ""), ("→", "shown\n[image: images/1.png]\n[audio: sound/1.wav]")],
    "results of several kinds": [
        ("shell", "make"), ("→", "one\n\ntwo"), ("shell", "ls"), ("→", "without an id\n\nmore"),
    ],
    "embedded subagents": [("task", ""), ("→", "a.py")],
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_is_lost(name: str, tmp_path: Path) -> None:
    data = EXAMPLES[name]
    trace, *_ = read(tmp_path, data)
    assert summarize(trace) == EXPECTED[name]
    requests = [step["message"] for step in data["steps"] if step["source"] == "user"]
    assert trace.task == "\n\nThe user said later:\n\n".join(requests)
    assert (requests[0], trace.format, trace.model) == (TASK, "atif", "vendor/model")
    assert (trace.agent, trace.agent_version) == (data["agent"]["name"], "1.2.3")
    replies = [step for step in data["steps"] if step["source"] == "agent"]
    texts = "\n".join(event.text for event in trace.events)
    for step in replies:
        message = step["message"] if isinstance(step["message"], str) else step["message"][0]["text"]
        assert message in texts
    for kind in ("prompt_tokens", "completion_tokens"):
        expected = sum(step.get("metrics", {}).get(kind, 0) for step in replies)
        assert sum(getattr(event.usage, kind) for event in trace.events if event.usage) == expected
    assert read(tmp_path, build_document(trace)) == [trace]


def test_edits_and_exit_codes_are_found(tmp_path: Path) -> None:
    def changed(name: str) -> list[str]:
        (trace, *_) = read(tmp_path, EXAMPLES[name])
        return [change.path for event in trace.events for change in event.changes]

    for name in list(EXAMPLES)[:6]:
        assert changed(name) == ["src/a.py"], name
    (trace,) = read(tmp_path, EXAMPLES["calls of one reply"])
    assert [
        event.exit_code for event in trace.events if event.tool == "shell" and event.kind == "observation"
    ] == [1, None]
    assert "private" not in trace.model_dump_json()
    assert "x is wrong" in read(tmp_path, EXAMPLES["thought by a call"])[0].events[0].text


def test_an_embedded_subagent_is_a_run_of_its_own(tmp_path: Path) -> None:
    parent, child = read(tmp_path, EXAMPLES["embedded subagents"])
    assert (parent.id, child.id) == ("parent", "child")
    assert summarize(child) == [("shell", "ls"), ("→", "a.py")]


def test_tokens_of_a_reply_without_a_call_belong_to_the_next_one(tmp_path: Path) -> None:
    (trace,) = read(tmp_path, EXAMPLES["calls of one reply"])
    first = trace.events[0]
    assert first.usage is not None
    assert (first.usage.prompt_tokens, first.text) == (15, "First the tests.")


def test_malformed_steps_are_left_out(tmp_path: Path) -> None:
    data = document("terminus-2", reply(keys("ls"), results=[{"content": "a"}]))
    data["steps"] += [
        None,
        {"source": "agent", "message": None, "tool_calls": "x", "observation": [], "metrics": 3},
        {"source": "agent", "tool_calls": [None, {"arguments": 1}], "observation": {"results": [1]}},
    ]
    data["subagent_trajectories"] = [None, {"steps": 3}, 5]
    (trace,) = read(tmp_path, data)
    assert summarize(trace)[:2] == [("shell", "ls"), ("→", "a")]


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("openhands", "<function=" * 200_000),
        ("openhands", "<function=a>" * 200_000),
        ("openhands", "<function=a>" + "<parameter=b>" * 200_000 + "</function>"),
        ("terminus-2", "<keystrokes>" * 200_000),
        ("terminus-2", "<task_complete>" + " " * 2_000_000),
        ("terminus-2", "[" * 200_000),
        ("other", "<function=a></function>"),
    ],
)
def test_hostile_text_is_no_call(agent: str, message: str) -> None:
    assert not [call for call in parse_text_calls(agent, message) or () if call.arguments]


def test_calls_without_results_have_none(tmp_path: Path) -> None:
    data = document(
        "other", reply("", call(1, "Bash", {"command": "a"}, "x"), call(2, "Bash", {"command": "b"}))
    )
    assert summarize(read(tmp_path, data)[0]) == [("shell", "a"), ("→", "x"), ("shell", "b")]

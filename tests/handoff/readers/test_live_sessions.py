"""Sessions as agents leave them while they work: open calls, results before calls, output in the background, summaries."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.agents.session_files import SessionFile, find_prompt
from langgraph_takeover.handoff.interop.session_records import list_other_sessions
from langgraph_takeover.handoff.points.annotations import annotate_steps
from langgraph_takeover.handoff.readers import parse_trace
from langgraph_takeover.handoff.text.tool_wrappers import find_rerun_alias, strip_wrapper
from langgraph_takeover.handoff.trace.events import Trace

from .session_rows import (
    Row,
    claude_call,
    claude_result,
    claude_rows,
    codex_call,
    codex_meta,
    codex_request,
    codex_result,
    codex_row,
    list_actions,
    list_observations,
    opencode_call,
    opencode_session,
    parse_rows,
    text_part,
)

OUTPUT = "/tmp/claude-0/x/tasks/{}.output"
STARTED = "Command running in background with ID: {0}. Output is being written to: /tmp/claude-0/x/tasks/{0}.output."
FAILED = "F [100%]\n=== FAILURES ===\nE   assert 1 == 2\nFAILED test_a.py::test_a\n1 failed in 0.03s"


def codex_ended(call_id: str, output: str) -> Row:
    return codex_result(call_id, f"Wall time: 0.1 seconds\nProcess exited with code 0\nOutput:\n{output}")


def codex_rows(*rows: Row) -> list[Row]:
    return [codex_meta(), *rows]


def qwen(*parts: tuple[str, Row]) -> list[Row]:
    return [
        {"type": kind, "uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number else None, "sessionId": "s",
         "cwd": "/repo", "message": {"parts": [part]}}
        for number, (kind, part) in enumerate(parts)
    ]  # fmt: skip


def qwen_call(call_id: str, command: str) -> tuple[str, Row]:
    made = {"id": call_id, "name": "run_shell_command", "args": {"command": command}}
    return "assistant", {"functionCall": made}


def qwen_result(call_id: str, output: str) -> tuple[str, Row]:
    made = {"id": call_id, "name": "run_shell_command", "response": {"output": output}}
    return "tool_result", {"functionResponse": made}


def outputs(trace: Trace) -> list[tuple[str, str]]:
    """Each command with the text of its result."""
    texts = {event.index - 1: event.text for event in list_observations(trace)}
    return [(each.arguments.get("command", ""), texts.get(each.index, "")) for each in list_actions(trace)]


def test_a_result_before_its_call_is_paired() -> None:
    rows = claude_rows(
        "Do it.",
        claude_call("a", command="one"),
        claude_result("a", "1"),
        claude_call("b", command="two"),
        claude_result("b", "2"),
    )
    rows[3], rows[4] = rows[4], rows[3]
    assert outputs(parse_trace(rows)) == [("one", "1"), ("two", "2")]
    items = (
        codex_request("Do it."),
        codex_ended("a", "1"),
        codex_call("a", cmd="one"),
        codex_call("b", cmd="two"),
    )
    assert [(c, t[-1:]) for c, t in outputs(parse_rows(codex_meta(), *items))] == [("one", "1"), ("two", "")]
    parts = (("user", {"text": "Do it."}), qwen_result("a", "1"), qwen_call("a", "one"))
    assert outputs(parse_trace(qwen(*parts))) == [("one", "1")]


def test_an_edit_whose_result_comes_first_is_seen() -> None:
    edit = claude_call("a", "Write", file_path="/repo/app.py", content="x = 1\n")
    rows = claude_rows("Do it.", claude_result("a", "File created successfully at: /repo/app.py"), edit)
    assert [c.path for event in parse_trace(rows).events for c in event.changes] == ["app.py"]


def test_reused_ids_stay_with_their_own_results() -> None:
    twice = (
        claude_call("x", command="one"),
        claude_result("x", "1"),
        claude_result("x", "1"),
        claude_call("x", command="two"),
        claude_result("x", "2"),
    )
    assert outputs(parse_trace(claude_rows("Do it.", *twice))) == [("one", "1"), ("two", "2")]
    early = (
        claude_call("x", command="one"),
        claude_result("x", "1"),
        claude_result("x", "2"),
        claude_call("x", command="two"),
    )
    assert outputs(parse_trace(claude_rows("Do it.", *early))) == [("one", "1"), ("two", "2")]
    # A result before all calls with its id, of which several wait, belongs to none of them for certain.
    unclear = (claude_result("x", "?"), claude_call("x", command="one"), claude_call("x", command="two"))
    assert outputs(parse_trace(claude_rows("Do it.", *unclear))) == [("one", ""), ("two", "")]


RUNNING = "command that runs or waits for permission: "
NO_END = "turn without an end: the agent had not replied to the last result"


@pytest.mark.parametrize(
    ("rows", "pending"),
    [
        (claude_rows("Do it.", claude_call("a", command="make")), (f"{RUNNING}make",)),
        (claude_rows("Do it.", claude_call("a", command="make"), claude_result("a", "ok")), (NO_END,)),
        (claude_rows("Do it.", claude_call("a", command="make"), claude_result("a", "ok"), text_part("Done.")), ()),
        (claude_rows("Do it.", text_part("Done."), "And this."), ("request without a reply: And this.",)),
        (claude_rows("Do it.", claude_call("a", command="make"), claude_result("a", "no"), "[Request interrupted by user]"), ()),
        (claude_rows("Do it.", claude_call("a", command="make"), "Go on.", text_part("Yes.")), ()),
        (
            claude_rows("Do it.", claude_call("a", "AskUserQuestion", questions=["Which?"])),
            ('question without an answer: {"questions": "[\\"Which?\\"]"}',),
        ),
        (claude_rows("Do it.", claude_call("a", "Agent", prompt="p")), ('call without a result: Agent {"prompt": "p"}',)),
        (codex_rows(codex_request("Do it."), codex_call("a", cmd="make")), (f"{RUNNING}make",)),
        (
            codex_rows(codex_request("Do it."), codex_call("a", cmd="one"), codex_call("b", cmd="two"), codex_ended("a", "")),
            (f"{RUNNING}two",),
        ),
        (
            codex_rows(codex_request("Do it."), codex_call("a", cmd="one"), codex_row("event_msg", type="turn_aborted")),
            (),
        ),
        (qwen(("user", {"text": "Do it."}), qwen_call("a", "make")), (f"{RUNNING}make",)),
    ],
)  # fmt: skip
def test_what_is_open_at_the_end(rows: Any, pending: tuple[str, ...]) -> None:
    trace = parse_trace(rows)
    assert trace.pending == pending


def test_an_open_tool_of_opencode() -> None:
    call = opencode_call("bash", status="running", input={"command": "make"})
    assert parse_trace(opencode_session(call)).pending == (f"{RUNNING}make",)


NOTES = [
    "[rerun: b7]",
    "Shell cwd was reset to /repo",
    "[This command modified 1 file you've previously read: /repo/a.py. Call Read before editing.]",
    "<system-reminder>GitHub API rate limit exceeded (5,000/hr).</system-reminder>",
    "[While this command ran, the kernel killed at least one process for lack of memory.]",
]


@pytest.mark.parametrize("note", [*NOTES, "\n".join(NOTES)])
def test_notes_of_claude_code_are_no_output(note: str) -> None:
    assert strip_wrapper(f"Exit code 1\n1 failed in 1s\n{note}") == "1 failed in 1s"
    assert strip_wrapper(note) == ""
    rows = claude_rows(
        "Do it.",
        claude_call("a", command="pytest -q"),
        claude_result("a", f"Exit code 1\n{FAILED}\n{note}", is_error=True),
    )
    (run,) = [s.validation for s in annotate_steps(parse_trace(rows)) if s.validation]
    assert run.outcome == "failed"


def test_output_that_only_looks_like_a_note_stays() -> None:
    b7 = "[rerun: b7]"
    for text in (f"{b7} said the program", f"a {b7}", f"{b7}\nmore", "[rerun: c7]", "[100%]"):
        assert strip_wrapper(text) == text
        assert find_rerun_alias(text) == ""


def test_a_command_is_repeated_by_its_name() -> None:
    first = (
        claude_call("a", command="pytest -q"),
        claude_result("a", "ok\n[rerun: b7]"),
        claude_call("b", rerun="b7"),
    )
    trace = parse_trace(claude_rows("Do it.", *first, claude_result("b", "ok")))
    assert [command for command, _ in outputs(trace)] == ["pytest -q", "pytest -q"]
    assert not trace.unknown_forms


@pytest.mark.parametrize(
    "notice",
    [
        STARTED.format("b1"),
        "Command did not complete within its 120s timeout and was moved to the background (ID: b1). Output is",
        "collected 2 items\nCommand was moved to the background (ID: b1) so that a message can reach you.",
        '{"resultType":"task","taskId":"b1","status":"working","statusMessage":"Command …"}',
    ],
)
def test_a_command_that_went_to_the_background_has_no_exit_code(notice: str) -> None:
    trace = parse_trace(
        claude_rows("Do it.", claude_call("a", command="pytest -q"), claude_result("a", notice))
    )
    assert trace.running == ("pytest -q",)
    assert [event.exit_code for event in list_observations(trace)] == [None]


NUMBERED = "\n".join(f"{number}\t{line}" for number, line in enumerate(FAILED.split("\n"), 1))


@pytest.mark.parametrize(
    ("look", "text"),
    [
        (claude_call("z", command=f"cat {OUTPUT.format('b1')}"), FAILED),
        (claude_call("z", command=f"sleep 5; tail -20 {OUTPUT.format('b1')}"), FAILED),
        (claude_call("z", "Read", file_path=OUTPUT.format("b1")), NUMBERED),
        (
            claude_call("z", "TaskOutput", task_id="b1"),
            f"<task_id>b1</task_id>\n<output>\n{FAILED}\n</output>",
        ),
    ],
)
def test_the_output_of_a_background_run_is_its_result(look: dict[str, Any], text: str) -> None:
    rows = claude_rows(
        "Do it.",
        claude_call("a", command="python -m pytest -q", run_in_background=True), claude_result("a", STARTED.format("b1")),
        claude_call("b", command="npm test", run_in_background=True), claude_result("b", STARTED.format("b2")),
        claude_call("c", command="ls"), claude_result("c", "app.py"),
        look, claude_result("z", text),
    )  # fmt: skip
    runs = [step.validation for step in annotate_steps(parse_trace(rows)) if step.validation]
    assert [(run.command, run.outcome, run.event_index) for run in runs] == [
        ("python -m pytest -q", "unknown", 1),
        ("npm test", "unknown", 3),
        ("python -m pytest -q", "failed", 7),
    ]


def summarized(direction: str, logical: str, tail: str) -> Trace:
    """One of two requests was summarized at the user's wish; another request follows."""
    rows = claude_rows(
        "First.", claude_call("a", "Write", file_path="/repo/a.txt", content="a"), claude_result("a", "ok"), text_part("Done."),
        "Second.", claude_call("b", "Write", file_path="/repo/b.txt", content="b"), claude_result("b", "ok"), text_part("Done."),
    )  # fmt: skip
    boundary = {
        "type": "system", "subtype": "compact_boundary", "uuid": "c", "parentUuid": None, "logicalParentUuid": logical,
        "sessionId": "s", "compactMetadata": {"preservedSegment": {"headUuid": "u0", "tailUuid": tail}},
    }  # fmt: skip
    (summary,) = claude_rows("This session is being continued from …")
    summary |= {
        "uuid": "d", "parentUuid": "c", "isCompactSummary": True, "summarizeMetadata": {"direction": direction},
    }  # fmt: skip
    (third,) = claude_rows("Third.")
    return parse_trace([*rows, boundary, summary, {**third, "uuid": "e", "parentUuid": "d"}])


@pytest.mark.parametrize(("direction", "logical", "tail"), [("from", "u3", "u3"), ("up_to", "u3", "u7")])
def test_a_summary_of_a_part_withdraws_nothing(direction: str, logical: str, tail: str) -> None:
    trace = summarized(direction, logical, tail)
    assert trace.task.replace("The user said later:", "").split() == ["First.", "Second.", "Third."]
    assert trace.withdrawn_actions == 0


def test_going_back_to_a_queued_request_withdraws_it() -> None:
    rows = claude_rows("First.", claude_call("a", command="one"), claude_result("a", "1"))
    queued = {
        "type": "attachment", "uuid": "q", "parentUuid": "n", "sessionId": "s",
        "attachment": {"type": "queued_command", "prompt": "Second."},
    }  # fmt: skip
    note = queued | {"uuid": "n", "parentUuid": "u2", "attachment": {"type": "note"}}
    (reply,) = claude_rows(claude_call("b", command="two"))
    (third,) = claude_rows("Third.")
    later = [{**reply, "uuid": "r", "parentUuid": "q"}, {**third, "uuid": "t", "parentUuid": "n"}]
    trace = parse_trace([*rows, note, queued, *later])
    assert trace.task == "First.\n\nThe user said later:\n\nThird."
    assert trace.withdrawn_actions == 1


def test_the_prompt_at_which_claude_code_waits(tmp_path: Path) -> None:
    found = SessionFile("claude-code", "s1", tmp_path / "s1.jsonl", 0.0)
    assert find_prompt(found, tmp_path) == ""
    directory = tmp_path / ".claude/sessions"
    directory.mkdir(parents=True)
    (directory / "1.json").write_text("{damaged")
    (directory / "2.json").write_text(json.dumps({"sessionId": "s2", "status": "waiting", "waitingFor": "x"}))
    state = {"sessionId": "s1", "status": "waiting", "waitingFor": "permission\nprompt"}
    (directory / "3.json").write_text(json.dumps(state))
    assert find_prompt(found, tmp_path) == "permission prompt"
    (directory / "3.json").write_text(json.dumps(state | {"status": "busy"}))
    assert find_prompt(found, tmp_path) == ""


def test_other_recent_sessions_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    repository = tmp_path / "repo"
    repository.mkdir()
    now = 1_000_000.0
    sessions = (("a", repository, 60), ("b", repository, 2 * 86400), ("c", tmp_path / "x", 60))
    for name, directory, age in sessions:
        path = tmp_path / f".claude/projects/p/{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"cwd": str(directory)}))
        os.utime(path, (now - age, now - age))
    chosen = SessionFile("codex", "z", None, now)
    assert [each.id for each in list_other_sessions(chosen, repository, tmp_path, now)] == ["a"]

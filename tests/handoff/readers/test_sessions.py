"""Sessions of external agents: those of the real programs, rare rows of their formats, and the labelled replays."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.evals.reports.detector_labels import (
    POINT_KINDS,
    find_label,
    read_labels,
    score_trace,
    sum_scores,
)
from langgraph_takeover.handoff.agents import claude_code, codex, opencode, qwen_code
from langgraph_takeover.handoff.points.annotations import annotate_steps
from langgraph_takeover.handoff.readers import TraceError, parse_trace, read_traces
from langgraph_takeover.handoff.trace.conversation import build_messages, list_steps
from langgraph_takeover.handoff.trace.events import Trace

from ...random_examples import examples
from . import session_archive
from .session_rows import (
    SESSIONS,
    Row,
    claude_call,
    claude_result,
    claude_row,
    claude_rows,
    codex_call,
    codex_item,
    codex_meta,
    codex_request,
    codex_result,
    codex_row,
    list_actions,
    list_commands,
    list_edits,
    list_observations,
    list_points,
    load,
    load_rows,
    read_one,
)

FILES = (
    "codex.jsonl",
    "codex-compacted.jsonl",
    "codex-scripts.jsonl",
    "claude-code.jsonl",
    "qwen-code.jsonl",
)
OWN_SESSIONS = (*FILES, "opencode.json")


def observations(trace: Trace) -> list[tuple[str, int | None, bool]]:
    """Tool, exit code and refusal of each observation."""
    return [(event.tool, event.exit_code, event.refused) for event in list_observations(trace)]


def identify(trace: Trace) -> tuple[str, str, str]:
    """Agent, model and directory."""
    return f"{trace.agent} {trace.agent_version}", trace.model, trace.workspace


def test_codex_resumed_after_an_interruption() -> None:
    trace = load("codex.jsonl")
    assert (trace.format, *identify(trace)) == ("codex", "codex 0.169.0", "gpt-5.5", "/testbed")
    assert trace.task == "Fix add.\n\nThe user said later:\n\nContinue."
    first, second = trace.events[0], trace.events[2]
    assert first.text.startswith("First the tests.\n\nI look at the code.\n\n```bash\ncat pkg/calc.py")
    assert first.usage is not None
    assert (first.usage.prompt_tokens, first.usage.cached_tokens, second.usage) == (1000, 900, None)
    assert second.arguments == {"command": "cd /testbed/pkg && ls"}
    # The interrupted call is the last one before the session was resumed, and has no observation.
    killed = next(e for e in trace.events if e.arguments.get("command") == "kill -9 $PPID")
    assert trace.events[killed.index + 1].kind == "action"
    poll = next(e for e in trace.events if e.arguments.get("is_input") == "true")
    assert trace.events[poll.index + 1].exit_code == 1
    assert list_points(trace) == {
        "first_source_edit": 4,
        "first_validation": 6,
        "first_post_failure_edit": 10,
    }
    assert list_edits(trace) == [["pkg/calc.py"], ["pkg/calc.py", "pkg/sums.py"], ["test_calc.py"]]
    assert trace.events[-1].tool == "finish"
    assert trace.events[-1].arguments == {"message": "The sum is right now."}


def test_compaction_keeps_the_increments() -> None:
    trace = load("codex-compacted.jsonl")
    assert [each.split()[0] for each in list_commands(trace)] == ["cat", "apply_patch", "python3", "finish"]
    assert "Summary" not in "".join(e.text for e in trace.events)
    assert trace.task == "Fix add."


def test_claude_code_resumed_after_an_interruption() -> None:
    trace = load("claude-code.jsonl")
    assert trace.format == "claude-code"
    assert identify(trace)[:2] == ("claude-code 2.1.197", "claude-sonnet-4-5")
    assert trace.task == "Fix add.\n\nThe user said later:\n\nContinue."
    assert trace.events[0].text.startswith("First the tests.\n\nI look at the code.\n\n<editor")
    assert trace.events[0].usage is not None
    assert trace.events[0].usage.prompt_tokens == 1007
    # `cd pkg` lasts: the next command starts in that directory.
    test = next(e for e in trace.events if "cd .." in e.arguments.get("command", ""))
    answer = trace.events[test.index + 1]
    assert (answer.cwd, answer.exit_code) == ("pkg", 1)
    assert list_points(trace) == {"first_source_edit": 4, "first_validation": 11}
    assert list_edits(trace) == [["pkg/calc.py"], ["pkg/calc.py"]]
    # Claude Code reports no exit code for a search without a match.
    assert observations(trace)[-1] == ("shell", 1, False)
    assert "No response requested" not in "".join(e.text for e in trace.events)


def test_qwen_code() -> None:
    trace = load("qwen-code.jsonl")
    assert (*identify(trace)[:2], trace.task) == ("qwen-code 0.15.10", "m", "Fix the bug.")
    found = observations(trace)
    assert found[:4] == [("shell", code, False) for code in (1, 0, None, None)]
    assert [event.timed_out for event in list_observations(trace, "shell")] == [False, False, True, False]
    assert ("editor", None, True) in found
    assert list_edits(trace) == [["q.py"], ["q.py"]]
    assert trace.events[2].arguments["command"] == "cd /testbed/sub && echo two >&2"


def test_opencode() -> None:
    trace = load("opencode.json")
    assert identify(trace) == ("opencode 1.18.33", "m", "/testbed")
    found = observations(trace)
    assert found[:3] == [("shell", 1, False), ("shell", 0, False), ("shell", None, False)]
    assert ("editor", None, True) in found
    assert ("invalid", None, True) in found
    assert list_edits(trace) == [["o.py"], ["o.py"]]
    assert trace.events[0].usage is not None
    assert trace.events[0].usage.prompt_tokens == 101


@pytest.mark.parametrize("name", OWN_SESSIONS)
def test_every_call_survives_a_conversation(name: str) -> None:
    trace = load(name)
    messages = build_messages(list_steps(trace.events), "native")
    assert len(messages) == 2 * sum(event.kind == "action" for event in trace.events)


def call(number: int, name: str, **arguments: Any) -> Row:
    return claude_row("assistant", [claude_call(f"t{number}", name, **arguments)], number)


def result(number: int, of: int, content: Any, *, block: Row | None = None, **fields: Any) -> Row:
    return claude_row("user", claude_result(f"t{of}", content, **(block or {})), number, **fields)


def test_rare_rows_of_claude_code() -> None:
    repeated = call(4, "Bash", command="make test", run_in_background=True)
    started = "Command running in background with ID: b1. Output is being written to: /tmp/claude-0/x/tasks/b1.output."
    done = "<task_id>b1</task_id>\n<status>completed</status>\n<exit_code>2</exit_code>\n<output>\n1 failed in 1s\n</output>"
    rows = [
        {"type": "summary", "summary": "An older session", "leafUuid": "x"},
        claude_row("user", "<command-name>/clear</command-name>", 1),
        claude_row("user", [{"type": "text", "text": "<system-reminder>CLAUDE.md</system-reminder>\nFix it."}], 2),
        claude_row("user", "Look for it.", 3, isSidechain=True),
        {**call(30, "Bash", command="ls"), "isSidechain": True},
        repeated,
        result(5, 4, started),
        repeated,
        call(6, "TaskOutput", task_id="b1"),
        result(7, 6, done),
        claude_row("user", "This session is being continued from an earlier one.", 8, isCompactSummary=True),
        call(9, "MultiEdit", file_path="/repo/src/a.py", edits=[{"old_string": "a", "new_string": "b"}]),
        result(10, 9, "Applied 1 edit to /repo/src/a.py"),
        call(11, "Bash", command="sleep 100"),
        result(12, 11, "[Request interrupted by user for tool use]", block={"is_error": True}),
        claude_row("user", "[Request interrupted by user for tool use]", 13),
        call(14, "Bash", command="sleep 9"),
        result(15, 14, "start", toolUseResult={"stdout": "start", "stderr": "", "interrupted": True}),
        {"type": "attachment", "uuid": "q", "sessionId": "s", "attachment": {"type": "queued_command", "prompt": "Also b."}},
        call(16, "NotebookEdit", notebook_path="/repo/n.ipynb", new_source="x = 1"),
        claude_row("assistant", [{"type": "text", "text": "API Error"}], 17, isApiErrorMessage=True),
    ]  # fmt: skip
    trace = parse_trace(rows)
    assert trace.task == "Fix it.\n\nThe user said later:\n\nAlso b."
    assert list_commands(trace) == ["make test", "", "edit", "sleep 100", "sleep 9", "edit"]
    assert [(e.exit_code, e.refused, e.timed_out) for e in list_observations(trace)] == [
        (None, False, False), (2, False, False), (None, False, False), (None, True, False), (None, False, True),
    ]  # fmt: skip
    validations = [s.validation for s in annotate_steps(trace) if s.validation is not None]
    assert [run.outcome for run in validations] == ["unknown", "failed"]
    assert list_edits(trace) == [["src/a.py"]]


INIT = "<command-message>init</command-message>\n<command-name>/init</command-name>\n<command-args>the <b> docs</command-args>"
CLEAR = "<command-name>/clear</command-name>\n<command-message>clear</command-message>\n<command-args></command-args>"


def test_a_command_that_claude_code_expands_is_a_request() -> None:
    rows = [
        claude_row("user", "Caveat: The messages below were generated by the user.", 0, isMeta=True),
        claude_row("user", CLEAR, 1),
        claude_row("user", "<local-command-caveat>Caveat</local-command-caveat>", 2, isMeta=True),
        claude_row("user", CLEAR.replace("clear", "cost"), 3),
        claude_row("user", "<local-command-stdout>$1</local-command-stdout>", 4),
        claude_row("user", INIT, 5),
        claude_row("user", [{"type": "text", "text": "Please analyze this codebase."}], 6, isMeta=True),
        call(7, "Bash", command="ls"),
        claude_row("user", CLEAR.replace("clear", "fix"), 8),
        call(9, "Monitor", command="tail -f log", description="errors", timeout_ms=9, persistent=False),
        result(10, 9, "Monitor started (task b7x, timeout 9ms). You will be notified on each event."),
        claude_row("user", CLEAR, 11),
    ]
    trace = parse_trace(rows)
    assert trace.task == "/init the <b> docs\n\nThe user said later:\n\n/fix"
    assert (trace.running, trace.unknown_forms) == (("tail -f log",), {})


def test_commands_of_the_user_in_claude_code() -> None:
    rows = [
        claude_row("user", "<command-name>/x</command-name> is not parsed. Fix it.", 0),
        claude_row("assistant", [{"type": "text", "text": "Done."}], 1),
        claude_row("user", "<bash-input>rm src/a.py</bash-input>", 2),
        claude_row("user", "<bash-stdout>a</bash-stdout><bash-stderr>b</bash-stderr>", 3),
    ]
    trace = parse_trace(rows)
    assert (trace.task, trace.pending) == ("is not parsed. Fix it.", ())
    action, result = trace.events
    assert (action.arguments["command"], result.text, result.exit_code) == ("rm src/a.py", "ab", None)
    assert action.text.startswith("Done.\n\nThe user ran this command.")
    assert list_edits(trace) == [["src/a.py"]]


def test_a_file_of_a_subagent_alone_is_read() -> None:
    trace = parse_trace(claude_rows("Look.", claude_call("t", command="ls"), isSidechain=True))
    assert [event.tool for event in trace.events] == ["shell"]


def test_rare_rows_of_codex() -> None:
    timeout = "Exit code: 124\nWall time: 9 seconds\nOutput:\ncommand timed out after 9000 milliseconds\n"
    rows = [
        codex_meta(timestamp="t", originator="codex", cli_version="0.40.0"),
        codex_request("<user_instructions>\nBe kind.\n</user_instructions>"),
        codex_request("Fix it."),
        codex_item("reasoning", summary=[], content=None, encrypted_content="gAAAA"),
        codex_call("a", "shell", command=["bash", "-lc", "pytest -q"]),
        codex_row("event_msg", type="token_count", info={"last_token_usage": {"input_tokens": 7, "output_tokens": 2}}),
        codex_result("a", json.dumps({"output": "1 failed in 1s\n", "metadata": {"exit_code": 1, "duration_seconds": 1.0}})),
        codex_item("local_shell_call", call_id="b", action={"command": ["sleep", "9"], "working_directory": "/x"}),
        codex_result("b", timeout),
        codex_call("c", cmd="sleep 99"),
        codex_row("event_msg", type="turn_aborted", reason="interrupted"),
        codex_result("c", "aborted by user after 3.1s"),
        codex_request("<turn_aborted>\nno\n</turn_aborted>"),
        codex_call("d", "write_stdin", session_id=5, chars="\x03"),
        codex_item("function_call", name="exec_command", call_id="e", arguments="{broken"),
    ]  # fmt: skip
    trace = parse_trace(rows)
    assert (trace.task, *identify(trace)) == ("Fix it.", "codex 0.40.0", "", "/repo")
    actions = list_actions(trace)
    assert list_commands(trace) == ["pytest -q", "cd /x && sleep 9", "sleep 99", "C-c", ""]
    assert actions[0].usage is not None
    assert actions[0].usage.prompt_tokens == 7
    assert actions[0].text == "```bash\npytest -q\n```"
    assert [(e.exit_code, e.refused, e.timed_out) for e in list_observations(trace)] == [
        (1, False, False), (None, False, True), (None, False, True),
    ]  # fmt: skip


def test_results_of_live_calls() -> None:
    running = codex.parse_result(
        "exec_command", {}, "Wall time: 1.0 seconds\nProcess running with session ID 77\nOutput:\nup\n"
    )
    assert (running.process_id, running.output, running.exit_code) == ("77", "up\n", None)
    patched = "Wall time: 0.0 seconds\nOutput:\nExit code: 0\nWall time: 0 seconds\nOutput:\nSuccess.\n"
    assert codex.parse_result("exec_command", {}, patched)[:2] == ("Success.\n", 0)
    refused = codex.parse_result(
        "exec_command", {}, 'exec_command failed: CreateProcess { message: "Rejected" }'
    )
    assert refused.refused
    started = claude_code.parse_result("Bash", {}, "Command running in background with ID: b7. Output is …")
    assert (started.process_id, started.exit_code) == ("b7", None)
    for tool in ("Bash", "PowerShell"):
        assert claude_code.parse_result(tool, {}, "Exit code 3\nno", {"is_error": True})[:2] == ("no", 3)
    assert claude_code.parse_result("Bash", {}, "(Bash completed with no output)")[:2] == ("", 0)
    assert claude_code.parse_result(
        "Bash", {}, "Permission to use Bash has been denied.", {"is_error": True}
    ).refused
    assert claude_code.parse_result("Read", {}, "     1→a = 1").output == "     1\ta = 1"
    background = qwen_code.parse_result(
        "run_shell_command", {}, {"output": "Background shell started.\nid: bg_1\npid: 9"}
    )
    assert background.process_id == "bg_1"
    wrapped = "Command: a\nDirectory: (root)\nOutput: (empty)\nError: (none)\nExit Code: 0\nSignal: 0\nProcess Group PGID: 5"
    assert qwen_code.parse_result("run_shell_command", {}, {"output": wrapped})[:2] == ("", 0)
    assert opencode.parse_result("bash", {}, "a\n", {"status": "completed", "metadata": {"exit": 4}})[:2] == (
        "a\n",
        4,
    )


@pytest.mark.slow
def test_the_replays_agree_with_the_labels_of_their_runs(real_data: Path, tmp_path: Path) -> None:
    labels = read_labels(session_archive.LABELS)
    scores, formats = [], Counter[str]()
    for path in session_archive.unpack(real_data / "trajectories", tmp_path):
        trace = read_one(path)
        label = find_label(labels, f"{path}#0")
        assert label is not None
        formats[trace.format] += 1
        scores.append(score_trace(label, annotate_steps(trace)))
    assert min(formats["codex"], formats["claude-code"]) >= 20
    total = sum_scores(scores)
    for tally in [total.validations, *(total.points[kind] for kind in POINT_KINDS)]:
        assert tally.exact >= 0.97 * tally.cases > 40
    assert total.validations.cases > 370


def test_the_archive_holds_no_text_of_the_runs(real_data: Path) -> None:
    source = session_archive.read_source(
        real_data / "trajectories/mini-swe-agent-v1/pallets__flask-5014.traj.json", 0
    )
    target = f"before {source[1000:1500]} between {source[4000:4400]}"
    delta = session_archive.make_delta(source, target)
    assert session_archive.apply_delta(source, delta) == target
    assert sum(len(part) for part in delta if isinstance(part, str)) < 40


@settings(max_examples=examples(150))
@given(st.sampled_from(OWN_SESSIONS), st.integers(0, 10**9))
def test_damaged_sessions_never_crash_the_readers(name: str, seed: int) -> None:
    random = Random(seed)

    def damage(value: Any) -> Any:
        if random.random() < 0.02:
            return random.choice(
                [None, 5, "", [], {}, "x", True, -1, [1], {"a": 1}, [[]], 3.5, "Exit code 1\n"]
            )
        if isinstance(value, dict):
            return {k: damage(v) for k, v in value.items() if random.random() > 0.01}
        if isinstance(value, list):
            return [damage(v) for v in value if random.random() > 0.01]
        return value

    recording = load_rows(name) if name in FILES else json.loads((SESSIONS / name).read_text())
    try:
        trace = parse_trace(damage(recording))
    except TraceError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        annotate_steps(trace)


DAMAGES = {
    "NUL bytes": lambda line: b"\0" * len(line),
    "NUL bytes in its middle": lambda line: line[:20] + b"\0" * 40 + line[60:],
    "NUL bytes before it": lambda line: b"\0" * 512 + line,
    "not UTF-8": lambda line: line[:20] + b"\xff\xfe" + line[20:],
    "cut": lambda line: line[: len(line) // 2],
    "cut in two lines": lambda line: line[:30] + b"\n" + line[30:],
    "not JSON": lambda line: b"Error: EPIPE at Socket.write",
    "not an object": lambda line: b"17",
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["codex", "codex-compacted", "claude-code", "qwen-code", "openhands", "own"])
def test_a_damaged_line_is_skipped_and_counted(name: str, damage: str, tmp_path: Path) -> None:
    """Whichever line it is, the session is that without the line."""
    if name == "openhands":
        action = {"kind": "ActionEvent", "tool_name": "terminal", "action": {"command": "ls"}}
        lines = [json.dumps(action | {"id": str(number)}).encode() for number in range(4)]
    elif name == "own":
        lines = [event.model_dump_json().encode() for event in load("codex.jsonl").events[:1]] * 4
    else:
        lines = (SESSIONS / f"{name}.jsonl").read_bytes().splitlines()
    path = tmp_path / "session.jsonl"
    for number in range(0, len(lines), max(1, len(lines) // 8)):
        path.write_bytes(b"\n".join([*lines[:number], *lines[number + 1 :]]))
        whole = read_one(path)
        path.write_bytes(b"\n".join([*lines[:number], DAMAGES[damage](lines[number]), *lines[number + 1 :]]))
        trace = read_one(path)
        assert (trace.skipped_lines, whole.skipped_lines) == (1 + (damage == "cut in two lines"), 0)
        assert trace.model_copy(update={"skipped_lines": 0}) == whole


@pytest.mark.parametrize("name", ["codex", "claude-code", "qwen-code"])
def test_a_row_after_a_cut_one_in_the_same_line_is_read(name: str, tmp_path: Path) -> None:
    """Claude Code before 2.1.121 appended to a cut line: its issue 52387."""
    lines = (SESSIONS / f"{name}.jsonl").read_bytes().splitlines()
    path = tmp_path / "session.jsonl"
    for stub in (b'{"type":"pr-link","sessionId":"s","prNu', b'{"type":"pr-link","note":"half a te'):
        for number in range(1, len(lines), max(1, len(lines) // 8)):
            path.write_bytes(b"\n".join([*lines[:number], stub + lines[number], *lines[number + 1 :]]))
            trace = read_one(path)
            whole = load(f"{name}.jsonl").model_copy(update={"id": trace.id, "skipped_lines": 1})
            assert trace == whole


def test_an_inner_object_of_a_cut_line_is_no_row(tmp_path: Path) -> None:
    lines = (SESSIONS / "claude-code.jsonl").read_bytes().splitlines()
    inner = {"type": "user", "uuid": "x", "sessionId": "s", "message": {"role": "user", "content": "Obey."}}
    cut = json.dumps({"type": "assistant", "message": {"content": [{"type": "tool_use", "input": inner}]}})[
        :-5
    ]
    path = tmp_path / "session.jsonl"
    path.write_bytes(b"\n".join([*lines, cut.encode(), *lines[-1:]]))
    trace = read_one(path)
    assert "Obey" not in trace.task
    assert trace.skipped_lines == 1


def test_a_file_of_mostly_broken_lines_is_refused(tmp_path: Path) -> None:
    lines = (SESSIONS / "codex.jsonl").read_bytes().splitlines()[:4]
    path = tmp_path / "session.jsonl"
    path.write_bytes(b"\n".join([*lines, *[b"{"] * 4]))
    trace = read_one(path)
    assert trace.skipped_lines == 4
    path.write_bytes(b"\n".join([*lines, *[b"{"] * 5]))
    with pytest.raises(TraceError, match=r"5 of 9 lines are not JSON .the first: .*line 5: not JSON"):
        list(read_traces(path))


def test_damaged_lines_of_other_files(tmp_path: Path) -> None:
    lines = (SESSIONS / "codex.jsonl").read_bytes().splitlines()
    # A block of the file system without a line's end, and an incomplete last line.
    path = tmp_path / "session.txt"
    path.write_bytes(b"\0" * 4096 + b"\n" + b"\n".join([*lines[:9], b"\0" * 4096, *lines[9:], lines[0][:50]]))
    trace = read_one(path)
    assert trace.skipped_lines == 3
    assert trace.events == load("codex.jsonl").events
    # OpenHands keeps each event in a file.
    action = {"kind": "ActionEvent", "tool_name": "terminal", "action": {"command": "ls"}}
    for number in range(3):
        content = json.dumps(action | {"id": str(number)}).encode()
        damaged = b"\0" * len(content)
        (tmp_path / f"event-0000{number}-x.json").write_bytes(damaged if number == 1 else content)
    trace = read_one(tmp_path)
    assert (len(trace.events), trace.skipped_lines) == (2, 1)
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(TraceError, match="not JSON"):
        list(read_traces(path))

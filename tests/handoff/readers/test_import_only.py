"""Agents whose sessions are only read: Gemini CLI, pi, Copilot CLI, Kimi Code and aider. The refusal of others by name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.agents.session_files import list_sessions, open_session
from langgraph_takeover.handoff.interop.session_records import list_handoff_points
from langgraph_takeover.handoff.readers import FORMATS, TraceError, parse_trace, read_traces
from langgraph_takeover.handoff.readers.aider import parse_edits
from langgraph_takeover.handoff.readers.gemini_cli import parse_result
from langgraph_takeover.handoff.trace.events import Trace

from .session_rows import (
    LATER,
    SESSIONS,
    Row,
    list_actions,
    list_commands,
    list_edits,
    list_observations,
    load,
    load_rows,
    read_one,
)

TASK = "The sum in pkg/calc.py is wrong. Fix it."
RECORDED = {
    "gemini-cli.jsonl": "gemini-cli", "gemini-cli-stream.jsonl": "gemini-cli", "pi.jsonl": "pi",
    "copilot-cli.jsonl": "copilot-cli", "kimi-code.jsonl": "kimi-code", "kimi-cli-wire.jsonl": "kimi-code",
    "kimi-cli-context.jsonl": "kimi-code",
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_session(name: str) -> None:
    """The same work in each: a failing test, a refused edit, a wrong and a right edit, a new file, a passing test."""
    trace = load(name)
    assert (trace.format, trace.agent, trace.task) == (RECORDED[name], RECORDED[name], TASK)
    assert list_edits(trace) == [["pkg/calc.py"], ["pkg/calc.py"], ["pkg/extra.py"]]
    assert trace.unknown_forms == {}  # each program refused the invented tool
    commands = [each for each in trace.events if each.kind == "action" and each.tool == "shell"]
    codes = {
        each.arguments["command"].rpartition("&& ")[2]: trace.events[each.index + 1].exit_code
        for each in commands
        if "test_calc" in each.arguments["command"]
    }
    assert set(codes.values()) == ({None} if "stream" in name else {0, 1, 3})
    refused = [each.arguments.get("old", each.tool) for each in trace.events
               if each.kind == "action" and trace.events[each.index + 1 : each.index + 2]
               and trace.events[each.index + 1].refused]  # fmt: skip
    assert {"    return nothing", "invented_tool"} <= set(refused)
    points = {each.kind: each.event_index for each in list_handoff_points(trace)}
    assert points["first_source_edit"] < points["first_validation"] < points["first_post_failure_edit"]
    assert trace.events[-1].tool == "finish"
    assert "sum is right now" in "".join(each.text for each in trace.events)
    shown = next(each for each in trace.events if each.kind == "observation")
    assert "stream" in name or "def add" in shown.text


def test_what_each_session_states() -> None:
    states = {
        name: (each.agent_version, each.model, each.workspace, each.running)
        for name in RECORDED
        for each in [load(name)]
    }
    assert states == {
        "gemini-cli.jsonl": ("", "gemini-2.5-flash", "/testbed", ("sleep 60",)),
        "gemini-cli-stream.jsonl": ("", "gemini-2.5-flash", "", ("sleep 60",)),
        "pi.jsonl": ("", "m", "/testbed", ()),
        # Both commands in the background ended later.
        "copilot-cli.jsonl": ("1.0.102", "gpt-4.1", "/testbed", ()),
        "kimi-code.jsonl": ("", "", "/testbed", ()),
        "kimi-cli-wire.jsonl": ("", "", "", ()),
        "kimi-cli-context.jsonl": ("", "", "", ()),
    }
    usage = load("pi.jsonl").events[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (1000, 900, 30)


@pytest.mark.parametrize("name", RECORDED)
def test_a_broken_line_is_skipped_and_counted(name: str, tmp_path: Path) -> None:
    lines = (SESSIONS / name).read_bytes().splitlines()
    path = tmp_path / "session.jsonl"
    path.write_bytes(b"\n".join([*lines[:4], b"\0" * 200, *lines[4:], lines[-1][:20]]))
    trace = read_one(path)
    assert trace.skipped_lines == 2
    assert trace.events == load(name).events


@pytest.mark.parametrize("name", RECORDED)
def test_unfinished_sessions_are_read(name: str) -> None:
    rows = load_rows(name)
    for end in range(1, len(rows), 3):
        try:
            trace = parse_trace(rows[:end])
        except TraceError:
            assert end < 6  # not enough to know the agent
        else:
            assert trace.format == RECORDED[name]


def test_background_commands_that_still_run() -> None:
    rows = [row for row in load_rows("copilot-cli.jsonl") if row["type"] != "system.notification"]
    assert parse_trace(rows[:-12]).running == ("echo begin; sleep 90", "echo begin; sleep 90")
    rows = [row for row in load_rows("kimi-code.jsonl") if row["type"] != "task.terminated"]
    assert parse_trace(rows).running == ("echo begin; sleep 20", "sleep 30")


def pi(number: int, parent: int | None, role: str, content: Any, **fields: Any) -> Row:
    link = {"id": str(number), "parentId": None if parent is None else str(parent)}
    return {"type": "message", **link, "message": {"role": role, "content": content, **fields}}


def pi_call(call_id: str, name: str, **arguments: Any) -> list[Row]:
    return [{"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}]


PI = {"type": "session", "version": 3, "id": "s", "timestamp": "t", "cwd": "/w"}


def test_a_withdrawn_branch_of_pi() -> None:
    rows = [
        PI, pi(1, None, "user", "First."), pi(2, 1, "assistant", pi_call("c1", "write", path="a.py", content="x")),
        pi(3, 2, "toolResult", "ok", toolCallId="c1", toolName="write"),
        {"type": "branch_summary", "id": "4", "parentId": None, "summary": "…"},
        pi(5, 4, "user", [{"type": "text", "text": "Second."}]),
        pi(6, 5, "assistant", pi_call("c1", "bash", command="ls")),
        pi(7, 6, "toolResult", [{"type": "text", "text": "none\n\nCommand exited with code 2"}], toolCallId="c1", isError=True,
           toolName="bash"),
        pi(8, 7, "bashExecution", None, command="make", output="built", exitCode=0, cancelled=False),
    ]  # fmt: skip
    trace = parse_trace(rows)
    assert (trace.task, trace.withdrawn_actions, trace.withdrawn_files) == ("Second.", 1, ("a.py",))
    shown = [(each.text, each.exit_code) for each in list_observations(trace, "shell")]
    assert shown == [("none", 2), ("built", 0)]
    assert "The user ran this command." in trace.events[2].text


def test_openclaw() -> None:
    sent = 'Conversation info (untrusted metadata):\n```json\n{"message_id": 1}\n```\n\n[Thu 2026-02-26 10:00 UTC] Fix it.'
    run, poll = {"command": "npm test"}, {"action": "poll", "sessionId": "calm-reef"}
    waiting = {"status": "running", "sessionId": "calm-reef"}
    failed = {"status": "completed", "exitCode": 1}
    done = {"status": "completed", "exitCode": 0, "cwd": "/w"}
    results = [
        ("exec", run, waiting, "Command still running (session calm-reef, pid 7)."),
        ("process", poll, failed, "1 failed\n\nProcess exited with code 1."),
        ("exec", run, done, "(no output)"),
        (
            "read",
            {"file_path": "x.md"},
            {"status": "error"},
            '{"status": "error", "tool": "read", "error": "ENOENT"}',
        ),
    ]
    rows = [PI, pi(0, None, "user", sent)]
    for number, (name, arguments, details, text) in enumerate(results):
        at = 2 * number
        # A parent that is not in the file is the row before.
        parent = 99 if name == "read" else at + 1
        ended = {"toolCallId": "c", "toolName": name, "details": details}
        rows.append(pi(at + 1, at, "assistant", pi_call("c", name, **arguments)))
        rows.append(pi(at + 2, parent, "toolResult", text, **ended, isError=False))
    trace = parse_trace(rows)
    assert (trace.task, trace.unknown_forms, trace.running) == ("Fix it.", {}, ())
    assert [each.refused for each in list_observations(trace)] == [False, False, False, True]
    assert [each.exit_code for each in list_observations(trace, "shell")] == [None, 1, 0]


def gemini(kind: str, message_id: str, content: Any = "", *calls: Row) -> Row:
    made = {"toolCalls": list(calls)} if calls else {}
    return {"id": message_id, "type": kind, "content": content, **made}


def gemini_call(name: str, output: str, status: str = "success", **arguments: Any) -> Row:
    response = [{"functionResponse": {"id": name, "name": name, "response": {"output": output}}}]
    return {"id": name, "name": name, "args": arguments, "status": status, "result": response}


GEMINI = {"sessionId": "s", "projectHash": "h", "kind": "main"}


def test_gemini_cli_goes_back_compresses_and_repeats() -> None:
    directories = "- **Workspace Directories:**\n  - /w"
    context = f"<session_context>\nThis is the Gemini CLI.\n{directories}\n</session_context>"
    write = gemini_call("write_file", "ok", file_path="a.py", content="x")
    run = gemini_call("run_shell_command", "Output: (empty)\nProcess Group PGID: 4", command="make")
    texts = ("Fix @b.py.", "\n--- Content from referenced files ---", "secret")
    referenced = [{"text": text} for text in texts]
    rows = [
        GEMINI, {"$set": {"messages": [gemini("user", "0", [{"text": context}])]}},
        gemini("user", "1", "First."), gemini("gemini", "2", "I write."), gemini("gemini", "2", "I write.", write),
        {"$rewindTo": "1"},
        gemini("user", "3", referenced), gemini("gemini", "4", "", run), gemini("user", "5", "/compress"),
        {"$set": {"messages": [gemini("user", "6", "<state_snapshot>…"), gemini("gemini", "7", "Got it."),
                               gemini("gemini", "4", "", run)]}},
        gemini("info", "8", "Request cancelled."), gemini("gemini", "9", "Done."),
    ]  # fmt: skip
    trace = parse_trace(rows)
    assert (trace.task, trace.workspace, trace.withdrawn_files) == ("Fix @b.py.", "/w", ("a.py",))
    assert [each.tool for each in trace.events] == ["shell", "shell", "finish"]
    assert (trace.events[1].exit_code, trace.events[1].text, trace.events[2].text) == (0, "", "Done.")
    document = {**GEMINI, "messages": [gemini("user", "1", "First."), gemini("gemini", "2", "", write, run)]}
    assert [each.tool for each in parse_trace(document).events] == ["editor", "editor", "shell", "shell"]


def test_gemini_cli_names_its_directory_in_a_result(tmp_path: Path) -> None:
    """Older versions record no directory. A file of one document may be called `.jsonl`, and `!` runs a command of the user."""
    shown = "Successfully overwrote file: /home/u/p/src/a.py."
    write = gemini_call("write_file", shown, file_path="src/a.py", content="x")
    ran = "I ran the following shell command:\n```sh\necho \\`x\\`\n```\n\nThis produced the following result:\n```\nx\n```"
    messages = [gemini("user", "1", "Go."), gemini("gemini", "2", "", write), gemini("user", "3", ran),
                gemini("user", "4", "System: Please continue."), gemini("gemini", "5", "Done.")]  # fmt: skip
    path = tmp_path / "full.jsonl"
    path.write_text(json.dumps({**GEMINI, "messages": messages}, indent=2))
    trace = read_one(path)
    assert (trace.workspace, trace.task, list_edits(trace)) == ("/home/u/p", "Go.", [["src/a.py"]])
    assert [each.arguments["command"] for each in list_actions(trace) if each.tool == "shell"] == ["echo `x`"]


@pytest.mark.parametrize(
    ("text", "code", "output"),
    [
        ("Output: 1 passed\nProcess Group PGID: 12", 0, "1 passed"),
        ("Output: 1 failed\nExit Code: 1\nBackground PIDs: 7, 8\nProcess Group PGID: 12", 1, "1 failed"),
        ("Output: a\nExit Code: 9\nb\nProcess Group PGID: 12", 0, "a\nExit Code: 9\nb"),
        ("Output: (empty)\nSignal: 9\nProcess Group PGID: 12", None, ""),
        ("Output: x\nError: spawn failed\nProcess Group PGID: 12", None, "x"),
        ("Command: make\nDirectory: (root)\nOutput: x\nError: (none)\nExit Code: 2\nSignal: 0\n"
         "Background PIDs: (none)\nProcess Group PGID: 12", 2, "x"),
        ("Command: make\nDirectory: (root)\nStdout: x\nStderr: (empty)\nError: (none)\nExit Code: 0\nSignal: (none)", 0, "x"),
    ],
)  # fmt: skip
def test_results_of_all_versions_of_gemini_cli(text: str, code: int | None, output: str) -> None:
    result = parse_result("run_shell_command", text, is_error=False)
    assert (result.exit_code, result.output, result.refused) == (code, output, False)


def test_copilot_cli_rare_events() -> None:
    def event(kind: str, **data: Any) -> Row:
        return {"type": kind, "id": "e", "parentId": None, "data": data}

    def complete_call(call_id: str, content: str, **data: Any) -> Row:
        result = {"success": True, "result": {"content": content}}
        return event("tool.execution_complete", toolCallId=call_id, **result, **data)

    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch\n"
    requests = [{"toolCallId": "c", "name": "apply_patch", "arguments": patch}]
    trace = parse_trace([
        event("session.start", copilotVersion="0.0.420", context={"cwd": "/w"}),
        event("user.message", content="Fix it.", attachments=[{"type": "file", "displayName": "plan.png"}]),
        event("user.message", content="Load the skill.", source="skill-pdf"),
        event("assistant.message", content="", toolRequests=requests),
        event("tool.execution_start", toolCallId="c", toolName="apply_patch", arguments=patch),
        complete_call("c", "Modified a.py"),
        event("tool.execution_start", toolCallId="s", toolName="bash", arguments={"command": "rm x"}, parentToolCallId="t"),
        event("tool.execution_start", toolCallId="c", toolName="bash", arguments={"command": "make"}),
        complete_call("c", "no rule\n<exited with exit code 2>"),
        event("tool.execution_start", toolCallId="v", toolName="view", arguments={"path": "/w/a.py", "view_range": [4, 5]}),
        complete_call("v", "four\nfive"),
    ])  # fmt: skip
    assert trace.task == "Fix it.\n[attached: plan.png]"
    assert list_edits(trace) == [["a.py"]]
    assert [command.split()[0] for command in list_commands(trace)] == ["apply_patch", "make", "view"]
    assert trace.events[3].exit_code == 2


def test_kimi_code_undo_and_append() -> None:
    def message(text: str, kind: str = "user") -> Row:
        content = {"role": "user", "content": [{"type": "text", "text": text}], "origin": {"kind": kind}}
        return {"type": "context.append_message", "message": content}

    def call(call_id: str, name: str, **arguments: Any) -> list[Row]:
        start = {"type": "tool.call", "toolCallId": call_id, "name": name, "args": arguments}
        end = {"type": "tool.result", "toolCallId": call_id, "result": {"output": "ok"}}
        return [{"type": "context.append_loop_event", "event": each} for each in (start, end)]

    rows = [
        {"type": "metadata", "protocol_version": "1.5"}, message("First."), message("<system-reminder>x", "injection"),
        *call("c", "Write", path="/w/a.py", content="x"), {"type": "context.undo", "count": 1}, message("Second."),
        *call("c", "Write", path="b.py", content="x\n"), *call("c", "Write", path="b.py", content="y\n", mode="append"),
        *call("c", "Bash", command="true"),
    ]  # fmt: skip
    trace = parse_trace(rows)
    assert (trace.task, trace.withdrawn_files) == ("Second.", ("/w/a.py",))
    assert list_edits(trace) == [["b.py"], ["b.py"]]
    parts = [{"message": {"type": kind, "payload": payload}} for kind, payload in [
        ("TurnBegin", {"user_input": [{"type": "text", "text": "Go."}]}),
        ("ToolCall", {"id": "c", "function": {"name": "Shell", "arguments": '{"comm'}}),
        ("ToolCallPart", {"arguments_part": 'and": "make"}'}),
        ("ToolResult", {"tool_call_id": "c", "return_value": {"is_error": True, "output": "", "message": "Rejected by user"}}),
    ]]  # fmt: skip
    trace = parse_trace([{"type": "metadata", "protocol_version": "1.10"}, *parts])
    assert (trace.events[0].arguments, trace.events[1].refused) == ({"command": "make"}, True)


def load_aider(text: str, tmp_path: Path) -> list[Trace]:
    path = tmp_path / ".aider.chat.history.md"
    path.write_text(text)
    return [each for each in read_traces(path) if isinstance(each, Trace)]


def test_aider(tmp_path: Path) -> None:
    trace = load("aider.md")
    assert (trace.agent, trace.agent_version, trace.model) == ("aider", "0.86.2", "openai/m")
    assert trace.task.split(LATER) == [TASK, "What is left?", "What else?", "Swap the factors.", "End."]
    assert list_edits(trace) == [["pkg/calc.py"], ["pkg/extra.py"], ["pkg/calc.py"], ["pkg/calc.py"]]
    first, new, right, undone = (each.changes[0] for each in trace.events if each.changes)
    assert new.before is None
    assert undone.after == first.after != right.after
    shell = [each.arguments["command"] for each in list_actions(trace) if each.tool == "shell"]
    assert shell == ["python3 test_calc.py", "ls", "python3 test_calc.py", "git log --oneline", "echo done"]
    # The file shows no exit code, and one refused block of two.
    assert {each.exit_code for each in list_observations(trace, "shell")} == {None}
    assert [each.index for each in trace.events if each.refused] == [5]
    usage = trace.events[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (2500, 34)
    text = (SESSIONS / "aider.md").read_text()
    empty = "\n# aider chat started at 2026-01-01 00:00:00\n\n> Aider v0.1  \n"
    both = load_aider(f"{empty}{text}{empty}{text}", tmp_path)
    assert [each.events for each in both] == [trace.events] * 2
    (other,) = load_aider(text.replace("\n", "\r\n"), tmp_path)
    assert other.events == trace.events
    (stripped,) = load_aider("\n".join(line.rstrip() for line in text.splitlines()), tmp_path)
    # Without the spaces, the program's long message about the refused block cannot be told from a reply.
    assert len([each for each in stripped.events if each.changes]) == 3


def test_other_edit_formats_of_aider(tmp_path: Path) -> None:
    whole = (
        "README.md\n```\nA title\n```\n\nsrc\\new.py\n<source>\nx = '```'\n</source>\n\n```bash\nmake\n```\n"
    )
    edits, rest = parse_edits(whole)
    assert [(each.path, each.is_whole, each.arguments["content"]) for each in edits] == [
        ("README.md", True, "A title\n"),
        ("src/new.py", True, "x = '```'\n"),
    ]
    assert "make" in rest
    diff = "```diff\n--- a.py\n+++ a.py\n@@ … @@\n def f():\n-    x\n+    y\n@@ … @@\n-z\n+w\n```\n"
    assert [(each.path, each.arguments["old"], each.arguments["new"]) for each in parse_edits(diff)[0]] == [
        ("a.py", "def f():\n    x", "def f():\n    y"), ("a.py", "z", "w"),
    ]  # fmt: skip
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** Add File: b.py\n+z\n*** End Patch"
    assert [each.path for each in parse_edits(patch)[0]] == ["a.py", "b.py"]
    assert parse_edits("a.py\n```\n<<<<<<< SEARCH\nx\n=======\n")[0] == []
    head = "# aider chat started at 2026-01-01 00:00:00\n\n#### Go.  \n\n"
    applied = "> Applied edit to src\\new.py  \n> Applied edit to lib/other.py  \n"
    (trace,) = load_aider(f"{head}{whole}\n{applied}", tmp_path)
    assert list_edits(trace) == [["src/new.py"], ["lib/other.py"]]
    separators = "a.py\n```\n<<<<<<< SEARCH\nx\u2028y\x0c\n=======\nz\n>>>>>>> REPLACE\n```\n"
    (trace,) = load_aider(f"{head}{separators}\n> Applied edit to a.py  \n", tmp_path)
    assert trace.events[0].arguments["old"] == "x\u2028y\x0c"
    applied = "> Committing a.py before applying edits.  \n> Applied edit to a.py  \n"
    (trace,) = load_aider(f"{head}{diff}\n{applied}", tmp_path)
    assert list_edits(trace) == [["a.py"], ["a.py"]]


def test_long_and_hostile_chats(tmp_path: Path) -> None:
    block = "a.py\n```\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n```\n"
    lines = {"<<<<<<< SEARCH\n": 20_000, "```diff\n": 20_000, "> Running x\n": 3_000, "#### /run x\n": 1_000}
    for part in (block * 500, *(line * count for line, count in lines.items())):
        (trace,) = load_aider(f"# aider chat started at x\n\n#### Go.  \n\n{part}", tmp_path)
        assert trace.task == "Go."


KIMI_CALL = {"toolCallId": "c", "name": "Bash", "args": {"command": "make"}}
CALLS_WITH_RESULTS: dict[str, list[Row]] = {
    "pi": [
        PI, pi(1, None, "user", "Go."), pi(2, 1, "assistant", pi_call("c", "bash", command="make")),
        pi(3, 2, "toolResult", "no\n\nCommand exited with code 2", toolCallId="c", toolName="bash", isError=True),
    ],
    "gemini stream": [
        {"type": "init", "session_id": "s", "model": "m"},
        {"type": "tool_use", "tool_id": "c", "tool_name": "run_shell_command", "parameters": {"command": "make"}},
        {"type": "tool_result", "tool_id": "c", "status": "success", "output": "no"},
    ],
    "copilot": [
        {"type": "session.start", "data": {}},
        {"type": "tool.execution_start", "data": {"toolCallId": "c", "toolName": "bash", "arguments": {"command": "make"}}},
        {"type": "tool.execution_complete", "data": {"toolCallId": "c", "success": True, "result": {"content": "no"}}},
    ],
    "kimi": [
        {"type": "metadata", "protocol_version": "1"},
        {"type": "context.append_loop_event", "event": {"type": "tool.call", **KIMI_CALL}},
        {"type": "context.append_loop_event", "event": {"type": "tool.result", "toolCallId": "c", "result": {"output": "no"}}},
    ],
    "atif": [
        {"source": "agent", "message": "",
         "tool_calls": [{"tool_call_id": "c", "function_name": "bash", "arguments": {"command": "make"}}]},
        {"source": "agent", "message": "", "observation": {"results": [{"source_call_id": "c", "content": "no"}]}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS_WITH_RESULTS)
def test_a_result_before_its_call_is_that_of_the_call(name: str) -> None:
    *rows, call, result = CALLS_WITH_RESULTS[name]
    for both in ([call, result], [result, call]):
        document: Any = [*rows, *both]
        if name == "atif":
            document = {"schema_version": "ATIF-v1.6", "agent": {"name": "a"}, "steps": document}
        trace = parse_trace(document)
        assert [each.text for each in list_observations(trace, "shell")] == ["no"], both


@pytest.mark.parametrize(
    ("note", "workspace"),
    [
        ("Git working dir: /home/u/my app", "/home/u/my app"),
        ("Git working dir: C:\\Users\\u\\p", "/c/Users/u/p"),
        ("Git repo: /srv/p/.git with 3 files", "/srv/p"),
        ("Git repo: ../.git with 3 files  \n> Git working dir: /srv/p", "/srv/p"),
        ("Git repo: .git with 3 files  \n\n#### /run cat log  \n> Git working dir: /etc", ""),
    ],
)
def test_aider_names_its_repository(note: str, workspace: str, tmp_path: Path) -> None:
    head = "# aider chat started at x\n\n> Aider v0.86.2  \n"
    (trace,) = load_aider(f"{head}> {note}  \n\n#### Go.  \n", tmp_path)
    assert trace.workspace == workspace


CURSOR = {"role": "user", "message": {"content": [{"type": "text", "text": "Go."}]}}
REFUSED: dict[str, tuple[Any, str]] = {
    "cursor": ([CURSOR, CURSOR], "a Cursor session"),
    "cursor stream": ([{"type": "tool_call", "call_id": "c", "tool_call": {}}], "a Cursor session"),
    "cline": ([{"ts": 1, "type": "say", "say": "text", "text": "Go."}], "Cline, Roo Code or Kilo Code"),
    "roo": ([{"role": "user", "content": [{"type": "text", "text": "<environment_details>"}]}], "Cline, Roo Code or Kilo Code"),
    "continue": ({"sessionId": "s", "title": "t", "workspaceDirectory": "/w", "history": []}, "a Continue session"),
    "goose": ([{"working_dir": "/w", "description": "d", "message_count": 1}, {"role": "user", "content": []}], "a Goose session"),
    "amp": ({"v": 1, "id": "T-1", "messages": []}, "an Amp thread"),
    "droid": ([{"type": "session_start", "id": "s", "title": "t"}, {"type": "message", "message": {}}], "a Factory Droid session"),
    "vs code": ({"version": 3, "responderUsername": "GitHub Copilot", "requests": []}, "a Copilot Chat session of VS Code"),
    "kiro": ({"conversation_id": "c", "history": [], "valid_history_range": [0, 1]}, "Amazon Q or Kiro CLI"),
    "codex exec": ([{"type": "thread.started", "thread_id": "t"}, {"type": "turn.started"}], "~/.codex/sessions"),
    "claude stream": ([{"type": "system", "subtype": "init", "session_id": "s", "tools": []}], "~/.claude/projects"),
    "iflow": ([{"sessionId": "session-1", "uuid": "u", "parentUuid": None, "type": "user", "message": {"content": "Go."}}],
              "an iFlow CLI session"),
    "antigravity": ([{"step_index": 0, "source": "USER_EXPLICIT", "type": "USER_INPUT", "status": "DONE", "content": "Go."}],
                    "an Antigravity session"),
    "gemini logs": ([{"sessionId": "s", "messageId": 0, "type": "user", "message": "Go."}], "pass the file in chats/"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_known_agent_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    data, expected = REFUSED[name]
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(map(json.dumps, data)) if isinstance(data, list) else json.dumps(data))
    for read in (lambda: parse_trace(data), lambda: list(read_traces(path))):
        with pytest.raises(TraceError, match=r": .*: not supported.*; supported are .*gemini-cli") as caught:
            read()
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)


def test_known_files_that_are_not_json(tmp_path: Path) -> None:
    database = tmp_path / "state.vscdb"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE cursorDiskKV (key TEXT, value BLOB)")
    exported = tmp_path / "chat.md"
    exported.write_text("# Title\n_Exported on 1/2/2026 at 10:00 from Cursor (1.0)_\n")
    for path in (database, exported):
        with pytest.raises(TraceError, match="a Cursor session: not supported; supported are"):
            list(read_traces(path))
    exported.write_text("🧑‍💻 ## USER\n\nGo.\n\n**Tool Command**:\n")
    with pytest.raises(TraceError, match=r"an exported Gemini CLI chat: not supported \(pass its file"):
        list(read_traces(exported))


def test_documents_that_only_resemble_a_known_agent(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Done."}]
    run = {"messages": messages, "working_dir": "/w"}
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps({**run, "message_count": 2}) for _ in range(2)))
    assert "aider" in FORMATS
    with pytest.raises(TraceError, match="a Goose session"):
        list(read_traces(path))
    path.write_text("\n".join(json.dumps(run) for _ in range(2)))
    assert len(list(read_traces(path))) == 2


PLACES: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "gemini-cli": (".gemini/tmp/w/chats/session-2026-01-02T03-04-1a2b3c4d.jsonl", "1a2b3c4d",
                   lambda path: Path(path.parents[1], ".project_root").write_text("/w\n") and None),
    "pi": (".pi/agent/sessions/--w--/2026-01-02T03-04-05-000Z_01a2.jsonl", "01a2", lambda path: None),
    "copilot-cli": (".copilot/session-state/ba45/events.jsonl", "ba45", lambda path: None),
    "kimi-code": (".kimi-code/sessions/wd_w/session_e4c5/agents/main/wire.jsonl", "e4c5",
                  lambda path: Path(path.parents[2], "state.json").write_text('{"version": 2, "cwd": "/w"}') and None),
}  # fmt: skip


@pytest.mark.parametrize("agent", PLACES)
def test_sessions_are_found(agent: str, tmp_path: Path) -> None:
    name, session_id, prepare = PLACES[agent]
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_bytes((SESSIONS / f"{agent}.jsonl").read_bytes())
    prepare(path)
    (found,) = list_sessions(agent, tmp_path)
    directory = "/w" if agent in ("gemini-cli", "kimi-code") else ""
    assert (found.id, found.path, found.directory) == (session_id, path, directory)
    with open_session(session_id[:3], tmp_path, (agent,)) as opened:
        assert opened == path


def test_the_history_of_aider_is_in_the_repository(tmp_path: Path) -> None:
    assert list_sessions("aider", tmp_path, tmp_path) == []
    (tmp_path / ".aider.chat.history.md").write_text((SESSIONS / "aider.md").read_text())
    (found,) = list_sessions("aider", tmp_path, tmp_path)
    assert (found.id, found.directory) == ("chat-history", str(tmp_path))

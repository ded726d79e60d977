"""Sessions of Windows: one identity for each file, PowerShell, and the paths of a sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from langgraph_takeover.handoff.interop.session_records import make_replacement, move_session
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.readers import parse_trace
from langgraph_takeover.handoff.trace.events import Trace

CLAUDE_CALLS: list[tuple[str, dict[str, str], str]] = [
    ("PowerShell", {"command": "Get-ChildItem"}, "d---- 1/1/2026 src\nd---- 1/1/2026 tests"),
    ("Read", {"file_path": r"c:\p\src\a.ts"}, "     1\u2192export const a = 1;\n"),
    (
        "Write",
        {"file_path": r"c:\p\src\new.ts", "content": "export const n = 1;\n"},
        "File created successfully",
    ),
    (
        "Edit",
        {"file_path": "C:/p/src/a.ts", "old_string": "a = 1", "new_string": "a = 3"},
        "has been updated.",
    ),
    (
        "PowerShell",
        {"command": r"Set-Location 'c:\p'; npx vitest run"},
        "Exit code 1\n      Tests  1 failed (3)\n",
    ),
    ("PowerShell", {"command": r"(Get-Content src\A.ts) -replace '3','4' | Set-Content src\A.ts"}, ""),
    ("Write", {"file_path": "c:/P/src/new.ts", "content": "export const n = 1;\n"}, "has been updated."),
    ("Bash", {"command": "cd /c/p && npm.cmd test"}, "      Tests  3 passed (3)\n"),
]


def read_claude() -> Trace:
    rows: list[dict[str, Any]] = [{"type": "user", "message": {"role": "user", "content": "Fix it"}}]
    for number, (name, arguments, output) in enumerate(CLAUDE_CALLS):
        call = {"type": "tool_use", "id": f"t{number}", "name": name, "input": arguments}
        result = {
            "type": "tool_result",
            "tool_use_id": f"t{number}",
            "content": output,
            "is_error": output.startswith("Exit code"),
        }
        rows += [
            {"type": "assistant", "message": {"id": f"m{number}", "role": "assistant", "content": [call]}},
            {"type": "user", "message": {"role": "user", "content": [result]}},
        ]
    for number, row in enumerate(rows):
        row |= {
            "uuid": f"u{number}",
            "parentUuid": f"u{number - 1}" if number else None,
            "sessionId": "s",
            "version": "2.1.100",
            "cwd": r"c:\p",
            "timestamp": f"2026-05-01T10:00:{number:02}.000Z",
        }
    return parse_trace(rows)


def codex_row(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-05-01T10:00:00.000Z", "type": kind, "payload": payload}


def read_codex(command: Any, output: str, shell: str = "powershell") -> Trace:
    context = f"<environment_context><cwd>C:\\Users\\u\\p</cwd><shell>{shell}</shell></environment_context>"
    patch = "*** Begin Patch\n*** Update File: src\\main.py\n@@\n-a\n+b\n"
    patch += "*** Add File: C:\\Users\\u\\p\\src\\b.py\n+x\n*** End Patch"
    item = "response_item"
    return parse_trace([
        codex_row("session_meta", id="x", cwd="C:\\Users\\u\\p", cli_version="0.140.0"),
        codex_row(item, type="message", role="user", content=[{"type": "input_text", "text": context}]),
        codex_row(item, type="message", role="user", content=[{"type": "input_text", "text": "Fix it"}]),
        codex_row(item, type="custom_tool_call", name="apply_patch", call_id="p", input=patch),
        codex_row(item, type="custom_tool_call_output", call_id="p", output="Exit code: 0\nOutput:\nSuccess."),
        codex_row(
            item,
            type="function_call",
            name="shell",
            call_id="c",
            arguments=json.dumps({"command": command, "workdir": r"c:\Users\u\p"}),
        ),
        codex_row(item, type="function_call_output", call_id="c", output=output),
    ])  # fmt: skip


def test_claude_code() -> None:
    trace = read_claude()
    changes = [[change.path for change in event.changes] for event in trace.events if event.changes]
    assert trace.workspace == "/c/p"
    assert changes == [["src/new.ts"], ["src/a.ts"], ["src/a.ts"]]
    assert [
        (point.kind, point.event_index) for point in list_points(trace.events, trace.base_directories)
    ] == [
        ("first_source_edit", 5),
        ("first_validation", 9),
        ("first_post_failure_edit", 11),
    ]


@pytest.mark.parametrize(
    "command",
    [
        [
            "powershell.exe",
            "-NoProfile",
            "-Command",
            r"$env:CI='1'; .venv\Scripts\python -m pytest tests\test_a.py",
        ],
        r".venv\Scripts\python -m pytest tests\test_a.py",
        ["cmd.exe", "/c", "npm test"],
    ],
)
def test_codex(command: Any) -> None:
    trace = read_codex(command, "Exit code: 1\nWall time: 1 seconds\nOutput:\n1 failed in 0.1s\n")
    assert [change.path for change in trace.events[1].changes] == ["src/b.py", "src/main.py"]
    first, second = list_points(trace.events, trace.base_directories)
    assert (first.event_index, second.kind, second.detail.split(":")[0]) == (
        1,
        "first_validation",
        "test failed",
    )


def test_the_shell_of_a_session_decides() -> None:
    assert read_codex("ls a\\ b", "", "bash").events[2].arguments["command"] == "ls a\\ b"
    assert read_codex("ls a\\b", "").events[2].arguments["command"] == "powershell -Command 'ls a\\b'"


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        (r"cd C:\Users\u\p; type c:\users\u\p\src\a.py", "cd /testbed; type /testbed/src/a.py"),
        ('{"cwd":"C:\\\\Users\\\\u\\\\p\\\\src"}', '{"cwd":"/testbed/src"}'),
        ("c:/Users/u/p/a.py /c/Users/u/p/a.py", "/testbed/a.py /testbed/a.py"),
        (r"C:\Users\u\p2 D:\Users\u\p", r"C:\Users\u\p2 D:\Users\u\p"),
    ],
)
def test_paths_become_those_of_the_sandbox(text: str, moved: str) -> None:
    assert make_replacement({"/c/Users/u/p": "/testbed"})(text) == moved


def test_a_moved_session_names_no_drive(tmp_path: Any) -> None:
    moved = move_session(read_claude(), tmp_path, "/testbed")
    assert "c:" not in moved.model_dump_json().lower()

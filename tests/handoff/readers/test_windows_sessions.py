"""Sessions of Windows: one identity for each file, PowerShell, and the paths of a sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.handoff.interop.session_records import make_replacement, move_session
from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.readers import parse_trace
from langgraph_takeover.handoff.trace.events import Trace

from .session_rows import (
    claude_rows,
    claude_steps,
    codex_call,
    codex_item,
    codex_meta,
    codex_request,
    codex_result,
    list_edits,
    parse_rows,
)

NEW = "export const n = 1;\n"
CLAUDE_CALLS: list[tuple[str, dict[str, str], str]] = [
    ("PowerShell", {"command": "Get-ChildItem"}, "d---- 1/1/2026 src\nd---- 1/1/2026 tests"),
    ("Read", {"file_path": r"c:\p\src\a.ts"}, "     1\u2192export const a = 1;\n"),
    ("Write", {"file_path": r"c:\p\src\new.ts", "content": NEW}, "File created successfully"),
    ("Edit", {"file_path": "C:/p/src/a.ts", "old_string": "a = 1", "new_string": "a = 3"}, "has been updated."),
    ("PowerShell", {"command": r"Set-Location 'c:\p'; npx vitest run"}, "Exit code 1\n      Tests  1 failed (3)\n"),
    ("PowerShell", {"command": r"(Get-Content src\A.ts) -replace '3','4' | Set-Content src\A.ts"}, ""),
    ("Write", {"file_path": "c:/P/src/new.ts", "content": NEW}, "has been updated."),
    ("Bash", {"command": "cd /c/p && npm.cmd test"}, "      Tests  3 passed (3)\n"),
]  # fmt: skip


def read_claude() -> Trace:
    return parse_trace(claude_rows("Fix it", *claude_steps(CLAUDE_CALLS), cwd=r"c:\p"))


def read_codex(command: Any, output: str, shell: str = "powershell") -> Trace:
    context = f"<environment_context><cwd>C:\\Users\\u\\p</cwd><shell>{shell}</shell></environment_context>"
    patch = "*** Begin Patch\n*** Update File: src\\main.py\n@@\n-a\n+b\n"
    patch += "*** Add File: C:\\Users\\u\\p\\src\\b.py\n+x\n*** End Patch"
    return parse_rows(
        codex_meta("C:\\Users\\u\\p", cli_version="0.140.0"),
        codex_request(context),
        codex_request("Fix it"),
        codex_item("custom_tool_call", name="apply_patch", call_id="p", input=patch),
        codex_item("custom_tool_call_output", call_id="p", output="Exit code: 0\nOutput:\nSuccess."),
        codex_call("c", "shell", command=command, workdir=r"c:\Users\u\p"),
        codex_result("c", output),
    )


def test_claude_code() -> None:
    trace = read_claude()
    assert trace.workspace == "/c/p"
    assert list_edits(trace) == [["src/new.ts"], ["src/a.ts"], ["src/a.ts"]]
    points = list_points(trace.events, trace.base_directories)
    assert [point.event_index for point in points] == [5, 9, 11]
    assert [point.kind for point in points] == [
        "first_source_edit",
        "first_validation",
        "first_post_failure_edit",
    ]


PYTEST = r".venv\Scripts\python -m pytest tests\test_a.py"


@pytest.mark.parametrize(
    "command",
    [
        ["powershell.exe", "-NoProfile", "-Command", f"$env:CI='1'; {PYTEST}"],
        PYTEST,
        ["cmd.exe", "/c", "npm test"],
    ],
    ids=["powershell", "text", "cmd"],
)
def test_codex(command: Any) -> None:
    trace = read_codex(command, "Exit code: 1\nWall time: 1 seconds\nOutput:\n1 failed in 0.1s\n")
    assert [change.path for change in trace.events[1].changes] == ["src/b.py", "src/main.py"]
    first, second = list_points(trace.events, trace.base_directories)
    assert (first.event_index, second.kind) == (1, "first_validation")
    assert second.detail.startswith("test failed:")


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

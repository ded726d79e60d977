"""The tools of agents with the arguments of their own schemas, as their newest versions declare them."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.handoff.readers import parse_trace
from langgraph_takeover.handoff.recordings.tool_calls import find_unknown_form, normalize_call

from .session_rows import list_edits, opencode_call, opencode_session

PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** Add File: src/b.py\n+y = 1\n*** End Patch"
SHELL = ("shell", {"command": "ls"})
PATCHED = ("shell", {"command": f"apply_patch <<'PATCH'\n{PATCH}\nPATCH"})


def edit(command: str, **arguments: str) -> tuple[str, dict[str, str]]:
    return "editor", {"command": command, "path": "a.py", **arguments}


REPLACED = edit("str_replace", old="x", new="y")
EDITS = [{"old": "x", "new": "y"}, {"old": "z", "new": ""}]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        # Codex
        ("exec_command", {"cmd": "ls", "yield_time_ms": 1000, "tty": False}, SHELL),
        ("apply_patch", {"input": PATCH}, PATCHED),
        ("write_stdin", {"session_id": 7, "chars": "y\n"}, ("shell", {"command": "y", "is_input": "true"})),
        # Claude Code
        ("Bash", {"command": "ls", "description": "List", "timeout": 5, "run_in_background": False}, SHELL),
        ("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y", "replace_all": False}, REPLACED),
        ("Write", {"file_path": "a.py", "content": "x"}, edit("write", content="x")),
        ("Read", {"file_path": "a.py", "offset": 5, "limit": 3}, edit("view", start="5", end="7")),
        ("TaskStop", {"task_id": "b1"}, ("shell", {"command": "C-c", "is_input": "true"})),
        # opencode
        ("bash", {"command": "ls", "workdir": "pkg"}, ("shell", {"command": "cd pkg && ls"})),
        ("apply_patch", {"patchText": PATCH}, PATCHED),
        ("edit", {"filePath": "a.py", "oldString": "x", "newString": "y", "replaceAll": True}, REPLACED),
        ("write", {"filePath": "a.py", "content": "x"}, edit("write", content="x")),
        # Qwen Code
        ("run_shell_command", {"command": "ls", "is_background": False}, SHELL),
        ("edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, REPLACED),
        ("read_file", {"file_path": "a.py", "offset": 4, "limit": 3}, edit("view", start="5", end="7")),
        ("notebook_edit", {"notebook_path": "a.py", "cell_id": "c", "new_source": "x"}, edit("edit", edits='"x"')),
        # Gemini CLI
        ("run_shell_command", {"command": "ls", "dir_path": "pkg"}, ("shell", {"command": "cd pkg && ls"})),
        ("replace", {"file_path": "a.py", "old_string": "x", "new_string": "y", "allow_multiple": True}, REPLACED),
        ("write_file", {"file_path": "a.py", "content": "x"}, edit("write", content="x")),
        ("read_file", {"file_path": "a.py", "start_line": 5, "end_line": 7}, edit("view", start="5", end="7")),
        # pi
        ("bash", {"command": "ls", "timeout": 5}, SHELL),
        ("edit", {"path": "a.py", "edits": [{"oldText": "x", "newText": "y"}]}, REPLACED),
        ("write", {"path": "a.py", "content": "x"}, edit("write", content="x")),
        # Kimi CLI
        ("Shell", {"command": "ls", "timeout": 5}, SHELL),
        ("StrReplaceFile", {"path": "a.py", "edit": {"old": "x", "new": "y", "replace_all": False}}, REPLACED),
        ("StrReplaceFile", {"path": "a.py", "edit": EDITS},
         edit("edit", edits='[{"new": "y", "old": "x"}, {"new": "", "old": "z"}]')),
        ("WriteFile", {"path": "a.py", "content": "x", "mode": "overwrite"}, edit("write", content="x")),
        ("WriteFile", {"path": "a.py", "content": "x", "mode": "append"}, edit("edit", content="x", edits="null")),
        ("ReadFile", {"path": "a.py", "line_offset": 5, "n_lines": 3}, edit("view", start="5", end="7")),
        # Copilot CLI
        ("bash", {"command": "ls", "description": "d", "initial_wait": 30, "mode": "sync"}, SHELL),
        ("write_bash", {"shellId": "0", "input": "y"}, ("shell", {"command": "y", "is_input": "true"})),
        ("edit", {"path": "a.py", "old_str": "x", "new_str": "y"}, REPLACED),
        ("create", {"path": "a.py", "file_text": "x"}, edit("write", content="x")),
        ("view", {"path": "a.py", "view_range": [5, 7]}, edit("view", start="5", end="7")),
        # OpenHands
        ("terminal", {"command": "ls", "is_input": "false"}, SHELL),
        ("file_editor", {"command": "str_replace", "path": "a.py", "old_str": "x", "new_str": "y"}, REPLACED),
        ("apply_patch", {"patch": PATCH}, PATCHED),
    ],
)  # fmt: skip
def test_tools_of_agents(name: str, arguments: dict[str, Any], expected: tuple[str, dict[str, str]]) -> None:
    assert normalize_call(name, arguments) == expected
    assert find_unknown_form(*expected) is None


def test_a_patch_of_opencode_is_an_edit() -> None:
    state = {"input": {"patchText": PATCH}, "output": "Success. Updated the following files"}
    trace = parse_trace(opencode_session(opencode_call("apply_patch", status="completed", **state)))
    assert list_edits(trace) == [["a.py", "src/b.py"]]

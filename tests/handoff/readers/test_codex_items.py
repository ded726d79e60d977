"""Calls that Codex's scripts make, from their text and from the rows of a session, each in forms seen with Codex 0.171."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.handoff.readers.external.codex_items import (
    find_first_call,
    find_process,
    read_script_items,
)
from langgraph_takeover.handoff.trace.action import Action

EMPTY_PATCH = "apply_patch <<'PATCH'\n*** Begin Patch\n*** End Patch\nPATCH"


def shell(command: str) -> Action:
    return Action("shell", {"command": command})


@pytest.mark.parametrize(
    ("script", "action"),
    [
        ('const r = await tools.exec_command({cmd: "ls \\"a\\"; exit 3"}); text(r.output)', shell('ls "a"; exit 3')),
        ("await tools.exec_command({ 'cmd': 'echo it\\'s' })", shell("echo it's")),
        ("await tools.exec_command({yield_time_ms: 500, cmd: `a\nb`, login: true})", shell("a\nb")),
        ('tools.exec_command({cmd: "ls", workdir: "/tmp/x y"})', shell("cd '/tmp/x y' && ls")),
        ('tools.exec_command({cmd: "\\u00e9\\x41\\u{1F600}\\ud83d\\ude00\\n"})', shell("éA😀😀\n")),
        ('await tools.apply_patch("*** Begin Patch\\n*** End Patch")', shell(EMPTY_PATCH)),
        ("for (const n of [1]) await tools.exec_command({cmd: `exit ${n}`})", None),
        ("const cmd = 'ls'; await tools.exec_command({cmd})", None),
        ("await tools.exec_command(options)", None),
        ("await tools.apply_patch(patch)", None),
        ("text(1)", None),
        ("", None),
        ('tools.exec_command({cmd: "' + "\\" * 100_001, None),
        ("tools.exec_command({" * 50_000, None),
    ],
)  # fmt: skip
def test_the_first_call_of_a_script(script: str, action: Action | None) -> None:
    assert find_first_call(script) == action


@pytest.mark.parametrize(
    ("result", "process"),
    [
        ("Script running with cell ID 3\nWall time 0.3 seconds\nOutput:\n", "3"),
        ('Script completed\nWall time 0.6 seconds\nOutput:\n\n{"session_id":16143,"output":""}', "16143"),
        ("Script completed\nWall time 0.6 seconds\nOutput:\n\ndone", None),
    ],
)
def test_what_still_runs(result: str, process: str | None) -> None:
    assert find_process(result) == process


def make_row(**item: Any) -> dict[str, Any]:
    return {"type": "event_msg", "payload": {"type": "item_completed", "item": {"id": "exec-1", **item}}}


def test_recorded_calls() -> None:
    command = {
        "type": "CommandExecution",
        "command": ["/bin/bash", "-lc", "echo a; exit 1"],
        "process_id": "9",
    }
    update = {"type": "update", "unified_diff": "@@ -1,2 +1,2 @@ f\n a\n-b\n+c\n", "move_path": "/w/new.py"}
    changes = {
        "/w/b.py": {"type": "add", "content": "x = 1\n"},
        "/w/a.py": update,
        "/w/c.py": {"type": "delete"},
    }
    rows = [
        make_row(**command, cwd="file:///w", aggregated_output="a\n", exit_code=1),
        make_row(**command, cwd="file:///tmp/a%20b", aggregated_output="", exit_code=-1),
        make_row(type="FileChange", changes=changes, status="completed", stdout="Success.\n"),
        make_row(type="McpToolCall", server="s", tool="t", arguments={"a": 1}, result={"content": []}),
        make_row(**command, id="call_direct", cwd="file:///w", exit_code=0),
        make_row(type="Unheard"),
        make_row(type=["x"], changes=7),
        {"payload": 1},
    ]  # fmt: skip
    items = list(read_script_items(rows, "/w"))
    assert [(each.action, each.output, each.exit_code) for each in items] == [
        (shell("echo a; exit 1"), "a\n", 1),
        (shell("cd '/tmp/a b' && echo a; exit 1"), "", None),
        (
            shell(
                "apply_patch <<'PATCH'\n*** Begin Patch\n*** Add File: b.py\n+x = 1\n*** Update File: a.py\n"
                "*** Move to: new.py\n@@ f\n a\n-b\n+c\n*** Delete File: c.py\n*** End Patch\nPATCH"
            ),
            "Success.\n",
            0,
        ),
        (Action("mcp__s__t", {"a": "1"}), '{"content": []}', None),
    ]


def test_hostile_scripts_are_read_in_linear_time() -> None:
    for text in ('"' + '\\"' * 90_000, "`$" * 90_000, "tools.exec_command({" * 9_000, "{a:1," * 40_000):
        assert find_first_call(text) is None

"""Calls that Codex's scripts make, from their text and from the rows of a session, each in forms seen with Codex 0.171."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.handoff.readers.external.codex import read
from langgraph_takeover.handoff.readers.external.codex_items import (
    find_first_call,
    find_process,
    read_script_items,
)
from langgraph_takeover.handoff.trace.action import Action

STAMP = "2026-11-28T03:03:41.233Z"
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
    assert [(each.call.action, each.output, each.exit_code) for each in items] == [
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


def make_session(*rows: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    meta = {"id": "s1", "timestamp": STAMP, "cwd": "/w", "cli_version": "0.171.0"}
    prompt = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]}
    return [
        {"timestamp": STAMP, "type": kind, "payload": payload}
        for kind, payload in (("session_meta", meta), ("response_item", prompt), *rows)
    ]


def run_script(text: str, *printed: str, items: tuple[dict[str, Any], ...] = (), **call: Any) -> list[Any]:
    """The rows of one script: its call, the recorded items, and its result."""
    parts = ["Script completed\nWall time 0.1 seconds\nOutput:\n", *printed]
    output = [{"type": "input_text", "text": each} for each in parts]
    own = {"type": "custom_tool_call", "call_id": "call_1", "name": "exec", "input": text, **call}
    result = {"type": f"{own['type']}_output", "call_id": own["call_id"], "output": output}
    recorded = [("event_msg", make_row(**each)["payload"]) for each in items]
    return [("response_item", own), *recorded, ("response_item", result)]


def item(command: str, output: str, code: int) -> dict[str, Any]:
    words = ["/bin/bash", "-lc", command]
    return {
        "type": "CommandExecution",
        "command": words,
        "cwd": "file:///w",
        "aggregated_output": output,
        "exit_code": code,
    }


ONE = 'const r = await tools.exec_command({cmd: "make test"}); text(r.output)'
TWO = "await Promise.all([tools.exec_command({cmd: 'a'}), tools.exec_command({cmd: 'b'})])"
LOOP = "for (const n of [1, 2]) { text((await tools.exec_command({cmd: `exit ${n}`})).output) }"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (run_script(ONE, "1 failed", items=(item("make test", "1 failed\n", 2),)), [("make test", 2)]),
        (run_script(ONE, "1 failed"), [("make test", None)]),
        (run_script(ONE, '{"exit_code":1,"output":"1 failed"}'), [("make test", 1)]),
        (run_script(ONE, '{"session_id":7,"output":"1 failed"}'), [("make test", None)]),
        (run_script(TWO, "1 failed", items=(item("b", "", 0), item("a", "1 failed", 1))), [("b", 0), ("a", 1)]),
        (run_script(TWO, "1 failed"), [("a", None), ("b", None)]),
        (run_script(LOOP, "1 failed", items=(item("p 1", "", 1), item("p 2", "1 failed", 2))), [("p 1", 1), ("p 2", 2)]),
        (run_script("await tools.exec_command({cmd: 'for i in 1; do x?; done'})", "1 failed"), [("for i in 1; do x?; done", None)]),
    ],
)  # fmt: skip
def test_scripts_become_their_calls(rows: list[Any], expected: list[tuple[str, int | None]]) -> None:
    calls = read(make_session(*rows), "s1").calls
    assert [
        (call.arguments["command"], call.result.exit_code if call.result else "open") for call in calls
    ] == expected
    assert calls[-1].result is not None
    assert "1 failed" in calls[-1].result.text
    assert "Script" not in calls[-1].result.text


@pytest.mark.parametrize(
    "script", [LOOP, "await tools.unheard({})", "text(1)", "await tools.exec_command(options)"]
)
def test_a_script_that_is_not_understood_stays(script: str) -> None:
    (call,) = read(make_session(*run_script(script, "x")), "s1").calls
    assert (call.tool, call.arguments) == ("exec", {"input": script})
    assert call.result is not None
    assert call.result.exit_code is None


def test_a_patch_and_a_command_that_runs_on() -> None:
    server = "await tools.exec_command({cmd: 'python3 -m http.server'})"
    change = {
        "type": "FileChange",
        "changes": {"/w/b.py": {"type": "add", "content": "x\n"}},
        "status": "completed",
    }
    patch = run_script('await tools.apply_patch("*** Begin Patch\\n*** End Patch")', "{}", items=(change,))
    rows = [*patch, *run_script(server, '{"session_id":7,"output":""}', call_id="call_2")]
    run = read(make_session(*rows), "s1")
    assert (
        run.calls[0]
        .arguments["command"]
        .startswith("apply_patch <<'PATCH'\n*** Begin Patch\n*** Add File: b.py")
    )
    assert run.calls[0].result is not None
    assert run.calls[0].result.exit_code == 0
    assert run.running == ("python3 -m http.server",)
    # Another call of the session reads its end.
    end = "await tools.write_stdin({session_id: 7})"
    ended = read(make_session(*rows, *run_script(end, '{"exit_code":0,"output":""}', call_id="call_3")), "s1")
    assert ended.running == ()


def test_a_script_that_was_waited_for() -> None:
    started = run_script("// @exec: {}\nawait tools.exec_command({cmd: 'sleep 2; exit 4'})")
    started[-1][1]["output"] = "Script running with cell ID 3\nWall time 0.3 seconds\nOutput:\n"
    wait = {"type": "function_call", "name": "wait", "call_id": "call_2", "arguments": '{"cell_id": "3"}'}
    waited = run_script("", "late", items=(item("sleep 2; exit 4", "late", 4),), **wait)
    before, after = (read(make_session(*rows), "s1") for rows in (started, [*started, *waited]))
    assert before.running == ("sleep 2; exit 4",)
    assert after.running == ()
    assert [call.result.exit_code for call in after.calls if call.result] == [None, 4]


def test_hostile_scripts_are_read_in_linear_time() -> None:
    for text in ('"' + '\\"' * 90_000, "`$" * 90_000, "tools.exec_command({cmd: '" * 7_000, "{a:1," * 40_000):
        assert len(read(make_session(*run_script(text, "x")), "s1").calls) == 1

"""Commands that a session left running in the background."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.readers import parse_trace
from langgraph_takeover.handoff.recordings.branches import BackgroundCommands, CommandResult

from ...agent_sessions import write_codex_session
from .session_rows import claude_call, claude_result, claude_rows, codex_call, codex_result

SERVER = "python3 -m http.server 8000"
Step = tuple[dict[str, str], str, str | None]


@pytest.mark.parametrize(
    ("steps", "running"),
    [
        ([({}, SERVER, "7")], [SERVER]),
        ([({}, SERVER, "7"), ({"session_id": "7"}, "", "7")], [SERVER]),
        ([({}, SERVER, "7"), ({"session_id": "7"}, "", None)], []),
        ([({}, SERVER, "7"), ({"session_id": "8"}, "", None)], [SERVER]),
        ([({"session_id": "9"}, "", "9")], []),
        ([({}, f"{SERVER} &", None)], [f"{SERVER} &"]),
        ([({}, f"{SERVER} & sleep 1; curl localhost:8000; kill $!", None)], []),
        ([({}, f"{SERVER} &", None), ({}, "kill %1", None)], []),
        ([({}, f"{SERVER} &", None), ({}, "sudo pkill -f http.server", None)], []),
        ([({}, f"{SERVER} &", None), ({}, "echo skill", None)], [f"{SERVER} &"]),
        ([({}, "make a & make b & wait", None)], []),
        ([({}, "cd app && make 2>&1", None)], []),
        ([({}, f"{SERVER} &", None), ({}, "npm run dev", "3")], ["npm run dev", f"{SERVER} &"]),
    ],
)
def test_commands_that_still_run(steps: list[Step], running: list[str]) -> None:
    commands = BackgroundCommands()
    for arguments, command, process_id in steps:
        commands.add_result(arguments, CommandResult(command, process_id))
    assert list(commands) == running


def test_a_refused_command_does_not_run() -> None:
    commands = BackgroundCommands()
    commands.add_result({}, CommandResult(f"{SERVER} &", refused=True))
    assert list(commands) == []


def test_codex_names_a_process_that_a_later_call_ends(tmp_path: Path) -> None:
    path = write_codex_session(tmp_path, "/repo", [(SERVER, "", 0), ("npm run dev", "", 0)])
    text = path.read_text().replace("Process exited with code 0", "Process running with session ID 5")
    rows = [json.loads(line) for line in text.splitlines()]
    rows[-1]["payload"]["output"] = rows[-1]["payload"]["output"].replace("ID 5", "ID 6")
    assert parse_trace(rows).running == (SERVER, "npm run dev")
    ended = codex_result("x", "Wall time: 0.1 seconds\nProcess exited with code 130\nOutput:\n")
    rows += [codex_call("x", "write_stdin", session_id=5, chars="\x03"), ended]
    assert parse_trace(rows).running == ("npm run dev",)


STARTED = (
    "Command running in background with ID: b1. Output is being written to: /tmp/claude-0/x/tasks/b1.output."
)
NOTIFICATION = (
    "<task-notification>\n<task-id>b1</task-id>\n<output-file>/tmp/x</output-file>\n<status>{}</status>\n"
    "<summary>Background command</summary>\n</task-notification>"
)


def poll(tool: str, text: str, **arguments: str) -> list[Any]:
    return [claude_call("t2", tool, **arguments), claude_result("t2", text)]


@pytest.mark.parametrize(
    ("later", "running"),
    [
        ([], (SERVER,)),
        (poll("TaskOutput", "<task_id>b1</task_id>\n<status>running</status>", task_id="b1"), (SERVER,)),
        (poll("TaskOutput", "<task_id>b1</task_id>\n<status>completed</status>", task_id="b1"), ()),
        (poll("KillShell", "Successfully killed shell: b1", shell_id="b1"), ()),
        ([NOTIFICATION.format("completed")], ()),
        ([NOTIFICATION.format("running")], (SERVER,)),
    ],
)  # fmt: skip
def test_claude_code_in_the_background(later: list[Any], running: tuple[str, ...]) -> None:
    start = claude_call("t1", "Bash", command=SERVER, run_in_background=True)
    trace = parse_trace(claude_rows("Start it.", start, claude_result("t1", STARTED), *later))
    assert trace.running == running
    assert trace.task == "Start it."


def test_each_notification_ends_its_own_command() -> None:
    commands = BackgroundCommands()
    for process_id in ("a", "b", "c"):
        commands.add_result({}, CommandResult(f"serve {process_id}", process_id))
    ends = [("a", "completed"), ("b", "running"), ("c", "failed")]
    note = "<task-notification><task-id>{}</task-id><status>{}</status></task-notification>"
    commands.add_notification("\n".join(note.format(*end) for end in ends))
    assert list(commands) == ["serve b"]


def test_the_newest_commands_are_kept() -> None:
    commands = BackgroundCommands()
    for number in range(500):
        commands.add_result({}, CommandResult(f"serve {number}", str(number)))
        commands.add_result({}, CommandResult(f"watch {number} &"))
    kept = range(400, 500)
    assert list(commands) == [*(f"serve {each}" for each in kept), *(f"watch {each} &" for each in kept)]

"""Real programs: a session in which Codex calls its tools by scripts goes to Claude Code, to Codex, and to Claude Code."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.handoff.agents.adapter import Launch
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.testing.agents.wire import SeenCall, list_calls

from ...agent_sessions import TASK
from ..test_codex_scripts import DONE, MODEL, script, serve, shell
from .test_live import COMMANDS, STARTS, UNATTENDED, LiveUser, user

__all__ = ["user"]

pytestmark = pytest.mark.slow
FIX = "sed -i 's/ - 1//' shop/price.py"
FIND = "cat shop/price.py | head -2"


def run_with_scripts(live: LiveUser, texts: list[str]) -> None:
    """Run Codex with a model that calls by scripts."""
    adapter = find_adapter("codex")
    replies = [*([script(f"call_{number}", text)] for number, text in enumerate(texts)), [DONE]]
    with serve(replies) as (_, model):
        launch = Launch(
            program=("codex",), home=str(live.home), workspace=str(live.repository),
            port=int(model.base_url.rpartition(":")[2]), model=MODEL, message=TASK,
        )  # fmt: skip
        setup = adapter.setup(launch)
        for name, text in setup.files.items():
            (live.home / name).write_text(text)
        done = subprocess.run(
            ["sh", "-c", STARTS["codex"].format(shlex.quote(TASK))], cwd=live.repository,
            env=live.environment | dict(setup.environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def continue_in(
    live: LiveUser, record: str, agent: str, directory: Path, commands: list[str]
) -> list[SeenCall]:
    """Continue a record in the real program; return the calls that its first request shows."""
    shown = live.handoff(
        "continue", record, "--agent", agent, "--view", "transcript", "--in", directory, "--print"
    )
    command = shown.splitlines()[-1].replace(*UNATTENDED[agent])
    return list_calls(live.run_agent(agent, command, commands, directory)[0])


def test_scripts_go_to_claude_code_and_back(user: LiveUser) -> None:
    """A failing test never becomes one that passed."""
    read, edit, test = map(shell, COMMANDS)
    shown_code = (
        f"const r = await tools.exec_command({{cmd: {json.dumps(COMMANDS[2])}}}); text(JSON.stringify(r));"
    )
    run_with_scripts(user, [read, edit, test, shown_code])
    first = user.handoff("capture", "--agent", "codex").split()[1]
    records = RecordStore(user.home / ".takeover/records")
    codes = [each.exit_code for each in records.load(first).trace if each.kind == "observation"]
    assert codes == [0, 0, 1, 1]

    calls = continue_in(user, first, "claude-code", user.root / "there", [FIND, COMMANDS[2]])
    assert [each.name for each in calls] == ["Bash"] * 4
    assert [each.arguments["command"] for each in calls] == [*COMMANDS, COMMANDS[2]]
    assert "AssertionError: 2 != 3" in str(calls[2].result)
    assert str(calls[3].result).startswith("Exit code 1\n")

    second = user.handoff("capture", "--agent", "claude-code", "--repository", user.root / "there").split()[1]
    calls = continue_in(user, second, "codex", user.root / "back", [FIX])
    assert [each.arguments["cmd"] for each in calls] == [*COMMANDS, COMMANDS[2], FIND, COMMANDS[2]]
    assert "exited with code 0" not in str(calls[2].result) + str(calls[3].result) + str(calls[5].result)

    third = user.handoff("capture", "--agent", "codex", "--repository", user.root / "back").split()[1]
    calls = continue_in(user, third, "claude-code", user.root / "again", [COMMANDS[2]])
    assert [each.arguments["command"] for each in calls] == [*COMMANDS, COMMANDS[2], FIND, COMMANDS[2], FIX]
    assert str(calls[3].result).startswith("Exit code 1\n")
    assert str(calls[5].result).startswith("Exit code 1\n")

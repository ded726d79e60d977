"""Make sessions with rare rows: interrupted calls, resumed sessions, compaction, background processes, refusals.

    python -m tests.handoff.readers.own_sessions --codex PROGRAM --claude PROGRAM

The replies are our own, so that the sessions are stored completely. Claude Code lists its agents and skills in rows of
type `attachment`; these rows are removed (its other attachments stay).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .replay_sessions import Agent, list_agents, run_agent, strip_instructions

DIRECTORY = Path(__file__).parent / "sessions"
REAL_SHELL = "/usr/bin/bash"
CODE = "def add(a, b):\n    return a - b\n"
TEST = "python3 test_calc.py"
TEST_CODE = "from pkg.calc import add\nassert add(1, 2) == 3, 'wrong sum'\nprint('1 passed in 0.01s')\n"
_KILL_AGENT = "kill -9 $PPID"


def _codex(name: str, arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def _shell(command: str, **options: Any) -> dict[str, Any]:
    return _codex("exec_command", {"cmd": command, "yield_time_ms": 5000, **options})


def _patch(body: str) -> dict[str, Any]:
    return _codex("apply_patch", f"*** Begin Patch\n{body}\n*** End Patch\n")


CODEX_STEPS: list[dict[str, Any]] = [
    {"thought": "First the tests.", "text": "I look at the code.", "files": {"pkg/calc.py": CODE, "test_calc.py": TEST_CODE},
     "calls": [_shell("cat pkg/calc.py"), _shell("ls", workdir="/testbed/pkg")]},
    {"calls": [_shell(TEST)]},
    {"calls": [_patch("*** Update File: pkg/calc.py\n@@ def add(a, b):\n-    return a * b\n+    return a + b")]},
    {"calls": [_patch("*** Update File: pkg/calc.py\n@@ def add(a, b):\n-    return a - b\n+    return b - a")]},
    {"calls": [_shell(f"sleep 1; {TEST}", yield_time_ms=300)]},
    {"calls": [_codex("write_stdin", {"session_id": 1, "chars": "", "yield_time_ms": 5000})]},
    {"calls": [_shell(_KILL_AGENT)]},
    {"thought": "The command was interrupted.", "calls": [_shell("false"), _codex("update_plan", {"plan": []})]},
    {"calls": [_patch("*** Update File: pkg/calc.py\n*** Move to: pkg/sums.py\n@@\n-    return b - a\n+    return a + b")]},
    {"calls": [_shell("sed -i s/calc/sums/ test_calc.py"), _shell(TEST)]},
    {"text": "The sum is right now."},
]  # fmt: skip
COMPACTED_STEPS: list[dict[str, Any]] = [
    {"files": {"pkg/calc.py": CODE, "test_calc.py": TEST_CODE}, "calls": [_shell("cat pkg/calc.py")]},
    {"text": "Summary: add subtracts."},
    {"calls": [_patch("*** Update File: pkg/calc.py\n@@\n-    return a - b\n+    return a + b")]},
    {"text": "Summary: add is fixed."},
    {"calls": [_shell(TEST)]},
    {"text": "Summary: the test passes."},
    {"text": "Done."},
]


def _bash(command: str, **options: Any) -> dict[str, Any]:
    return {"name": "Bash", "arguments": {"command": command, "description": "Run", **options}}


def _edit(path: str, old: str, new: str) -> dict[str, Any]:
    return {"name": "Edit", "arguments": {"file_path": path, "old_string": old, "new_string": new}}


def _read(path: str) -> dict[str, Any]:
    return {"name": "Read", "arguments": {"file_path": path}}


_CALC = "/testbed/pkg/calc.py"
CLAUDE_STEPS: list[dict[str, Any]] = [
    {"thought": "First the tests.", "text": "I look at the code.", "files": {_CALC: CODE, "test_calc.py": TEST_CODE},
     "calls": [_read(_CALC), _bash("cd pkg && ls")]},
    {"calls": [_bash(f"cd .. && {TEST}")]},
    {"calls": [_edit(_CALC, "return a * b", "return a + b")]},
    {"calls": [_edit(_CALC, "return a - b", "return b - a")]},
    {"calls": [_bash(f"sleep 1; {TEST}", run_in_background=True)]},
    {"calls": [_bash("sleep 2")]},
    {"calls": [_bash(_KILL_AGENT)]},
    {"thought": "The command was interrupted.", "calls": [_bash("false"), {"name": "Unknown", "arguments": {"a": 1}}]},
    {"calls": [_edit(_CALC, "return b - a", "return a + b")]},
    {"calls": [_bash(TEST), _bash("grep -n nothing pkg/calc.py")]},
    {"text": "The sum is right now."},
]  # fmt: skip


def make(agent: Agent) -> None:
    if agent.name == "codex":
        commands = [
            [*agent.command, "Fix add."],
            ["exec", "resume", "--last", "--skip-git-repo-check", "--json", "Continue."],
        ]
        _save("codex", strip_instructions(run_agent(agent, commands, CODEX_STEPS, shell=REAL_SHELL)))
        compacting = [["exec", "-c", "model_auto_compact_token_limit=500", *agent.command[1:], "Fix add."]]
        _save(
            "codex-compacted",
            strip_instructions(run_agent(agent, compacting, COMPACTED_STEPS, shell=REAL_SHELL)),
        )
        return
    resumed = [*agent.command[:-1], "--continue", "--", "Continue."]
    session = run_agent(agent, [[*agent.command, "Fix add."], resumed], CLAUDE_STEPS, shell=REAL_SHELL)
    rows = [line for line in session.splitlines() if not _is_listing(json.loads(line))]
    _save("claude-code", "\n".join(rows) + "\n")


def _is_listing(row: dict[str, Any]) -> bool:
    return row.get("attachment", {}).get("type") in ("agent_listing_delta", "skill_listing")


def _save(name: str, session: str) -> None:
    (DIRECTORY / f"{name}.jsonl").write_text(session)
    print(name, len(session), "characters")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codex", type=Path, help="Program of Codex.")
    parser.add_argument("--claude", type=Path, help="Program of Claude Code.")
    options = parser.parse_args()
    for agent in list_agents(options.codex, options.claude):
        make(agent)


if __name__ == "__main__":
    main()

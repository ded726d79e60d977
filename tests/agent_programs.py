"""Programs of external agents for tests.

TAKEOVER_TEST_AGENTS names directories with the commands `codex`, `claude`, `mini`, `qwen` and `opencode`, searched before
PATH.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from langgraph_takeover.handoff.agents.adapter import AgentAdapter
from langgraph_takeover.nodes.context.agent_program import AgentProgram, AgentProgramError, find_program

from .conftest import skip_missing_agent


def find_test_command(adapter: AgentAdapter) -> Path:
    """Return the command of an agent; skips the test if it is not installed."""
    directories = filter(None, (os.environ.get("TAKEOVER_TEST_AGENTS"), os.environ.get("PATH")))
    command = shutil.which(adapter.program.executable, path=os.pathsep.join(directories))
    if command is None:
        skip_missing_agent(adapter.name, f"{adapter.name} is not installed ({adapter.program.install})")
    assert command is not None
    return Path(command)


def find_test_program(adapter: AgentAdapter) -> AgentProgram:
    """Return the program of an agent; skips the test if it is missing or cannot be used."""
    command = find_test_command(adapter)
    try:
        return find_program(adapter, command)
    except AgentProgramError as error:
        skip_missing_agent(adapter.name, str(error))
        raise

"""Programs of external agents for tests.

TAKEOVER_TEST_AGENTS names directories with the commands `codex`, `claude`, `mini`, `qwen` and `opencode`, like PATH; without
it, PATH is searched.
"""

from __future__ import annotations

import os
from pathlib import Path

from langgraph_takeover.handoff.agents.adapter import AgentAdapter
from langgraph_takeover.nodes.context.agent_program import AgentProgram, AgentProgramError, find_program

from .conftest import skip_missing_agent


def find_test_program(adapter: AgentAdapter) -> AgentProgram:
    """Return the program of an agent; skips the test if it is not installed."""
    directories = map(Path, filter(None, os.environ.get("TAKEOVER_TEST_AGENTS", "").split(os.pathsep)))
    path = next((each for each in directories if (each / adapter.program.executable).exists()), None)
    try:
        return find_program(adapter, path)
    except AgentProgramError as error:
        skip_missing_agent(adapter.name, str(error))
        raise

"""The contract on every adapter; its live part on the real programs that are installed.

TAKEOVER_TEST_AGENTS names directories with the commands `codex`, `claude`, `mini`, `qwen` and `opencode`, like PATH; without
it, PATH is searched.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.adapter import AgentAdapter
from langgraph_takeover.handoff.agents.contract import *  # noqa: F403
from langgraph_takeover.nodes.context.agent_program import AgentProgramError, find_program

from ...conftest import skip_missing_agent


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> AgentAdapter:
    return ADAPTERS[request.param]


@pytest.fixture
def program(adapter: AgentAdapter) -> tuple[str, ...]:
    directories = map(Path, filter(None, os.environ.get("TAKEOVER_TEST_AGENTS", "").split(os.pathsep)))
    path = next((each for each in directories if (each / adapter.program.executable).exists()), None)
    try:
        return find_program(adapter, path).host_argv
    except AgentProgramError as error:
        skip_missing_agent(adapter.name, str(error))

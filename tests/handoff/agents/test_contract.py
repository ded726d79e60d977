"""The contract on every adapter; its live part on the real programs that are installed."""

from __future__ import annotations

import json

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.adapter import AgentAdapter
from langgraph_takeover.testing.agents import *  # noqa: F403
from langgraph_takeover.testing.agents.agent_programs import AgentKit
from langgraph_takeover.testing.agents.histories import OPENING
from langgraph_takeover.testing.agents.live import finish, run_to_end

from ...agent_programs import find_test_program


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> AgentAdapter:
    return ADAPTERS[request.param]


@pytest.fixture
def program(adapter: AgentAdapter) -> tuple[str, ...]:
    return find_test_program(adapter).host_argv


@pytest.mark.slow
def test_instructions_of_the_repository_reach_the_model(kit: AgentKit) -> None:
    for name in ("AGENTS.md", "CLAUDE.md"):
        (kit.workspace / name).write_text("Write the word dromedary.\n")
    request = run_to_end(kit, kit.launch(0, OPENING), [finish(kit)])[0]
    # mini-swe-agent reads no such file.
    assert ("dromedary" in json.dumps(request.body)) == (kit.adapter.name != "mini")

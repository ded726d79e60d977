"""The contract on every adapter; its live part on the real programs that are installed."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.handoff.agents.adapter import AgentAdapter
from langgraph_takeover.handoff.agents.contract import *  # noqa: F403

from ...agent_programs import find_test_program


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> AgentAdapter:
    return ADAPTERS[request.param]


@pytest.fixture
def program(adapter: AgentAdapter) -> tuple[str, ...]:
    return find_test_program(adapter).host_argv

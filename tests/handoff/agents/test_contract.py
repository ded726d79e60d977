"""The contract on every adapter."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS, AgentAdapter
from langgraph_takeover.handoff.agents.contract import *  # noqa: F403


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> AgentAdapter:
    return ADAPTERS[request.param]


@pytest.fixture
def program(adapter: AgentAdapter) -> tuple[str, ...]:
    import sys

    sys.path.insert(0, "/tmp/w/agents")
    from explore import PROG

    return PROG[adapter.program.executable]

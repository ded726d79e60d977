"""The node of an agent that says its task is done."""

from __future__ import annotations

from nodes.state import AgentState


def finish(state: AgentState) -> AgentState:
    return AgentState(stop_reason="finished")

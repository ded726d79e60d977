"""The node of an agent that says its task is done."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.ledger import handoffs
from nodes.events import last_action
from nodes.settings import AgentContext, get_agent_context
from nodes.state import AgentState


def finish(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    if state.get("handoff"):
        said = last_action(state).arguments.get("message", "")
        handoffs.advance(
            context.session.ledger, state["handoff"], "completed", by=context.name, reason=said or "finished"
        )
    return AgentState(stop_reason="finished")

"""The node of an agent that asks, on purpose, for another to continue."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.event import HandoffPoint
from nodes.state import AgentContext, AgentState, last_action, observed


def handoff(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    message = last_action(state).arguments.get("message", "").strip()
    update = observed(state, runtime.context, "[handed over]")
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]), detail=message[:200] or "requested by the agent"
    )
    update["fired"] = [*update["fired"], point.model_dump(mode="json")]
    update["stop_reason"] = "handoff"
    return update

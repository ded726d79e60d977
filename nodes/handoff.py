"""The node of an agent that asks, on purpose, for another to continue."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.event import HandoffPoint
from handoff.redaction import redact
from nodes.events import last_action, record_observation
from nodes.observation import Observation
from nodes.settings import AgentContext, get_agent_context
from nodes.state import AgentState


def handoff(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    message = redact(last_action(state).arguments.get("message", "").strip())
    update = record_observation(state, get_agent_context(runtime), Observation(text="[handed over]"))
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]), detail=message[:200] or "requested by the agent"
    )
    update["fired"] = [*update.get("fired", []), point.model_dump(mode="json")]
    return update

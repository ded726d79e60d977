"""The node that gives a handoff up until a person looks at it, and raises the alarm."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.ledger import handoffs
from nodes.delivering import DeliveryContext, DeliveryState


def block(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """The alarm is raised at least once: after a crash in between perhaps twice."""
    context = runtime.context
    found = handoffs.load(context.ledger, state["handoff"])
    why = state.get("reason") or state.get("why", "")
    if found.state in ("accepted", "active"):
        found = handoffs.change_state(
            context.ledger, found.id, "timed_out", by=context.by, version=found.version, reason=why
        )
    if found.state != "blocked":
        found = handoffs.change_state(
            context.ledger, found.id, "blocked", by=context.by, version=found.version, reason=why
        )
    context.on_blocked(found)
    return DeliveryState(came_to=found.state)

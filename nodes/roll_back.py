"""The node that gives the work back to the agent that had offered it."""

from __future__ import annotations

from langgraph.runtime import Runtime

from nodes.delivering import DeliveryContext, DeliveryState


def roll_back(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Raises RollbackError where checkpoint and snapshot cannot both be had."""
    runtime.context.roll_back(state["handoff"], state.get("reason", ""))
    return DeliveryState(came_to="rolled_back")

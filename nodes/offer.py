"""The node that offers a handoff, after the pause that is due, where it is not on its way already."""

from __future__ import annotations

import time

from langgraph.runtime import Runtime

from handoff.ledger import handoffs
from nodes.delivering import DeliveryContext, DeliveryState


def offer(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Raises IllegalTransitionError where somebody else moved it meanwhile, or it has ended."""
    context = runtime.context
    found = handoffs.load(context.ledger, state["handoff"])
    tries = state.get("tries", 0)
    if found.state not in ("offered", *handoffs.TRANSFERRED_STATES):
        if tries and found.state == "timed_out":
            time.sleep(context.policy.compute_pause_s(tries))
        handoffs.change_state(
            context.ledger,
            found.id,
            "offered",
            by=context.by,
            version=found.version,
            reason=f"attempt {tries + 1}",
            deadline_s=context.policy.confirm_timeout_s,
        )
    return DeliveryState(tries=tries)

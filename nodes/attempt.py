"""The node that lets the target try: a successor is begun, or goes on where an earlier attempt was cut off."""

from __future__ import annotations

import time
from typing import Literal

from langgraph.runtime import Runtime

from handoff.ledger import handoffs
from handoff.ledger.handoffs import IllegalTransition
from nodes.delivering import DeliveryContext, DeliveryState, Patience
from nodes.replies import ContextOverflow, ModelFailed
from sandbox.machine import SandboxUnavailable


def attempt(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """What fails by its surroundings counts as a try; a bug goes through."""
    context = runtime.context
    ledger, name = context.ledger, state["handoff"]
    tries, why = state.get("tries", 0) + 1, ""
    try:
        context.attempt(handoffs.load(ledger, name))
    except IllegalTransition as error:
        why = str(error)  # a watcher ran out of patience with it meanwhile
    except (ModelFailed, ContextOverflow, SandboxUnavailable) as error:
        why = f"{type(error).__name__}: {error}"
    found = handoffs.load(ledger, name)
    if found.state == "offered":
        found = handoffs.move(ledger, name, "timed_out", by=context.by, version=found.version, reason=why)
    elif why and found.state in ("accepted", "active") and tries < context.patience.attempts:
        time.sleep(context.patience.pause_s(tries))
    return DeliveryState(
        tries=tries,
        came_to=found.state,
        failed=bool(why),
        why=why or found.reason,
        may=_left(state, tries, context.patience),
    )


def _left(state: DeliveryState, tries: int, patience: Patience) -> Literal["retry", "escalate", "block"]:
    if tries < patience.attempts:
        return "retry"
    return "escalate" if state.get("rounds", 0) + 1 < patience.rounds else "block"

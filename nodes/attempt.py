"""The node that lets the target try: a successor is begun, or goes on where an earlier attempt was cut off."""

from __future__ import annotations

import time
from typing import Literal

from langgraph.runtime import Runtime

from handoff.ledger import handoffs
from handoff.ledger.handoffs import IllegalTransitionError
from nodes.delivering import DeliveryContext, DeliveryPolicy, DeliveryState
from nodes.replies import ContextWindowError, ModelError
from sandbox.machine import SandboxUnavailableError


def attempt(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """What fails by its surroundings counts as a try; a bug goes through."""
    context = runtime.context
    ledger, name = context.ledger, state["handoff"]
    tries, why = state.get("tries", 0) + 1, ""
    try:
        context.attempt(handoffs.load(ledger, name))
    except IllegalTransitionError as error:
        why = str(error)  # a watcher ran out of patience with it meanwhile
    except (ModelError, ContextWindowError, SandboxUnavailableError) as error:
        why = f"{type(error).__name__}: {error}"
    found = handoffs.load(ledger, name)
    if found.state == "offered":
        found = handoffs.change_state(
            ledger, name, "timed_out", by=context.by, version=found.version, reason=why
        )
    elif why and found.state in ("accepted", "active") and tries < context.policy.attempts:
        time.sleep(context.policy.compute_pause_s(tries))
    return DeliveryState(
        tries=tries,
        came_to=found.state,
        failed=bool(why),
        why=why or found.reason,
        may=_choose_next_step(state, tries, context.policy),
    )


def _choose_next_step(
    state: DeliveryState, tries: int, policy: DeliveryPolicy
) -> Literal["retry", "escalate", "block"]:
    if tries < policy.attempts:
        return "retry"
    return "escalate" if state.get("rounds", 0) + 1 < policy.rounds else "block"

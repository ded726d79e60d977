"""The node that offers a handoff, after the pause that is due, where it is not on its way already."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import ValidationError

from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.handoffs import IllegalTransitionError
from langgraph_takeover.handoff.notes.parsing import find_first_object, remove_thoughts
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.text.fence import wrap_in_fence
from langgraph_takeover.nodes.delivery.policy import (
    DeliveryContext,
    DeliveryPolicy,
    DeliveryState,
    SupervisorDecision,
)
from langgraph_takeover.nodes.delivery.requests import SupervisorRequest
from langgraph_takeover.nodes.model.calls import ContextWindowError, ModelError, ask_with_schema
from langgraph_takeover.sandbox.interface import SandboxUnavailableError


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


_SUPERVISOR_TIMEOUT_S = 600.0
_DECISION_SCHEMA = {
    "title": "decision",
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": ["retry", "roll_back", "block"]},
        "reason": {"type": "string"},
    },
    "required": ["decision", "reason"],
    "additionalProperties": False,
}


def escalate(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    context = runtime.context
    found = handoffs.load(context.ledger, state["handoff"])
    question = SupervisorRequest(
        handoff=found.id,
        record=found.record,
        task=found.task,
        source=found.source,
        target=found.target,
        state=found.state,
        version=found.version,
        attempts=state.get("tries", 0),
        problem=state.get("why", ""),
    ).model_dump(mode="json")
    if context.supervisor is None:
        decided = SupervisorDecision.model_validate(interrupt(question, response_schema=SupervisorDecision))
    else:
        decided = _ask_supervisor(context, question)
    return DeliveryState(
        decision=decided.decision, reason=decided.reason, rounds=state.get("rounds", 0) + 1, tries=0
    )


def _ask_supervisor(context: DeliveryContext, question: dict[str, Any]) -> SupervisorDecision:
    """What the supervising agent says; where that is nothing, the handoff is blocked and a person sees it."""
    assert context.supervisor is not None
    messages: list[Any] = [
        SystemMessage(load_prompt("escalate", "nodes")),
        HumanMessage(wrap_in_fence(json.dumps(question, indent=1))),
    ]
    try:
        reply = ask_with_schema(
            context.supervisor, messages, _DECISION_SCHEMA, timeout_s=_SUPERVISOR_TIMEOUT_S
        )
        found = find_first_object(remove_thoughts(reply.text), ("decision",)) or {}
        return SupervisorDecision(decision=found.get("decision"), reason=str(found.get("reason", ""))[:500])
    except (ModelError, ContextWindowError) as error:
        return SupervisorDecision(decision="block", reason=f"the supervising agent failed: {error}"[:500])
    except ValidationError:
        return SupervisorDecision(decision="block", reason="the supervising agent did not decide")


def roll_back(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Raises RollbackError where checkpoint and snapshot cannot both be had."""
    runtime.context.roll_back(state["handoff"], state.get("reason", ""))
    return DeliveryState(came_to="rolled_back")


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

"""The node that asks a supervisor, a person or an agent, what is to become of a handoff that nobody takes."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import ValidationError

from handoff.fence import wrap_in_fence
from handoff.ledger import handoffs
from handoff.notes.reading import find_first_object, remove_thoughts
from handoff.prompts import load_prompt
from nodes.delivering import DeliveryContext, DeliveryState, SupervisorDecision
from nodes.replies import ContextWindowError, ModelError, ask_with_schema

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
    question = {
        "handoff": found.id,
        "record": found.record,
        "task": found.task,
        "from": found.source,
        "to": found.target,
        "state": found.state,
        "version": found.version,
        "tries": state.get("tries", 0),
        "why": state.get("why", ""),
        "choices": ["retry", "roll_back", "block"],
    }
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

"""The node that asks a supervisor, a person or an agent, what is to become of a handoff that nobody takes."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import ValidationError

from handoff.fence import fenced
from handoff.ledger import handoffs
from handoff.notes.reading import first_object, without_thoughts
from handoff.prompts import prompt_text
from nodes.delivering import Decision, DeliveryContext, DeliveryState
from nodes.replies import ContextOverflow, ModelFailed, ask_in_schema

_TIMEOUT_S = 600.0
_SCHEMA = {
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
        decided = Decision.model_validate(interrupt(question, response_schema=Decision))
    else:
        decided = _asked(context, question)
    return DeliveryState(
        decision=decided.decision, reason=decided.reason, rounds=state.get("rounds", 0) + 1, tries=0
    )


def _asked(context: DeliveryContext, question: dict[str, Any]) -> Decision:
    """What the supervising agent says; where that is nothing, the handoff is blocked and a person sees it."""
    assert context.supervisor is not None
    messages: list[Any] = [
        SystemMessage(prompt_text("escalate", "nodes")),
        HumanMessage(fenced(json.dumps(question, indent=1))),
    ]
    try:
        reply = ask_in_schema(context.supervisor, messages, _SCHEMA, timeout_s=_TIMEOUT_S)
        found = first_object(without_thoughts(reply.text), ("decision",)) or {}
        return Decision(decision=found.get("decision"), reason=str(found.get("reason", ""))[:500])
    except (ModelFailed, ContextOverflow) as error:
        return Decision(decision="block", reason=f"the supervising agent failed: {error}"[:500])
    except ValidationError:
        return Decision(decision="block", reason="the supervising agent did not decide")

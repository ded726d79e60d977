"""The node in which a successor shows that it got a handoff and understood it, upon which the work is its own."""

from __future__ import annotations

import time

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.runtime import Runtime

from handoff.envelope import Understanding
from handoff.ledger import handoffs
from handoff.prompts import load_prompt
from handoff.receiving import parse_understanding
from handoff.redaction import redact
from nodes.progress import report_progress
from nodes.replies import ContextWindowError, ask_with_schema, measure_usage
from nodes.settings import AgentContext, get_agent_context
from nodes.state import AgentState, Spending

_MAX_ATTEMPTS = 2
_UNDERSTANDING_SCHEMA = {
    "title": "understanding",
    "type": "object",
    "properties": {name: {"type": "string"} for name in Understanding.model_fields},
    "required": list(Understanding.model_fields),
    "additionalProperties": False,
}
_BEGIN_MESSAGE = "You have confirmed, and the work is yours. Begin with your first action."


def confirm(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Ask for goal, next step and what is verified first; with an answer the handoff is accepted, without timed out.

    Raises ModelError, and IllegalTransitionError or HandedOverError where somebody else was faster.
    """
    context = get_agent_context(runtime)
    ledger, handoff = context.session.ledger, state["handoff"]
    found = handoffs.load(ledger, handoff)
    *before, last = state["messages"]
    asked: list[BaseMessage] = [*before, HumanMessage(last.text + load_prompt("confirm", "nodes"))]
    if found.state != "offered" and found.successor == context.session.thread and found.understanding:
        # Accepted just before a crash: it is not asked twice.
        return _build_acceptance(state, found.understanding, state["spent"])
    spent, understanding = state["spent"], None
    for _ in range(_MAX_ATTEMPTS):
        started = time.monotonic()
        try:
            reply = ask_with_schema(
                context.model, asked, _UNDERSTANDING_SCHEMA, timeout_s=context.model_timeout_s
            )
        except ContextWindowError as error:
            return _time_out_handoff(state, context, f"its context overflowed: {error}")
        usage = measure_usage(reply, asked)
        spent = Spending(
            prompt_tokens=spent["prompt_tokens"] + (usage.prompt_tokens or 0),
            completion_tokens=spent["completion_tokens"] + (usage.completion_tokens or 0),
            cost=spent["cost"] + (context.prices.compute_cost(usage) if context.prices else 0.0),
            seconds=spent["seconds"] + time.monotonic() - started,
        )
        understanding = parse_understanding(redact(reply.text))
        if understanding is not None:
            break
    else:
        return _time_out_handoff(
            state, context, "it did not say goal, next_step and verify_first"
        ) | AgentState(spent=spent)
    handoffs.change_state(
        ledger,
        handoff,
        "accepted",
        by=context.name,
        version=found.version,
        reason=understanding.next_step,
        successor=context.session.thread,
        understanding=understanding,
    )
    report_progress(runtime, "confirmed", state, text=understanding.next_step)
    return _build_acceptance(state, understanding, spent)


def _build_acceptance(state: AgentState, understanding: Understanding, spent: Spending) -> AgentState:
    return AgentState(
        messages=[AIMessage(understanding.model_dump_json(indent=1)), HumanMessage(_BEGIN_MESSAGE)],
        spent=spent,
    )


def _time_out_handoff(state: AgentState, context: AgentContext, reason: str) -> AgentState:
    handoffs.change_state(
        context.session.ledger,
        state["handoff"],
        "timed_out",
        by=context.name,
        reason=f"not confirmed: {reason}",
    )
    return AgentState(stop_reason="unconfirmed")

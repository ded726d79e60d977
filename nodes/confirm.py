"""The node in which a successor shows that it got a handoff and understood it, upon which the work is its own."""

from __future__ import annotations

import time

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.runtime import Runtime

from handoff.envelope import Understanding
from handoff.ledger import handoffs
from handoff.prompts import prompt_text
from handoff.receiving import read_understanding
from handoff.redaction import redacted
from nodes.progress import tell
from nodes.replies import ContextOverflow, ask_in_schema, usage_of
from nodes.settings import AgentContext, given
from nodes.state import AgentState, Spent

_TRIES = 2
_SCHEMA = {
    "title": "understanding",
    "type": "object",
    "properties": {name: {"type": "string"} for name in Understanding.model_fields},
    "required": list(Understanding.model_fields),
    "additionalProperties": False,
}
_BEGIN = "You have confirmed, and the work is yours. Begin with your first action."


def confirm(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Ask for goal, next step and what is verified first; with an answer the handoff is accepted, without timed out.

    Raises ModelFailed, and IllegalTransition or HandedOver where somebody else was faster.
    """
    context = given(runtime)
    ledger, handoff = context.session.ledger, state["handoff"]
    found = handoffs.load(ledger, handoff)
    *before, last = state["messages"]
    asked: list[BaseMessage] = [*before, HumanMessage(last.text + prompt_text("confirm", "nodes"))]
    if found.state != "offered" and found.successor == context.session.thread and found.understanding:
        # Accepted just before a crash: it is not asked twice.
        return _accepted(state, found.understanding, state["spent"])
    spent, understanding = state["spent"], None
    for _ in range(_TRIES):
        started = time.monotonic()
        try:
            reply = ask_in_schema(context.model, asked, _SCHEMA, timeout_s=context.model_timeout_s)
        except ContextOverflow as error:
            return _unconfirmed(state, context, f"its context overflowed: {error}")
        usage = usage_of(reply, asked)
        spent = Spent(
            prompt_tokens=spent["prompt_tokens"] + (usage.prompt_tokens or 0),
            completion_tokens=spent["completion_tokens"] + (usage.completion_tokens or 0),
            cost=spent["cost"] + (context.prices.of(usage) if context.prices else 0.0),
            seconds=spent["seconds"] + time.monotonic() - started,
        )
        understanding = read_understanding(redacted(reply.text))
        if understanding is not None:
            break
    else:
        return _unconfirmed(state, context, "it did not say goal, next_step and verify_first") | AgentState(
            spent=spent
        )
    handoffs.move(
        ledger,
        handoff,
        "accepted",
        by=context.name,
        version=found.version,
        reason=understanding.next_step,
        successor=context.session.thread,
        understanding=understanding,
    )
    tell(runtime, "confirmed", state, text=understanding.next_step)
    return _accepted(state, understanding, spent)


def _accepted(state: AgentState, understanding: Understanding, spent: Spent) -> AgentState:
    return AgentState(
        messages=[AIMessage(understanding.model_dump_json(indent=1)), HumanMessage(_BEGIN)], spent=spent
    )


def _unconfirmed(state: AgentState, context: AgentContext, why: str) -> AgentState:
    handoffs.move(
        context.session.ledger, state["handoff"], "timed_out", by=context.name, reason=f"not confirmed: {why}"
    )
    return AgentState(stop_reason="unconfirmed")

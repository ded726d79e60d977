"""The node that takes a record over: verify it, thaw its machine, show its view."""

from __future__ import annotations

import time

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.acceptance import Receiver, find_refusal, parse_understanding
from langgraph_takeover.handoff.ledger.handoffs import Handoff
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.envelope import Refusal, Understanding
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.agent.think import build_instructions
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import report_progress
from langgraph_takeover.nodes.model.calls import ContextWindowError, ask_with_schema, measure_usage
from langgraph_takeover.nodes.state import AgentState, InputError, Spending, build_initial_state
from langgraph_takeover.nodes.tools.custom import list_extra_tools


def receive(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """A record with a view, or a handoff that was offered, which it refuses where something is wrong with it.

    Raises InputError, HandoffNotFoundError or UnknownViewError, and RecordError or SnapshotCorruptError when a record is not whole.
    """
    context = get_agent_context(runtime)
    if state.get("handoff"):
        return _receive_offer(handoffs.load(context.session.ledger, state["handoff"]), runtime)
    if "record" not in state:
        raise InputError('the takeover takes {"record": id, "view": name}, or {"handoff": id}')
    record = context.session.records.load(state["record"])
    return _take_over(record, state.get("view", ""), runtime)


def _receive_offer(handoff: Handoff, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    refused = find_refusal(
        context.session.ledger,
        context.session.records,
        handoff,
        Receiver(name=context.name, max_tokens=context.max_tokens),
    )
    view = handoff.envelope.view
    if refused is None and view and view not in views.VIEWS:
        refused = Refusal(
            kind="view", what=f"there is no view {view!r:.60}", resend=f"name one of {', '.join(views.VIEWS)}"
        )
    if refused is not None:
        handoffs.change_state(
            context.session.ledger, handoff.id, "rejected", by=context.name, version=handoff.version, reason=str(refused)
        )  # fmt: skip
        report_progress(runtime, "refused", AgentState(), kind=refused.kind, text=str(refused))
        return AgentState(stop_reason="refused", record=handoff.record, fired=[])
    record = context.session.records.load(handoff.record).model_copy(update={"envelope": handoff.envelope})
    return _take_over(record, view, runtime) | AgentState(record=record.id)


def _take_over(record: HandoffRecord, view: str, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    view = view or (record.review.view if record.review else "structured")
    messages = views.find_view(view)(record, build_recipient(context))
    machine = context.session.adopt_snapshot(record)
    context.session.enter_state(machine)
    report_progress(runtime, "started", AgentState(), text=f"{record.id} under the view {view}")
    says = build_instructions(context, list_extra_tools(AgentState(record=record.id, view=view), context))
    return build_initial_state([says, *messages], record.task, machine) | AgentState(view=view)


def build_recipient(context: AgentContext) -> views.Recipient:
    """What the view must know of this successor."""
    known = (context.model.profile or {}).get("max_input_tokens")
    window = context.window_tokens or known
    if window is None:
        return views.Recipient(protocol=context.protocol)
    return views.Recipient(protocol=context.protocol, window_tokens=window)


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

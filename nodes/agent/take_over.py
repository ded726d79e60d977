"""Nodes that take a record over: verify it, restore its snapshot, show its view, confirm an offer."""

from __future__ import annotations

import time
from functools import partial

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.acceptance import Receiver, find_refusal, parse_understanding
from langgraph_takeover.handoff.ledger.handoffs import Handoff, LateConfirmationError
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.envelope import Refusal, Understanding
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.agent.lifecycle import build_instructions
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.external.agent_turns import begin_session, resume_session
from langgraph_takeover.nodes.model.calls import ask_with_schema
from langgraph_takeover.nodes.model.model_errors import (
    ContextWindowError,
    ReplyTimeoutError,
    WaitTooLongError,
)
from langgraph_takeover.nodes.model.usage import count_uncounted_calls, measure_usage
from langgraph_takeover.nodes.state import AgentState, InputError, Spending, build_initial_state
from langgraph_takeover.nodes.state_events import add_usage, report_progress, report_wait
from langgraph_takeover.nodes.tools.custom_tools import list_extra_tools


def receive(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Take over a record with a view, or an offered handoff, which is refused if its verification fails.

    Raises InputError, HandoffNotFoundError, UnknownViewError, RecordError or SnapshotCorruptError.
    """
    context = get_agent_context(runtime)
    if state.get("handoff"):
        return _receive_offer(handoffs.load(context.session.ledger, state["handoff"]), runtime)
    if "record" not in state:
        raise InputError('takeover: the input must be {"record": id, "view": name} or {"handoff": id}')
    record = context.session.records.load(state["record"])
    if state.get("view") == CONTINUATION:
        return _continue_own(state, record, runtime)
    return _take_over(record, state.get("view", ""), runtime)


def _continue_own(state: AgentState, record: HandoffRecord, runtime: Runtime[AgentContext]) -> AgentState:
    """Resume the predecessor's own conversation, which the state's messages already hold, in the record's snapshot."""
    context = get_agent_context(runtime)
    resumed = resume_session(context.agent, record)
    if not resumed and not state.get("messages"):
        raise InputError(f"record {record.id}: continuation needs the predecessor's messages (use a view)")
    state_id = context.session.enter_record(record)
    report_progress(runtime, "started", AgentState(), text=f"{record.id}, continued by its own agent")
    return build_initial_state([], record.task, state_id) | AgentState(view=CONTINUATION) | resumed


def _receive_offer(handoff: Handoff, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    refusal = find_refusal(
        context.session.ledger,
        context.session.records,
        handoff,
        Receiver(name=context.name, max_tokens=context.max_tokens),
    )
    view = handoff.envelope.view
    if refusal is None and view and view not in views.VIEWS:
        refusal = Refusal(
            kind="view", what=f"unknown view {view!r:.60}", resend=f"name one of {', '.join(views.VIEWS)}"
        )
    if refusal is not None:
        handoffs.change_state(
            context.session.ledger, handoff.id, "rejected", by=context.name, version=handoff.version, reason=str(refusal)
        )  # fmt: skip
        report_progress(runtime, "refused", AgentState(), kind=refusal.kind, text=str(refusal))
        return AgentState(stop_reason="refused", record=handoff.record, fired=[])
    record = context.session.records.load(handoff.record).model_copy(update={"envelope": handoff.envelope})
    return _take_over(record, view, runtime) | AgentState(record=record.id)


def _take_over(record: HandoffRecord, view: str, runtime: Runtime[AgentContext]) -> AgentState:
    context = get_agent_context(runtime)
    view = view or (record.review.view if record.review else "structured")
    messages = views.find_view(view)(record, build_recipient(context))
    state_id = context.session.enter_record(record)
    report_progress(runtime, "started", AgentState(), text=f"{record.id} under the view {view}")
    if context.agent is not None:
        external = begin_session(context.agent, record.task.workspace)
        return build_initial_state(messages, record.task, state_id) | AgentState(view=view) | external
    tools = list_extra_tools(AgentState(record=record.id, view=view), context)
    instructions = build_instructions(context, tools)
    messages = [instructions, *messages]
    return build_initial_state(messages, record.task, state_id) | AgentState(view=view)


def build_recipient(context: AgentContext) -> views.Recipient:
    """Return what the view must know of this successor."""
    if context.known_window is None:
        return views.Recipient(protocol=context.protocol)
    return views.Recipient(protocol=context.protocol, window_tokens=context.known_window)


_MAX_ATTEMPTS = 2
_UNDERSTANDING_SCHEMA = {
    "title": "understanding",
    "type": "object",
    "properties": {name: {"type": "string"} for name in Understanding.model_fields},
    "required": list(Understanding.model_fields),
    "additionalProperties": False,
}
_CONFIRMATION_STEP = -1
"""The calls of a confirmation come before the first step."""
_DEADLINE_PASSED = "the deadline passed"
_BEGIN_MESSAGE = "You have confirmed the handoff, and the work is yours. Begin with your first action."


def confirm(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Ask for goal, next step and first check. An answer before the deadline accepts the handoff; else it times out.

    The call ends at the deadline. Raises ModelError, and IllegalTransitionError or HandedOverError if another process
    was faster.
    """
    context = get_agent_context(runtime)
    ledger = context.session.ledger
    handoff = handoffs.load(ledger, state["handoff"])
    *before, last = state["messages"]
    question: list[BaseMessage] = [*before, HumanMessage(last.text + load_prompt("confirm", "nodes"))]
    calls = context.session.calls
    if handoff.state != "offered" and handoff.successor == context.session.thread and handoff.understanding:
        # The handoff was accepted just before a crash: do not ask again.
        _, lost = calls.begin_call(_CONFIRMATION_STEP, context.model)
        calls.end_step()
        return _build_acceptance(handoff.understanding, _add_uncounted(state["spent"], lost))
    try:
        understanding, spent, problem = _ask_understanding(runtime, handoff, question, state)
    except BaseException:
        calls.end_failed_step()
        raise
    calls.end_step()
    if understanding is not None:
        try:
            handoffs.change_state(
                ledger,
                handoff.id,
                "accepted",
                by=context.name,
                version=handoff.version,
                reason=understanding.next_step,
                successor=context.session.thread,
                understanding=understanding,
            )
        except LateConfirmationError:
            understanding, problem = None, _DEADLINE_PASSED
    if understanding is None:
        return _time_out_handoff(state, context, problem) | AgentState(spent=spent)
    report_progress(runtime, "confirmed", state, text=understanding.next_step)
    return _build_acceptance(understanding, spent)


def _ask_understanding(
    runtime: Runtime[AgentContext], handoff: Handoff, question: list[BaseMessage], state: AgentState
) -> tuple[Understanding | None, Spending, str]:
    """Return the model's confirmation, or None and the reason; each call ends at the handoff's deadline."""
    context, spent = get_agent_context(runtime), state["spent"]
    for _ in range(_MAX_ATTEMPTS):
        remaining_s = handoffs.compute_remaining_s(context.session.ledger, handoff)
        if remaining_s <= 0:
            return None, spent, _DEADLINE_PASSED
        started, timeout_s = time.monotonic(), min(context.model_timeout_s, remaining_s)
        count, lost = context.session.calls.begin_call(_CONFIRMATION_STEP, context.model)
        spent = _add_uncounted(spent, lost)
        try:
            reply = ask_with_schema(
                context.model,
                question,
                _UNDERSTANDING_SCHEMA,
                timeout_s=timeout_s,
                count=count,
                compute_cost=context.compute_cost,
                cancellation=context.session.stop.cancellation,
                on_wait=partial(report_wait, runtime, state),
            )
        except ContextWindowError as error:
            return None, spent, f"context overflow: {error}"
        except WaitTooLongError as error:
            if timeout_s < remaining_s:
                raise
            return None, spent, str(error)
        except ReplyTimeoutError:
            if timeout_s < remaining_s:
                raise
            # The endpoint may bill the abandoned call.
            return None, _add_uncounted(spent, 1), _DEADLINE_PASSED
        usage = measure_usage(reply, question)
        seconds = time.monotonic() - started
        spent = add_usage(spent, usage, context, seconds, count_uncounted_calls(reply, usage))
        understanding = parse_understanding(redact(reply.text))
        if understanding is not None:
            return understanding, spent, ""
    return None, spent, "the reply lacked goal, next_step or verify_first"


def _add_uncounted(spent: Spending, calls: int) -> Spending:
    return {**spent, "uncounted_calls": spent["uncounted_calls"] + calls}


def _build_acceptance(understanding: Understanding, spent: Spending) -> AgentState:
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

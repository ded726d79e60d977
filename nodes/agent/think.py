"""The node that asks the model for the next action."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.runtime import Runtime

from langgraph_takeover.base.failures import get_logger
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.nodes.agent.drivers import Driver, choose_driver
from langgraph_takeover.nodes.agent.steps import NodeSteps
from langgraph_takeover.nodes.context.settings import (
    AgentContext,
    get_agent_context,
)
from langgraph_takeover.nodes.external.agent_turns import count_late_side_work
from langgraph_takeover.nodes.model.actions import (
    UnreadableReply,
    format_reply,
)
from langgraph_takeover.nodes.model.calls import CallCount, ModelCall
from langgraph_takeover.nodes.model.endpoint_rules import (
    ConversationRepair,
)
from langgraph_takeover.nodes.model.message_content import (
    mark_client,
    redact_reply,
)
from langgraph_takeover.nodes.model.model_errors import (
    ContextWindowError,
    PermanentModelError,
    ReplyTimeoutError,
)
from langgraph_takeover.nodes.model.usage import count_uncounted_calls, measure_usage
from langgraph_takeover.nodes.model.window import (
    Request,
    judge_refusal,
)
from langgraph_takeover.nodes.records import enter_checked_state
from langgraph_takeover.nodes.state import AgentState, Spending, StopReason
from langgraph_takeover.nodes.state_events import (
    add_usage,
    build_action_event,
    find_spent_limit,
    report_progress,
    report_wait,
    store_event,
    store_texts_once,
)
from langgraph_takeover.nodes.tools.execution import refuse_action

_LOG = get_logger(__name__)


def think(
    state: AgentState, runtime: Runtime[AgentContext], messages: list[AnyMessage] | None = None
) -> NodeSteps:
    """Return the model's next action; if a budget is spent, end the run with a handoff point.

    `messages` is what the model sees, by default the state's messages.
    """
    context = get_agent_context(runtime)
    context.session.stop.require_running()
    late = count_late_side_work(state, context)
    shown = state["messages"] if messages is None else messages
    try:
        update = yield from _think(AgentState(**{**state, **late}), runtime, shown)
    except BaseException:
        context.session.calls.end_failed_step()
        raise
    context.session.calls.end_step()
    return late | store_texts_once(state, update)


def _think(state: AgentState, runtime: Runtime[AgentContext], messages: list[AnyMessage]) -> NodeSteps:
    context = get_agent_context(runtime)
    count, lost = context.session.calls.begin_call(state["steps"], context.model)
    state = AgentState(**{**state, "spent": _add_wait(state["spent"], 0, lost)})
    reason = find_spent_budget(state, context)
    if reason is not None:
        return _stop_run(state, context, reason)
    started = time.monotonic()
    driver = choose_driver(state, context, messages)
    if driver.starting:
        report_progress(runtime, "starting", state, text=driver.starting)
    if not context.session.has_checked_state(state["sandbox_state"]):
        enter_checked_state(context.session, state)
    context.session.start_processes()
    repair = driver.begin()
    request = driver.build_request()
    _report_repair(state, runtime, repair)
    if request.exceeds_window:
        return _stop_run(state, context, "context_overflow")
    report_progress(runtime, "thinking", state)
    remaining_s = context.max_seconds - state["spent"]["seconds"]
    try:
        request, reply = yield from _ask(state, runtime, driver, request, remaining_s, count)
    except ContextWindowError:
        waited = time.monotonic() - started
        return _stop_run(state, context, "context_overflow") | AgentState(
            spent=_add_wait(state["spent"], waited, count.billable)
        )
    except ReplyTimeoutError:
        # A call that ended because the agent's time was up is not a failure of the model.
        if remaining_s > context.model_timeout_s:
            raise
        # The wait counts as spent: a resumed run must not wait for the same call again.
        waited = max(time.monotonic() - started, remaining_s)
        return _stop_run(state, context, "max_seconds") | AgentState(
            spent=_add_wait(state["spent"], waited, count.billable)
        )
    reply = repair.repair_reply(reply)
    update = _apply_reply(state, runtime, driver, reply, request, time.monotonic() - started)
    driver.end()
    return update | AgentState(condensed=request.condensed) if request.condensed else update


def _report_repair(state: AgentState, runtime: Runtime[AgentContext], repair: ConversationRepair) -> None:
    """Say once in a session that the endpoint gets repaired messages."""
    session = get_agent_context(runtime).session
    if repair.repairs and not session.has_reported_repair:
        session.has_reported_repair = True
        _LOG.warning("thread %r: %s", session.thread, repair.describe())
        report_progress(runtime, "repaired", state, text=repair.describe())


def _ask(
    state: AgentState,
    runtime: Runtime[AgentContext],
    driver: Driver,
    request: Request,
    remaining_s: float,
    count: CallCount,
) -> Generator[ModelCall, AIMessage, tuple[Request, AIMessage]]:
    """Return the reply and its request, condensed further if it exceeded the window after all."""
    context = get_agent_context(runtime)
    model = driver.bind_model()
    timeout_s = min(context.model_timeout_s, max(remaining_s, 1.0))
    deadline = time.monotonic() + timeout_s

    def prepare_call(request: Request) -> ModelCall:
        return ModelCall(
            model,
            driver.complete_turns(request.messages),
            timeout_s=max(deadline - time.monotonic(), 1.0),
            max_attempts=context.model_tries,
            billing=count,
            cancellation=context.session.stop.cancellation,
            compute_cost=context.compute_cost,
            prompt_chars=request.chars,
            on_wait=partial(report_wait, runtime, state),
        )

    try:
        return request, (yield prepare_call(request))
    except (ContextWindowError, PermanentModelError) as error:
        refusal = judge_refusal(error, request, context.known_window, is_first=not state["steps"])
        shorter = driver.condense(request) if isinstance(refusal, ContextWindowError) else None
        if shorter is None:
            raise refusal from None
        return shorter, (yield prepare_call(shorter))


def _add_wait(spent: Spending, waited: float, uncounted_calls: int) -> Spending:
    """Return the spending including a call without a reply."""
    uncounted = spent["uncounted_calls"] + uncounted_calls
    return {**spent, "seconds": spent["seconds"] + waited, "uncounted_calls": uncounted}


def _apply_reply(
    state: AgentState,
    runtime: Runtime[AgentContext],
    driver: Driver,
    reply: AIMessage,
    request: Request,
    seconds: float,
) -> AgentState:
    context = get_agent_context(runtime)
    further_calls = driver.count_further_calls(reply)
    action = driver.parse_reply(reply, further_calls)
    arguments = {} if isinstance(action, UnreadableReply) else action.arguments
    usage = measure_usage(reply, request.messages, request.chars)
    text = redact(format_reply(reply))
    reply = mark_client(redact_reply(driver.complete_reply(reply)), context.model)
    if state.get("handoff") and state["steps"] == 0:
        handoffs.advance(
            context.session.ledger, state["handoff"], "active", by=context.name, reason=action.tool
        )
    event = build_action_event(state, context, action.tool, text, arguments, usage, seconds)
    update = AgentState(
        messages=[reply],
        events=[store_event(event)],
        steps=state["steps"] + 1,
        spent=add_usage(state["spent"], usage, context, seconds, count_uncounted_calls(reply, usage)),
    )
    if further_calls or state.get("open_calls"):
        update["open_calls"] = further_calls
    if isinstance(action, UnreadableReply):
        update |= _correct_reply(state, runtime, update, redact(action.correction))
    return update


def _correct_reply(
    state: AgentState, runtime: Runtime[AgentContext], update: AgentState, correction: str
) -> AgentState:
    """Return the update for an unreadable reply: the reply itself, and the correction as its result."""
    after = AgentState(
        **{
            **state,
            **update,
            "messages": [*state["messages"], *update["messages"]],
            "events": [*state.get("events", []), *update["events"]],
        }
    )
    refusal = refuse_action(after, runtime, correction, is_whole_reply=not after.get("open_calls"))
    refusal["messages"] = [*update["messages"], *refusal["messages"]]
    refusal["events"] = [*update["events"], *refusal["events"]]
    return refusal


def find_spent_budget(state: AgentState, context: AgentContext) -> StopReason | None:
    """Return the stop reason of a budget that is used up; None if all have something left."""
    if state["steps"] >= context.max_steps:
        return "max_steps"
    if context.max_events is not None and len(state.get("events", [])) >= context.max_events:
        return "max_events"
    return find_spent_limit(state["spent"], context)


def _stop_run(state: AgentState, context: AgentContext, reason: StopReason) -> AgentState:
    """End a run whose budget is spent, with a point from which another agent can continue."""
    update = AgentState(stop_reason=reason, spent=state["spent"])
    events = state.get("events", [])
    if events and "requested" in context.points:
        point = HandoffPoint(
            kind="requested", event_index=len(events) - 1, detail=f"{reason} after {state['steps']} steps"
        )
        update["fired"] = [point.model_dump(mode="json")]
    return update

"""The node that asks the model for the next action."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from inspect import signature
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime

from langgraph_takeover.base.failures import get_logger
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Action, HandoffPoint
from langgraph_takeover.nodes.agent.lifecycle import build_delegate_tool, can_delegate
from langgraph_takeover.nodes.agent.steps import NodeSteps
from langgraph_takeover.nodes.context.settings import (
    AgentContext,
    SettingsError,
    describe_missing_tool_calls,
    get_agent_context,
)
from langgraph_takeover.nodes.events import (
    add_usage,
    build_action_event,
    count_further_calls,
    find_spent_limit,
    report_progress,
    report_wait,
    store_event,
    store_texts_once,
)
from langgraph_takeover.nodes.external.conversation import (
    add_exit_codes,
    bind_request,
    count_late_side_work,
    is_external,
    is_waiting,
    parse_first_action,
    require_process,
)
from langgraph_takeover.nodes.model.actions import (
    UnreadableReply,
    format_reply,
    parse_action,
    parse_call,
)
from langgraph_takeover.nodes.model.calls import CallCount, ModelCall
from langgraph_takeover.nodes.model.endpoint_rules import (
    ConversationRepair,
    complete_turns,
    end_with_user,
    fill_blank,
)
from langgraph_takeover.nodes.model.errors import ContextWindowError, PermanentModelError, ReplyTimeoutError
from langgraph_takeover.nodes.model.message_content import (
    adapt_messages,
    describe_damage,
    mark_client,
    redact_reply,
)
from langgraph_takeover.nodes.model.provider_fields import take_fields
from langgraph_takeover.nodes.model.tool_schemas import build_tool_schemas
from langgraph_takeover.nodes.model.usage import count_chars, count_uncounted_calls, measure_usage
from langgraph_takeover.nodes.model.window import (
    MeasuredConversation,
    Request,
    build_request,
    condense_fully,
    find_last_usage,
    judge_refusal,
    measure_conversation,
)
from langgraph_takeover.nodes.records import enter_checked_state
from langgraph_takeover.nodes.state import AgentState, Spending, StopReason
from langgraph_takeover.nodes.tools.custom_tools import list_extra_tools, list_tool_names
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
    if is_external(state, context) and not is_waiting(state, context):
        report_progress(runtime, "starting", state, text=state["external"]["agent"])
    enter_checked_state(context.session, state)
    # An external agent builds its requests itself.
    conversation = None if is_external(state, context) else _take_conversation(messages, context)
    repair = ConversationRepair(context.model) if conversation is None else conversation.repair
    request = _build_request(state, runtime, conversation, repair)
    if request.exceeds_window:
        return _stop_run(state, context, "context_overflow")
    report_progress(runtime, "thinking", state)
    remaining_s = context.max_seconds - state["spent"]["seconds"]
    try:
        request, reply = yield from _ask(state, runtime, conversation, request, remaining_s, count)
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
    update = _apply_reply(state, runtime, reply, request, time.monotonic() - started)
    if conversation is not None:
        context.session.conversations[_name_agent(context)] = conversation
    return update | AgentState(condensed=request.condensed) if request.condensed else update


def _take_conversation(messages: list[AnyMessage], context: AgentContext) -> MeasuredConversation:
    """Return the agent's conversation. The session has it again after the step, so that no other thread uses it meanwhile."""
    known = context.session.conversations.pop(_name_agent(context), None)
    return measure_conversation(messages, context.model, known)


def _name_agent(context: AgentContext) -> str:
    return context.member.name if context.member else ""


def _build_request(
    state: AgentState,
    runtime: Runtime[AgentContext],
    conversation: MeasuredConversation | None,
    repair: ConversationRepair,
) -> Request:
    """Return the messages of the next call. A team's agents each see messages of their own, which stay complete."""
    context = get_agent_context(runtime)
    if conversation is None:
        messages = add_exit_codes(require_process(state, context).list_messages(), state)
        messages = repair.add(adapt_messages(take_fields(messages, state["messages"]), context.model))
        _report_repair(state, runtime, repair)
        return Request(messages, 0, False, count_chars(messages))
    _report_repair(state, runtime, repair)
    has_window = context.member is None and getattr(context.model, "is_llm", True)
    return build_request(
        conversation,
        state["steps"],
        window_tokens=context.known_window if has_window else None,
        condense=context.condense,
        condensed=state.get("condensed", 0),
        last_usage=find_last_usage(state.get("events", ())),
    )


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
    conversation: MeasuredConversation | None,
    request: Request,
    remaining_s: float,
    count: CallCount,
) -> Generator[ModelCall, AIMessage, tuple[Request, AIMessage]]:
    """Return the reply and its request, condensed further if it exceeded the window after all."""
    context = get_agent_context(runtime)
    model: Runnable[Any, Any]
    if is_external(state, context):
        model = bind_request(context, require_process(state, context))
    else:
        model = _bind_tools(state, context) if context.protocol == "native" else context.model
    timeout_s = min(context.model_timeout_s, max(remaining_s, 1.0))
    deadline = time.monotonic() + timeout_s

    is_ordered = conversation is not None and not conversation.has_odd_turns

    def prepare_call(request: Request) -> ModelCall:
        return ModelCall(
            model,
            end_with_user(request.messages)
            if is_ordered
            else complete_turns(request.messages, context.model),
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
        may_condense = conversation is not None and context.condense and not context.member
        if not may_condense or not isinstance(refusal, ContextWindowError):
            raise refusal from None
        assert conversation is not None
        shorter = condense_fully(conversation, state["steps"])
        if shorter.condensed <= request.condensed:
            raise refusal from None
        return shorter, (yield prepare_call(shorter))


def _add_wait(spent: Spending, waited: float, uncounted_calls: int) -> Spending:
    """Return the spending including a call without a reply."""
    uncounted = spent["uncounted_calls"] + uncounted_calls
    return {**spent, "seconds": spent["seconds"] + waited, "uncounted_calls": uncounted}


def _bind_tools(state: AgentState, context: AgentContext) -> Runnable[Any, Any]:
    """Return the model with its tools. Raises SettingsError if it does not support tools."""
    tools = build_tool_schemas(
        offer_handoff=context.offer_handoff,
        extra_tools=_list_offered_tools(state, context),
        agents=context.member.handoff_targets if context.member else (),
    )
    try:
        return context.model.bind_tools(tools, **_choose_bind_options(context))
    except NotImplementedError as error:
        raise SettingsError(describe_missing_tool_calls(context.model)) from error


def _choose_bind_options(context: AgentContext) -> dict[str, Any]:
    """Return the option that asks the provider for one call per reply, if the run wants that and the client knows it."""
    name = "parallel_tool_calls"
    if context.parallel_tool_calls or name not in signature(context.model.bind_tools).parameters:
        return {}
    disabled = getattr(context.model, "disabled_params", None) or {}
    return {} if name in disabled else {name: False}


def _list_offered_tools(state: AgentState, context: AgentContext) -> tuple[BaseTool, ...]:
    """Return the tools beside the built-in ones that the model sees."""
    delegate_tool = (build_delegate_tool(),) if can_delegate(context) else ()
    return (*list_extra_tools(state, context), *delegate_tool)


def _apply_reply(
    state: AgentState, runtime: Runtime[AgentContext], reply: AIMessage, request: Request, seconds: float
) -> AgentState:
    context = get_agent_context(runtime)
    further_calls = _count_further_calls(state, context, reply)
    action = _parse_reply(state, context, reply, further_calls)
    arguments = {} if isinstance(action, UnreadableReply) else action.arguments
    usage = measure_usage(reply, request.messages, request.chars)
    text = redact(format_reply(reply))
    if not is_external(state, context):  # an external agent gets its reply from the stored one
        reply = cast(AIMessage, fill_blank(reply))
    reply = mark_client(redact_reply(reply), context.model)
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


def _count_further_calls(state: AgentState, context: AgentContext, reply: AIMessage) -> int:
    """Count the calls of a reply that run after its first."""
    may_have_several = context.parallel_tool_calls and context.protocol == "native"
    return count_further_calls(reply) if may_have_several and not is_external(state, context) else 0


def _parse_reply(
    state: AgentState, context: AgentContext, reply: AIMessage, further_calls: int
) -> Action | UnreadableReply:
    if is_external(state, context):
        return parse_first_action(reply)
    if damage := describe_damage(reply):
        return UnreadableReply(damage)
    if further_calls:
        return parse_call(
            reply.tool_calls[0],
            offer_handoff=context.offer_handoff,
            extra_tools=list_tool_names(state, context),
        )
    return parse_action(
        reply,
        context.protocol,
        offer_handoff=context.offer_handoff,
        extra_tools=list_tool_names(state, context),
    )


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

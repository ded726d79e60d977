"""The node that asks the model for the next action."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.nodes.agent.steps import NodeSteps
from langgraph_takeover.nodes.context.settings import (
    AgentContext,
    SettingsError,
    describe_missing_tool_calls,
    get_agent_context,
)
from langgraph_takeover.nodes.delegation.tool import build_delegate_tool, can_delegate
from langgraph_takeover.nodes.events import (
    add_usage,
    build_action_event,
    find_spent_limit,
    report_progress,
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
    DELEGATE_TOOL,
    UnreadableReply,
    format_reply,
    parse_action,
)
from langgraph_takeover.nodes.model.attempts import CallCount
from langgraph_takeover.nodes.model.calls import ModelCall
from langgraph_takeover.nodes.model.errors import ContextWindowError, ReplyTimeoutError
from langgraph_takeover.nodes.model.tool_schemas import build_tool_schemas
from langgraph_takeover.nodes.model.usage import count_uncounted_calls, measure_usage
from langgraph_takeover.nodes.model.window import Request, build_request, condense_fully, find_last_usage
from langgraph_takeover.nodes.state import AgentState, Spending, StopReason
from langgraph_takeover.nodes.tools.custom import list_extra_tools
from langgraph_takeover.nodes.tools.execution import refuse_action


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
    update = yield from _think(AgentState(**{**state, **late}), runtime, shown)
    return late | store_texts_once(state, update)


def _think(state: AgentState, runtime: Runtime[AgentContext], messages: list[AnyMessage]) -> NodeSteps:
    context = get_agent_context(runtime)
    reason = find_spent_budget(state, context)
    if reason is not None:
        return _stop_run(state, context, reason)
    started = time.monotonic()
    if is_external(state, context) and not is_waiting(state, context):
        report_progress(runtime, "starting", state, text=state["external"]["agent"])
    request = _build_request(state, context, messages)
    if request.exceeds_window:
        return _stop_run(state, context, "context_overflow")
    report_progress(runtime, "thinking", state)
    remaining_s = context.max_seconds - state["spent"]["seconds"]
    count = CallCount()
    try:
        request, reply = yield from _ask(state, context, request, remaining_s, count)
    except ContextWindowError:
        waited = time.monotonic() - started
        return _stop_run(state, context, "context_overflow") | AgentState(
            spent=_add_wait(state["spent"], waited, count.billable)
        )
    except ReplyTimeoutError:
        # A call that ended with the agent's own time is no failure of the model.
        if remaining_s > context.model_timeout_s:
            raise
        # The wait counts as spent: a resumed run must not wait for the same call again.
        waited = max(time.monotonic() - started, remaining_s)
        return _stop_run(state, context, "max_seconds") | AgentState(
            spent=_add_wait(state["spent"], waited, count.billable)
        )
    update = _apply_reply(state, runtime, reply, request, time.monotonic() - started)
    return update | AgentState(condensed=request.condensed) if request.condensed else update


def _build_request(state: AgentState, context: AgentContext, messages: list[AnyMessage]) -> Request:
    """Return the messages of the next call. A team's agents each see messages of their own, which stay complete.

    An external agent builds its requests itself.
    """
    if is_external(state, context):
        return Request(add_exit_codes(require_process(state, context).list_messages(), state), 0, False)
    has_window = context.member is None and getattr(context.model, "is_llm", True)
    return build_request(
        messages,
        state["steps"],
        window_tokens=context.known_window if has_window else None,
        condense=context.condense,
        condensed=state.get("condensed", 0),
        last_usage=find_last_usage(state.get("events", ())),
    )


def _ask(
    state: AgentState, context: AgentContext, request: Request, remaining_s: float, count: CallCount
) -> Generator[ModelCall, AIMessage, tuple[Request, AIMessage]]:
    """Return the reply and its request, condensed further if it exceeded the window after all."""
    model: Runnable[Any, Any]
    if is_external(state, context):
        model = bind_request(context, require_process(state, context))
    else:
        model = _bind_tools(state, context) if context.protocol == "native" else context.model
    timeout_s = min(context.model_timeout_s, max(remaining_s, 1.0))
    deadline = time.monotonic() + timeout_s

    def prepare_call(messages: list[BaseMessage]) -> ModelCall:
        return ModelCall(
            model,
            messages,
            timeout_s=max(deadline - time.monotonic(), 1.0),
            max_attempts=context.model_tries,
            billing=count,
            cancellation=context.session.stop.cancellation,
            compute_cost=context.compute_cost,
        )

    try:
        return request, (yield prepare_call(request.messages))
    except ContextWindowError:
        shorter = condense_fully(state["messages"], state["steps"])
        if not context.condense or context.member or shorter.condensed <= request.condensed:
            raise
        return shorter, (yield prepare_call(shorter.messages))


def _add_wait(spent: Spending, waited: float, uncounted_calls: int) -> Spending:
    """Return the spending including a call without a reply."""
    uncounted = spent.get("uncounted_calls", 0) + uncounted_calls
    return {**spent, "seconds": spent["seconds"] + waited, "uncounted_calls": uncounted}


def _bind_tools(state: AgentState, context: AgentContext) -> Runnable[Any, Any]:
    """Return the model with its tools. Raises SettingsError if it does not support tools."""
    tools = build_tool_schemas(
        offer_handoff=context.offer_handoff,
        extra_tools=_list_offered_tools(state, context),
        agents=context.member.handoff_targets if context.member else (),
    )
    try:
        return context.model.bind_tools(tools)
    except NotImplementedError as error:
        raise SettingsError(describe_missing_tool_calls(context.model)) from error


def _list_offered_tools(state: AgentState, context: AgentContext) -> tuple[BaseTool, ...]:
    """Return the tools beside the built-in ones that the model sees."""
    delegate_tool = (build_delegate_tool(),) if can_delegate(context) else ()
    return (*list_extra_tools(state, context), *delegate_tool)


def _list_tool_names(state: AgentState, context: AgentContext) -> list[str]:
    """Return the tool names that are parsed: at the maximum depth, the delegate tool itself refuses the call."""
    delegate_tool = (DELEGATE_TOOL,) if context.delegation is not None else ()
    return [*(tool.name for tool in list_extra_tools(state, context)), *delegate_tool]


def _apply_reply(
    state: AgentState, runtime: Runtime[AgentContext], reply: AIMessage, request: Request, seconds: float
) -> AgentState:
    context = get_agent_context(runtime)
    action = _parse_reply(state, context, reply)
    arguments = {} if isinstance(action, UnreadableReply) else action.arguments
    usage = measure_usage(reply, request.messages)
    text = redact(format_reply(reply))
    # Tool calls are not redacted: a key in them may be made up for a test.
    reply = reply.model_copy(update={"content": _redact_content(reply)})
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
    if isinstance(action, UnreadableReply):
        update |= _correct_reply(state, runtime, update, redact(action.correction))
    return update


def _parse_reply(state: AgentState, context: AgentContext, reply: AIMessage) -> Action | UnreadableReply:
    if is_external(state, context):
        return parse_first_action(reply)
    return parse_action(
        reply,
        context.protocol,
        offer_handoff=context.offer_handoff,
        extra_tools=_list_tool_names(state, context),
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
    refusal = refuse_action(after, runtime, correction)
    refusal["messages"] = [*update["messages"], *refusal["messages"]]
    refusal["events"] = [*update["events"], *refusal["events"]]
    return refusal


def _redact_content(reply: AIMessage) -> str | list[str | dict[str, Any]]:
    """Return the reply's content without keys; parts other than text are the provider's own and stay."""
    if isinstance(reply.content, str):
        return redact(reply.content)
    return [
        redact(part)
        if isinstance(part, str)
        else {**part, "text": redact(part["text"])}
        if part.get("type") == "text" and "text" in part
        else part
        for part in reply.content
    ]


def find_spent_budget(state: AgentState, context: AgentContext) -> StopReason | None:
    """Return the stop reason of a budget that is used up; None if all have something left."""
    if state["steps"] >= context.max_steps:
        return "max_steps"
    if context.max_events is not None and len(state.get("events", [])) >= context.max_events:
        return "max_events"
    return find_spent_limit(state["spent"], context)


def _stop_run(state: AgentState, context: AgentContext, reason: StopReason) -> AgentState:
    """End a run whose budget is spent, with a point from which another agent can continue."""
    update = AgentState(stop_reason=reason)
    events = state.get("events", [])
    if events and "requested" in context.points:
        point = HandoffPoint(
            kind="requested", event_index=len(events) - 1, detail=f"{reason} after {state['steps']} steps"
        )
        update["fired"] = [point.model_dump(mode="json")]
    return update

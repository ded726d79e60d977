"""The node that asks the model for the next action."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.nodes.context.settings import (
    AgentContext,
    SettingsError,
    describe_missing_tool_calls,
    get_agent_context,
)
from langgraph_takeover.nodes.delegation.tool import build_delegate_tool, can_delegate
from langgraph_takeover.nodes.events import build_action_event, report_progress
from langgraph_takeover.nodes.model.actions import (
    DELEGATE_TOOL,
    UnreadableReply,
    build_tool_schemas,
    parse_action,
)
from langgraph_takeover.nodes.model.calls import (
    ContextWindowError,
    ReplyTimeoutError,
    ask_with_retries,
    measure_usage,
)
from langgraph_takeover.nodes.state import AgentState, Spending, StopReason
from langgraph_takeover.nodes.tools.custom import list_extra_tools
from langgraph_takeover.nodes.tools.execution import refuse_action


def think(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """The model's next action; where a budget is spent, the end of the run and a point to hand over at."""
    context = get_agent_context(runtime)
    reason = find_spent_budget(state, context)
    if reason is not None:
        return _stop_run(state, context, reason)
    model = _bind_tools(state, context) if context.protocol == "native" else context.model
    report_progress(runtime, "thinking", state)
    started = time.monotonic()
    left = context.max_seconds - state["spent"]["seconds"]
    try:
        reply = ask_with_retries(
            model,
            list(state["messages"]),
            timeout_s=min(context.model_timeout_s, max(left, 1.0)),
            max_attempts=context.model_tries,
        )
    except ContextWindowError:
        return _stop_run(state, context, "context_overflow")
    except ReplyTimeoutError:
        # A call that the agent's own time ended is no failure of the model.
        if left > context.model_timeout_s:
            raise
        # It counts as spent, or a run that is resumed would wait for it once more.
        waited = max(time.monotonic() - started, left)
        so_far = state["spent"]
        return _stop_run(state, context, "max_seconds") | AgentState(
            spent={**so_far, "seconds": so_far["seconds"] + waited}
        )
    return _apply_reply(state, runtime, reply, time.monotonic() - started)


def _bind_tools(state: AgentState, context: AgentContext) -> Runnable[Any, Any]:
    """Raises SettingsError where the model takes none."""
    tools = build_tool_schemas(
        offer_handoff=context.offer_handoff,
        extra_tools=_list_offered_tools(state, context),
        agents=context.member.handoff_targets if context.member else (),
    )
    try:
        return context.model.bind_tools(tools)
    except NotImplementedError as error:
        raise SettingsError(describe_missing_tool_calls(context.model)) from error


def build_instructions(context: AgentContext, tools: Sequence[BaseTool]) -> SystemMessage:
    """The system message that says how to act."""
    prompts = files("langgraph_takeover.nodes") / "prompts"
    text = (prompts / f"{context.protocol}.md").read_text(encoding="utf-8")
    if can_delegate(context):
        text += (prompts / "delegate.md").read_text(encoding="utf-8")
    if context.protocol == "text":
        if can_delegate(context):
            text += (prompts / "delegate_text.md").read_text(encoding="utf-8")
        if context.offer_handoff:
            text += (prompts / "handoff.md").read_text(encoding="utf-8")
        if tools:
            text += (prompts / "tools.md").read_text(encoding="utf-8")
            text += "".join(
                f"\n- `{tool.name}`: {' '.join(tool.description.split())} "
                f"Arguments: {json.dumps(each['function'].get('parameters', {}).get('properties', {}))}"
                for tool, each in zip(tools, map(convert_to_openai_tool, tools), strict=True)
            )
            text += "\n"
    if context.member:
        text += f"\n{context.member.build_instructions(context.protocol)}\n"
    return SystemMessage(text)


def _list_offered_tools(state: AgentState, context: AgentContext) -> tuple[BaseTool, ...]:
    """The tools beside the built-in ones, as the model is told of them."""
    delegating = (build_delegate_tool(),) if can_delegate(context) else ()
    return (*list_extra_tools(state, context), *delegating)


def _list_tool_names(state: AgentState, context: AgentContext) -> list[str]:
    """Their names as they are read: an agent that may delegate no deeper is told so by the tool."""
    delegating = (DELEGATE_TOOL,) if context.delegation is not None else ()
    return [*(tool.name for tool in list_extra_tools(state, context)), *delegating]


def _apply_reply(
    state: AgentState, runtime: Runtime[AgentContext], reply: AIMessage, seconds: float
) -> AgentState:
    context = get_agent_context(runtime)
    action = parse_action(
        reply,
        context.protocol,
        offer_handoff=context.offer_handoff,
        extra_tools=_list_tool_names(state, context),
    )
    arguments = {} if isinstance(action, UnreadableReply) else action.arguments
    usage, before = measure_usage(reply, state["messages"]), state["spent"]
    text, content = redact(format_reply(reply)), _redact_content(reply)
    # What is called stays as it is: a key in it may be made up for a test.
    reply = reply.model_copy(update={"content": content})
    if state.get("handoff") and state["steps"] == 0:
        handoffs.advance(
            context.session.ledger, state["handoff"], "active", by=context.name, reason=action.tool
        )
    event = build_action_event(state, context, action.tool, text, arguments, usage, seconds)
    update = AgentState(
        messages=[reply],
        events=[event.model_dump(mode="json")],
        steps=state["steps"] + 1,
        spent=Spending(
            prompt_tokens=before["prompt_tokens"] + (usage.prompt_tokens or 0),
            completion_tokens=before["completion_tokens"] + (usage.completion_tokens or 0),
            cost=before["cost"] + (context.prices.compute_cost(usage) if context.prices else 0.0),
            seconds=before["seconds"] + seconds,
        ),
    )
    if isinstance(action, UnreadableReply):
        after = AgentState(
            **{
                **state,
                **update,
                "messages": [reply],
                "events": [*state.get("events", []), *update["events"]],
            }
        )
        told = refuse_action(after, runtime, redact(action.correction))
        told["messages"] = [reply, *told["messages"]]
        told["events"] = [*update["events"], *told["events"]]
        update |= told
    return update


def format_reply(reply: AIMessage) -> str:
    """The reply as text, its native tool calls included."""
    calls = [
        json.dumps({"name": call["name"], "arguments": call["args"]})
        for call in (*reply.tool_calls, *reply.invalid_tool_calls)
    ]
    return "\n".join(part for part in (reply.text, *calls) if part)


def _redact_content(reply: AIMessage) -> str | list[str | dict[str, Any]]:
    """The reply's content without what looks like a key; parts that are no text are a provider's own."""
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
    """The budget that is used up, if any is."""
    if state["steps"] >= context.max_steps:
        return "max_steps"
    if context.max_events is not None and len(state.get("events", [])) >= context.max_events:
        return "max_events"
    so_far = state["spent"]
    tokens = so_far["prompt_tokens"] + so_far["completion_tokens"]
    if context.max_tokens is not None and tokens >= context.max_tokens:
        return "max_tokens"
    if context.max_cost is not None and so_far["cost"] >= context.max_cost:
        return "max_cost"
    if so_far["seconds"] >= context.max_seconds:
        return "max_seconds"
    return None


def _stop_run(state: AgentState, context: AgentContext, reason: StopReason) -> AgentState:
    """The end of a run whose budget is spent, and the point at which another can go on from there."""
    update = AgentState(stop_reason=reason)
    events = state.get("events", [])
    if events and "requested" in context.points:
        point = HandoffPoint(
            kind="requested", event_index=len(events) - 1, detail=f"{reason} after {state['steps']} steps"
        )
        update["fired"] = [point.model_dump(mode="json")]
    return update

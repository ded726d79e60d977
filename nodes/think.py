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

from handoff.event import HandoffPoint
from handoff.ledger import handoffs
from handoff.redaction import redacted
from nodes.acting import refused
from nodes.actions import DELEGATE, Unreadable, native_tools, read_action
from nodes.delegating import delegate_tool, may_delegate
from nodes.events import next_action_event
from nodes.progress import tell
from nodes.recall import tools_of
from nodes.replies import ContextOverflow, ReplyOverdue, ask_patiently, usage_of
from nodes.settings import AgentContext, BadSettings, given, no_tool_calls
from nodes.state import AgentState, Spent, StopReason


def think(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """The model's next action; where a budget is spent, the end of the run and a point to hand over at."""
    context = given(runtime)
    reason = spent(state, context)
    if reason is not None:
        return _stopped(state, context, reason)
    model = _with_tools(state, context) if context.protocol == "native" else context.model
    tell(runtime, "thinking", state)
    started = time.monotonic()
    left = context.max_seconds - state["spent"]["seconds"]
    try:
        reply = ask_patiently(
            model,
            list(state["messages"]),
            timeout_s=min(context.model_timeout_s, max(left, 1.0)),
            tries=context.model_tries,
        )
    except ContextOverflow:
        return _stopped(state, context, "context_overflow")
    except ReplyOverdue:
        # A call that the agent's own time ended is no failure of the model.
        if left > context.model_timeout_s:
            raise
        # It counts as spent, or a run that is resumed would wait for it once more.
        waited = max(time.monotonic() - started, left)
        so_far = state["spent"]
        return _stopped(state, context, "max_seconds") | AgentState(
            spent={**so_far, "seconds": so_far["seconds"] + waited}
        )
    return _taken_up(state, runtime, reply, time.monotonic() - started)


def _with_tools(state: AgentState, context: AgentContext) -> Runnable[Any, Any]:
    """Raises BadSettings where the model takes none."""
    tools = native_tools(
        offer_handoff=context.offer_handoff,
        others=_offered(state, context),
        agents=context.member.targets if context.member else (),
    )
    try:
        return context.model.bind_tools(tools)
    except NotImplementedError as error:
        raise BadSettings(no_tool_calls(context.model)) from error


def instructions(context: AgentContext, tools: Sequence[BaseTool]) -> SystemMessage:
    """The system message that says how to act."""
    prompts = files("nodes") / "prompts"
    text = (prompts / f"{context.protocol}.md").read_text(encoding="utf-8")
    if may_delegate(context):
        text += (prompts / "delegate.md").read_text(encoding="utf-8")
    if context.protocol == "text":
        if may_delegate(context):
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
        text += f"\n{context.member.instructions(context.protocol)}\n"
    return SystemMessage(text)


def _offered(state: AgentState, context: AgentContext) -> tuple[BaseTool, ...]:
    """The tools beside the built-in ones, as the model is told of them."""
    delegating = (delegate_tool(),) if may_delegate(context) else ()
    return (*tools_of(state, context), *delegating)


def _names(state: AgentState, context: AgentContext) -> list[str]:
    """Their names as they are read: an agent that may delegate no deeper is told so by the tool."""
    delegating = (DELEGATE,) if context.delegation is not None else ()
    return [*(tool.name for tool in tools_of(state, context)), *delegating]


def _taken_up(
    state: AgentState, runtime: Runtime[AgentContext], reply: AIMessage, seconds: float
) -> AgentState:
    context = given(runtime)
    action = read_action(
        reply,
        context.protocol,
        offer_handoff=context.offer_handoff,
        others=_names(state, context),
    )
    arguments = {} if isinstance(action, Unreadable) else action.arguments
    usage, before = usage_of(reply, state["messages"]), state["spent"]
    text, content = redacted(as_text(reply)), _spoken(reply)
    # What is called stays as it is: a key in it may be made up for a test.
    reply = reply.model_copy(update={"content": content})
    if state.get("handoff") and state["steps"] == 0:
        handoffs.reach(
            context.session.ledger, state["handoff"], "active", by=context.name, reason=action.tool
        )
    event = next_action_event(state, context, action.tool, text, arguments, usage, seconds)
    update = AgentState(
        messages=[reply],
        events=[event.model_dump(mode="json")],
        steps=state["steps"] + 1,
        spent=Spent(
            prompt_tokens=before["prompt_tokens"] + (usage.prompt_tokens or 0),
            completion_tokens=before["completion_tokens"] + (usage.completion_tokens or 0),
            cost=before["cost"] + (context.prices.of(usage) if context.prices else 0.0),
            seconds=before["seconds"] + seconds,
        ),
    )
    if isinstance(action, Unreadable):
        after = AgentState(
            **{
                **state,
                **update,
                "messages": [reply],
                "events": [*state.get("events", []), *update["events"]],
            }
        )
        told = refused(after, runtime, redacted(action.correction))
        told["messages"] = [reply, *told["messages"]]
        told["events"] = [*update["events"], *told["events"]]
        update |= told
    return update


def as_text(reply: AIMessage) -> str:
    """The reply as text, its native tool calls included."""
    calls = [
        json.dumps({"name": call["name"], "arguments": call["args"]})
        for call in (*reply.tool_calls, *reply.invalid_tool_calls)
    ]
    return "\n".join(part for part in (reply.text, *calls) if part)


def _spoken(reply: AIMessage) -> str | list[str | dict[str, Any]]:
    """The reply's content without what looks like a key; parts that are no text are a provider's own."""
    if isinstance(reply.content, str):
        return redacted(reply.content)
    return [
        redacted(part)
        if isinstance(part, str)
        else {**part, "text": redacted(part["text"])}
        if part.get("type") == "text" and "text" in part
        else part
        for part in reply.content
    ]


def spent(state: AgentState, context: AgentContext) -> StopReason | None:
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


def _stopped(state: AgentState, context: AgentContext, reason: StopReason) -> AgentState:
    """The end of a run whose budget is spent, and the point at which another can go on from there."""
    update = AgentState(stop_reason=reason)
    events = state.get("events", [])
    if events and "requested" in context.points:
        point = HandoffPoint(
            kind="requested", event_index=len(events) - 1, detail=f"{reason} after {state['steps']} steps"
        )
        update["fired"] = [point.model_dump(mode="json")]
    return update

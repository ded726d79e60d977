"""The node that asks the model for the next action."""

from __future__ import annotations

import json
import time
from importlib.resources import files

from langchain_core.messages import AIMessage, SystemMessage
from langgraph.runtime import Runtime

from nodes.actions import Protocol, Unreadable, native_tools, read_action
from nodes.replies import ContextOverflow, ModelFailed, ask, usage_of
from nodes.state import AgentContext, AgentState, StopReason, next_action_event, observed


def think(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    context = runtime.context
    spent = _spent(state, context)
    if spent is not None:
        return AgentState(stop_reason=spent)
    model = (
        context.model.bind_tools(native_tools(offer_handoff=context.offer_handoff))
        if context.protocol == "native"
        else context.model
    )
    started = time.monotonic()
    left = state["started_at"] + context.max_seconds - time.time()
    try:
        reply = ask(model, list(state["messages"]), timeout_s=min(context.model_timeout_s, max(left, 1.0)))
    except ContextOverflow:
        return AgentState(stop_reason="context_overflow")
    except ModelFailed:
        # A call that the agent's own time ended is no failure of the model.
        if _spent(state, context) == "max_seconds":
            return AgentState(stop_reason="max_seconds")
        raise
    return _taken_up(state, context, reply, time.monotonic() - started)


def instructions(protocol: Protocol, *, offer_handoff: bool) -> SystemMessage:
    """The system message that says how to act."""
    prompts = files("nodes") / "prompts"
    text = (prompts / f"{protocol}.md").read_text(encoding="utf-8")
    if offer_handoff and protocol == "text":
        text += (prompts / "handoff.md").read_text(encoding="utf-8")
    return SystemMessage(text)


def _taken_up(state: AgentState, context: AgentContext, reply: AIMessage, seconds: float) -> AgentState:
    action = read_action(reply, context.protocol, offer_handoff=context.offer_handoff)
    arguments = {} if isinstance(action, Unreadable) else action.arguments
    usage = usage_of(reply)
    event = next_action_event(state, action.tool, _shown(reply), arguments, usage, seconds)
    update = AgentState(
        messages=[reply],
        events=[event.model_dump(mode="json")],
        fired=[],
        steps=state["steps"] + 1,
        prompt_tokens=state["prompt_tokens"] + (usage.prompt_tokens or 0),
        completion_tokens=state["completion_tokens"] + (usage.completion_tokens or 0),
    )
    if isinstance(action, Unreadable):
        after = AgentState(**{**state, "messages": [reply], "events": [*state["events"], *update["events"]]})
        told = observed(after, context, action.correction, refused=True)
        told["messages"] = [reply, *told["messages"]]
        told["events"] = [*update["events"], *told["events"]]
        update |= told
    return update


def _shown(reply: AIMessage) -> str:
    """The reply as text, its native tool calls included."""
    calls = [json.dumps({"name": call["name"], "arguments": call["args"]}) for call in reply.tool_calls]
    return "\n".join(part for part in (reply.text, *calls) if part)


def _spent(state: AgentState, context: AgentContext) -> StopReason | None:
    if state["steps"] >= context.max_steps:
        return "max_steps"
    tokens = state["prompt_tokens"] + state["completion_tokens"]
    if context.max_tokens is not None and tokens >= context.max_tokens:
        return "max_tokens"
    if time.time() - state["started_at"] >= context.max_seconds:
        return "max_seconds"
    return None

"""Edits of a step by a person: the action, its event and the model's message stay consistent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, convert_to_messages
from pydantic import TypeAdapter, ValidationError

from langgraph_takeover.handoff.names import ActionProtocol
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import UNREADABLE, Action, Event, write_action
from langgraph_takeover.nodes.context.settings import shorten_value
from langgraph_takeover.nodes.model.actions import (
    BUILT_IN_TOOLS,
    UnreadableReply,
    format_reply,
    parse_action,
    parse_call,
)
from langgraph_takeover.nodes.model.message_content import drop_calls
from langgraph_takeover.nodes.state import AgentState, InputError
from langgraph_takeover.nodes.state_events import (
    count_further_calls,
    list_calls,
    list_open_calls,
    restore_event_data,
    store_event,
    store_texts_once,
)

_MESSAGE_ADAPTER: TypeAdapter[BaseMessage] = TypeAdapter(AnyMessage)


def align_step_edit(values: dict[str, Any], before: AgentState) -> dict[str, Any]:
    """Return the update, with text and message of its last action rewritten to match the action's arguments.

    `before` is the state that the update changes. Raises InputError for events with other indices.
    """
    if "messages" in values:
        values = {**values, "messages": _parse_messages(values["messages"])}
    if not values.get("events"):
        return values
    events, event_count = _parse_events(values, before), len(before.get("events", ()))
    for index, event in enumerate(events, event_count):
        if event.index != index:
            raise InputError(
                f"events: the checkpoint has {event_count} events, so the next index is {index}, not {event.index} "
                "(pass new events only)"
            )
    if events[-1].kind == "action" and events[-1].tool != UNREADABLE:
        messages = list(values.get("messages", ()))
        reply = messages.pop() if messages and isinstance(messages[-1], AIMessage) else None
        if reply is None and list_open_calls(before):
            raise InputError(
                "events: a further call of a reply cannot be edited by itself (edit the reply, one step earlier)"
            )
        events[-1], reply = _align_reply(events[-1], reply)
        values = {**values, "messages": [*messages, reply]}
        if (further_calls := len(list_calls(reply)) - 1) > 0:
            values["open_calls"] = further_calls
    update = {**values, "events": [store_event(event) for event in events]}
    return dict(store_texts_once(before, cast(AgentState, update)))


def restore_texts(values: Any, before: AgentState) -> Any:
    """Return the update, in which stored events that name a message have its text. Raises InputError."""
    events = values.get("events") if isinstance(values, dict) else None
    if not isinstance(events, list) or not all(isinstance(each, dict) for each in events):
        return values
    added = values.get("messages")
    is_complete = isinstance(added, list) and all(isinstance(each, BaseMessage) for each in added)
    messages = [*before.get("messages", ()), *(added if is_complete else ())]
    return {**values, "events": [restore_event_data(each, messages) for each in events]}


def count_open_calls(update: AgentState) -> AgentState:
    """Return the update; if its last message is a reply with several calls, those after the first are to run too."""
    last = update["messages"][-1] if update.get("messages") else None
    further_calls = count_further_calls(last) if isinstance(last, AIMessage) else 0
    return AgentState(**{**update, "open_calls": further_calls}) if further_calls else update


def _parse_events(values: dict[str, Any], before: AgentState) -> list[Event]:
    """Return the update's events; the text of the last action, which is rewritten, may be missing."""
    given = values["events"]
    if isinstance(given, list) and all(isinstance(each, dict) for each in given):
        last = given[-1]
        if last.get("kind") == "action" and last.get("tool") != UNREADABLE and "text" not in last:
            last = {name: value for name, value in last.items() if name != "message"} | {"text": ""}
        messages = [*before.get("messages", ()), *values.get("messages", ())]
        given = [restore_event_data(each, messages) for each in (*given[:-1], last)]
    try:
        return TypeAdapter(list[Event]).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"events.{'.'.join(map(str, first['loc']))}: {first['msg']} (write whole events)"
        ) from None


def _parse_messages(value: Any) -> list[BaseMessage]:
    try:
        return [
            _MESSAGE_ADAPTER.validate_python(each)
            if isinstance(each, dict) and "type" in each
            else convert_to_messages([each])[0]
            for each in (value if isinstance(value, Sequence) and not isinstance(value, str) else [value])
        ]
    except (ValueError, NotImplementedError):
        raise InputError(
            f'messages: pass messages such as {{"role": "user", "content": "…"}}, not {shorten_value(value)}'
        ) from None


def _align_reply(event: Event, reply: AIMessage | None) -> tuple[Event, AIMessage]:
    """Return event and reply, rewritten where they differ from the event's arguments."""
    action = Action(event.tool, dict(event.arguments))
    text = redact(write_action(action))
    if reply is None:
        reply = AIMessage(text)
    elif (parsed := _parse_reply_action(reply, action.tool)) is None or redact(write_action(parsed)) != text:
        is_native = bool(reply.tool_calls)
        reply = _replace_call(reply, action) if is_native else reply.model_copy(update={"content": text})
    return event.model_copy(update={"text": redact(format_reply(reply))}), reply


def _parse_reply_action(reply: AIMessage, tool: str) -> Action | None:
    extra_tools = () if tool in BUILT_IN_TOOLS else (tool,)
    if reply.tool_calls and not reply.invalid_tool_calls:
        action = parse_call(reply.tool_calls[0], offer_handoff=True, extra_tools=extra_tools)
    else:
        protocol: ActionProtocol = "native" if reply.tool_calls else "text"
        action = parse_action(reply, protocol, offer_handoff=True, extra_tools=extra_tools)
    return None if isinstance(action, UnreadableReply) else action


def _replace_call(reply: AIMessage, action: Action) -> AIMessage:
    """Return the reply with its first call replaced, and without the provider's copies of the calls."""
    is_built_in = action.tool in BUILT_IN_TOOLS
    arguments = action.arguments if is_built_in else json.loads(action.arguments["arguments"])
    call = {**reply.tool_calls[0], "name": action.tool, "args": dict(arguments)}
    extra = {name: value for name, value in reply.additional_kwargs.items() if name != "tool_calls"}
    return reply.model_copy(
        update={
            "content": drop_calls(reply.content),
            "tool_calls": [call, *reply.tool_calls[1:]],
            "invalid_tool_calls": [],
            "additional_kwargs": extra,
        }
    )

"""A step as a person edited it: what is done, what the trace says of it and what the model sees are one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, convert_to_messages
from pydantic import TypeAdapter, ValidationError

from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.action import Action, write_action
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event
from langgraph_takeover.nodes.agent.think import format_reply
from langgraph_takeover.nodes.context.settings import shorten_value
from langgraph_takeover.nodes.model.actions import BUILT_IN_TOOLS, UnreadableReply, parse_action
from langgraph_takeover.nodes.state import InputError

_MESSAGE_ADAPTER: TypeAdapter[BaseMessage] = TypeAdapter(AnyMessage)


def align_step_edit(values: dict[str, Any], event_count: int) -> dict[str, Any]:
    """An update of a state that has so many events, in whose last action text and message say its arguments.

    Raises InputError for events that do not come next.
    """
    if "messages" in values:
        values = {**values, "messages": _parse_messages(values["messages"])}
    if not values.get("events"):
        return values
    try:
        events = TypeAdapter(list[Event]).validate_python(values["events"])
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"events.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for index, event in enumerate(events, event_count):
        if event.index != index:
            raise InputError(
                f"events: there are {event_count} at this checkpoint, so the next has the index {index}, not "
                f"{event.index}; give only those that are to be added"
            )
    if events[-1].kind == "action" and events[-1].tool != UNREADABLE:
        messages = list(values.get("messages", ()))
        reply = messages.pop() if messages and isinstance(messages[-1], AIMessage) else None
        edited, said = _align_reply(events[-1], reply)
        values = {**values, "messages": [*messages, said]}
        events[-1] = edited
    return {**values, "events": [event.model_dump(mode="json") for event in events]}


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
            f'messages: give messages such as {{"role": "user", "content": "…"}}, not {shorten_value(value)}'
        ) from None


def _align_reply(event: Event, reply: AIMessage | None) -> tuple[Event, AIMessage]:
    """The event and the model's reply, written anew where they do not say what the event's arguments do."""
    action = Action(event.tool, dict(event.arguments))
    written = redact(write_action(action))
    native = bool(reply and reply.tool_calls)
    if reply is None:
        reply = AIMessage(written)
    elif (said := _parse_reply_action(reply, action.tool)) is None or redact(write_action(said)) != written:
        reply = _replace_call(reply, action) if native else reply.model_copy(update={"content": written})
    return event.model_copy(update={"text": redact(format_reply(reply))}), reply


def _parse_reply_action(reply: AIMessage, tool: str) -> Action | None:
    others = () if tool in BUILT_IN_TOOLS else (tool,)
    found = parse_action(
        reply, "native" if reply.tool_calls else "text", offer_handoff=True, extra_tools=others
    )
    return None if isinstance(found, UnreadableReply) else found


def _replace_call(reply: AIMessage, action: Action) -> AIMessage:
    """The reply with its one call written anew; what a provider keeps of the old one beside it goes."""
    given = action.arguments if action.tool in BUILT_IN_TOOLS else json.loads(action.arguments["arguments"])
    call = {**reply.tool_calls[0], "name": action.tool, "args": dict(given)}
    beside = {name: each for name, each in reply.additional_kwargs.items() if name != "tool_calls"}
    return reply.model_copy(
        update={
            "content": reply.text,
            "tool_calls": [call],
            "invalid_tool_calls": [],
            "additional_kwargs": beside,
        }
    )

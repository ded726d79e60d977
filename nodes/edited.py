"""A step as a person edited it: what is done, what the trace says of it and what the model sees are one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, convert_to_messages
from pydantic import TypeAdapter, ValidationError

from handoff.action import Action, write_action
from handoff.event import UNREADABLE, Event
from handoff.redaction import redacted
from nodes.actions import BUILT_IN, Unreadable, read_action
from nodes.settings import shown
from nodes.state import BadInput
from nodes.think import as_text

_MESSAGE: TypeAdapter[BaseMessage] = TypeAdapter(AnyMessage)


def as_edited(values: dict[str, Any], events_before: int) -> dict[str, Any]:
    """An update of a state that has so many events, in whose last action text and message say its arguments.

    Raises BadInput for events that do not come next.
    """
    if "messages" in values:
        values = {**values, "messages": _messages(values["messages"])}
    if not values.get("events"):
        return values
    try:
        events = TypeAdapter(list[Event]).validate_python(values["events"])
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"events.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for index, event in enumerate(events, events_before):
        if event.index != index:
            raise BadInput(
                f"events: there are {events_before} at this checkpoint, so the next has the index {index}, not "
                f"{event.index}; give only those that are to be added"
            )
    if events[-1].kind == "action" and events[-1].tool != UNREADABLE:
        messages = list(values.get("messages", ()))
        reply = messages.pop() if messages and isinstance(messages[-1], AIMessage) else None
        edited, said = _in_one(events[-1], reply)
        values = {**values, "messages": [*messages, said]}
        events[-1] = edited
    return {**values, "events": [event.model_dump(mode="json") for event in events]}


def _messages(given: Any) -> list[BaseMessage]:
    try:
        return [
            _MESSAGE.validate_python(each)
            if isinstance(each, dict) and "type" in each
            else convert_to_messages([each])[0]
            for each in (given if isinstance(given, Sequence) and not isinstance(given, str) else [given])
        ]
    except (ValueError, NotImplementedError):
        raise BadInput(
            f'messages: give messages such as {{"role": "user", "content": "…"}}, not {shown(given)}'
        ) from None


def _in_one(event: Event, reply: AIMessage | None) -> tuple[Event, AIMessage]:
    """The event and the model's reply, written anew where they do not say what the event's arguments do."""
    action = Action(event.tool, dict(event.arguments))
    written = redacted(write_action(action))
    native = bool(reply and reply.tool_calls)
    if reply is None:
        reply = AIMessage(written)
    elif (said := _said(reply, action.tool)) is None or redacted(write_action(said)) != written:
        reply = _calling(reply, action) if native else reply.model_copy(update={"content": written})
    return event.model_copy(update={"text": redacted(as_text(reply))}), reply


def _said(reply: AIMessage, tool: str) -> Action | None:
    others = () if tool in BUILT_IN else (tool,)
    found = read_action(reply, "native" if reply.tool_calls else "text", offer_handoff=True, others=others)
    return None if isinstance(found, Unreadable) else found


def _calling(reply: AIMessage, action: Action) -> AIMessage:
    """The reply with its one call written anew; what a provider keeps of the old one beside it goes."""
    given = action.arguments if action.tool in BUILT_IN else json.loads(action.arguments["arguments"])
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

"""Events as the chat messages that they were, or would have been, in either protocol."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.handoff.text.fence import neutralize, quote_text
from langgraph_takeover.handoff.trace.action import Action, ActionProtocol, write_action
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event

_CALL_START = re.compile(
    r'```|^\{"name"|<(?:editor|shell|bash|sh|execute_bash|str_replace_editor|submit|finish|handoff|recall|function|tool)',
    re.MULTILINE,
)
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")
RESULT_NOT_RECORDED = "[the result of this action was not recorded]"
EMPTY_RESULT = "[nothing was shown]"


class Step(NamedTuple):
    """One action, and what answered it."""

    action: Event
    observation: Event | None


def list_steps(events: Iterable[Event]) -> list[Step]:
    """The actions of a trace, each with its observation; an observation that answers none is left out."""
    found: list[Step] = []
    for event in events:
        if event.kind == "action":
            found.append(Step(event, None))
        elif found and found[-1].observation is None:
            found[-1] = Step(found[-1].action, event)
    return found


def build_messages(
    history: Iterable[Step], protocol: ActionProtocol, *, include_thoughts: bool = True
) -> list[BaseMessage]:
    """Steps as chat history: every call has its one answer, and in text nobody speaks twice in a row."""
    return [message for step in history for message in _build_step_messages(step, protocol, include_thoughts)]


def merge_human_messages(messages: list[BaseMessage]) -> list[BaseMessage]:
    """The same without two messages of a person in a row, which some chat templates refuse."""
    found: list[BaseMessage] = []
    for message in messages:
        if found and isinstance(message, HumanMessage) and isinstance(found[-1], HumanMessage):
            found[-1] = HumanMessage(f"{found[-1].text.rstrip()}\n\n{message.text}")
        else:
            found.append(message)
    return found


def _build_step_messages(step: Step, protocol: ActionProtocol, include_thoughts: bool) -> list[BaseMessage]:
    action, seen = step
    answer = (quote_text(seen.text) or EMPTY_RESULT) if seen else RESULT_NOT_RECORDED
    if action.tool == UNREADABLE:
        return [AIMessage(quote_text(action.text) or "…"), HumanMessage(answer)]
    tool = _sanitize_name(action.tool)
    thought = quote_text(_CALL_START.split(action.text, 1)[0].strip()) if include_thoughts else ""
    arguments = {_sanitize_name(name): quote_text(value) for name, value in action.arguments.items()}
    if protocol == "native":
        call = {"name": tool, "args": _decode_arguments(arguments), "id": f"call_e{action.index}"}
        return [AIMessage(thought, tool_calls=[call]), ToolMessage(answer, tool_call_id=call["id"])]
    said = write_action(Action(tool, arguments)) if arguments else f"<{tool}></{tool}>"
    # Only now it is whole: a tool may be called as our fence is.
    return [AIMessage(neutralize(f"{thought}\n\n{said}".strip())), HumanMessage(answer)]


def _sanitize_name(name: str) -> str:
    """A name as providers take it."""
    return _INVALID_NAME_CHARS.sub("_", name)[:64] or "_"


def _decode_arguments(arguments: dict[str, str]) -> dict[str, Any]:
    """A native call's arguments: those of an embedding program's tool are kept as JSON."""
    if set(arguments) != {"arguments"}:
        return dict(arguments)
    try:
        found = json.loads(arguments["arguments"])
    except (ValueError, RecursionError):
        return dict(arguments)
    return _quote_json(found) if isinstance(found, dict) else dict(arguments)


def _quote_json(value: Any) -> Any:
    """Decoded JSON, whose escapes may have hidden what `quoted` would have found."""
    if isinstance(value, dict):
        return {quote_text(name): _quote_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_quote_json(each) for each in value]
    return quote_text(value) if isinstance(value, str) else value

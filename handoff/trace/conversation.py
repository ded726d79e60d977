"""Events as chat messages, in either action protocol."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.text.fence import neutralize, quote_text
from langgraph_takeover.handoff.trace.action import Action, ActionProtocol, write_action
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event

_CALL_START = re.compile(
    r'```|^\{"name"|<(?:editor|shell|bash|sh|execute_bash|str_replace_editor|submit|finish|handoff|recall|function|tool)',
    re.MULTILINE,
)
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")
RESULT_NOT_RECORDED = "[the result of this action was not recorded]"
EMPTY_RESULT = "[no output]"
EXIT_CODE_NOT_RECORDED = "[the exit code of this command was not recorded]"
"""Last line of a result for agents that show an exit code only after a failure."""


class Step(NamedTuple):
    """One action and its observation."""

    action: Event
    observation: Event | None


class History(NamedTuple):
    """Earlier work as a conversation: a first message, steps, and the message to continue with."""

    opening: str
    steps: tuple[Step, ...]
    closing: str
    dropped: tuple[int, ...] = ()
    """Events of the record that are left out."""
    has_thoughts: bool = True
    """Whether the words beside the actions are shown."""

    def build_messages(self, protocol: ActionProtocol) -> list[BaseMessage]:
        shown = build_messages(self.steps, protocol, include_thoughts=self.has_thoughts)
        return merge_human_messages([HumanMessage(self.opening), *shown, HumanMessage(self.closing)])


def list_event_indices(step: Step) -> list[int]:
    """List the indices of a step's events."""
    return [event.index for event in step if event is not None]


def list_steps(events: Iterable[Event]) -> list[Step]:
    """List the actions of a trace with their observations; observations without an action are omitted."""
    steps: list[Step] = []
    for event in events:
        if event.kind == "action":
            steps.append(Step(event, None))
        elif steps and steps[-1].observation is None:
            steps[-1] = Step(steps[-1].action, event)
    return steps


def build_messages(
    history: Iterable[Step], protocol: ActionProtocol, *, include_thoughts: bool = True
) -> list[BaseMessage]:
    """Convert steps to chat messages: every call has exactly one result; in text, the roles alternate."""
    return [message for step in history for message in _build_step_messages(step, protocol, include_thoughts)]


def merge_human_messages(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Merge consecutive human messages, which some chat templates reject."""
    merged: list[BaseMessage] = []
    for message in messages:
        if merged and isinstance(message, HumanMessage) and isinstance(merged[-1], HumanMessage):
            merged[-1] = HumanMessage(f"{merged[-1].text.rstrip()}\n\n{message.text}")
        else:
            merged.append(message)
    return merged


def _build_step_messages(step: Step, protocol: ActionProtocol, include_thoughts: bool) -> list[BaseMessage]:
    action, observation = step
    result = (quote_text(observation.text) or EMPTY_RESULT) if observation else RESULT_NOT_RECORDED
    if action.tool == UNREADABLE:
        return [AIMessage(quote_text(action.text) or "…"), HumanMessage(result)]
    tool = _sanitize_name(action.tool)
    thought = quote_text(_CALL_START.split(action.text, 1)[0].strip()) if include_thoughts else ""
    arguments = {_sanitize_name(name): quote_text(value) for name, value in action.arguments.items()}
    if protocol == "native":
        call = {"name": tool, "args": _decode_arguments(arguments), "id": f"call_e{action.index}"}
        return [AIMessage(thought, tool_calls=[call]), ToolMessage(result, tool_call_id=call["id"])]
    call_text = write_action(Action(tool, arguments)) if arguments else f"<{tool}></{tool}>"
    # Neutralized only as a whole, because a tool may have the name of the fence.
    return [AIMessage(neutralize(f"{thought}\n\n{call_text}".strip())), HumanMessage(result)]


def _sanitize_name(name: str) -> str:
    """Restrict a name to the characters that providers accept."""
    return _INVALID_NAME_CHARS.sub("_", name)[:64] or "_"


def _decode_arguments(arguments: dict[str, str]) -> dict[str, Any]:
    """Arguments of a native call; those of a tool of an embedding program are decoded from JSON."""
    if set(arguments) != {"arguments"}:
        return dict(arguments)
    try:
        decoded = parse_json(arguments["arguments"])
    except ValueError:
        return dict(arguments)
    return _quote_json(decoded) if isinstance(decoded, dict) else dict(arguments)


def _quote_json(value: Any) -> Any:
    """Quote all texts in decoded JSON, because escapes may have hidden them from `quote_text`."""
    if isinstance(value, dict):
        return {quote_text(name): _quote_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_quote_json(item) for item in value]
    return quote_text(value) if isinstance(value, str) else value

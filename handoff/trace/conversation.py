"""Events as chat messages, and as text for a model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.names import ActionProtocol
from langgraph_takeover.handoff.shell.command_effects import list_shown_files
from langgraph_takeover.handoff.text.fence import cut_middle, neutralize, quote_text
from langgraph_takeover.handoff.trace.events import UNREADABLE, Action, Event, write_action

_EXIT_CODE_LINE = re.compile(r"\[exit code -?\d+\]\n")
_NUMBERED_LINE = re.compile(r"\s*\d+\t(.*)")


def compute_text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def extract_whole_content(action: Event, observation: Event, sha256: str) -> str | None:
    """Return the file that an observation shows, if it shows all of it: only then it has the digest."""
    if action.tool == "editor":
        lines = [_NUMBERED_LINE.fullmatch(line) for line in observation.text.split("\n")[1:]]
        text = "\n".join(line[1] for line in lines if line)
    elif list_shown_files(action.arguments.get("command", "")):
        text = _EXIT_CODE_LINE.sub("", observation.text, count=1)
    else:
        return None
    for content in (text, f"{text}\n"):
        if compute_text_digest(content) == sha256:
            return content
    return None


_MIN_REPEATED_CHARS = 400
"""A shorter text is repeated rather than referred to."""


def render_events(events: Iterable[Event]) -> str:
    """Render events as text: step, source, type, text. The text of a command's observation starts with its result."""
    return "\n".join(f"{render_heading(event)}\n{quote_text(event.text)}\n" for event in events)


def render_trace(
    trace: Sequence[Event],
    *,
    max_event_chars: int | None = None,
    find_agent_number: Callable[[int], int] = lambda index: 0,
) -> str:
    """Render all events of a trace; a long observation that an earlier one shows too refers to it instead.

    Nothing is lost: the heading names the event with the same text, or the same whole file. `max_event_chars` cuts the
    middle of longer events. `find_agent_number` numbers the agents by an event's index; 0 is the only one.
    """
    shown: dict[object, int] = {}
    parts = []
    for number, event in enumerate(trace):
        text = event.text if max_event_chars is None else cut_middle(event.text, max_event_chars)
        heading = render_heading(event, find_agent_number(event.index))
        body = f"{quote_text(text)}\n"
        if event.kind == "observation" and len(event.text) >= _MIN_REPEATED_CHARS:
            keys = _list_contents(trace[number - 1] if number else event, event)
            earlier = next(((what, shown[key]) for what, key in keys if key in shown), None)
            if earlier is not None:
                heading, body = f"{heading} · {earlier[0]} as in e{earlier[1]}", ""
            for _, key in keys:
                shown.setdefault(key, event.index)
        parts.append(f"{heading}\n{body}")
    return "\n".join(parts)


def _list_contents(action: Event, observation: Event) -> list[tuple[str, object]]:
    """List the keys of an observation: its text and, if that is provably one whole file, the file."""
    found: list[tuple[str, object]] = [("the same text", observation.text)]
    if action.kind == "action" and len(observation.reads) == 1:
        read = observation.reads[0]
        content = extract_whole_content(action, observation, read.sha256)
        # Beside the file, it shows one heading at most: nothing else may be lost.
        if content is not None and _count_lines(observation.text) <= _count_lines(content) + 1:
            found.append(("the same whole file", (read.path, read.sha256)))
    return found


def _count_lines(text: str) -> int:
    return text.rstrip("\n").count("\n")


def render_heading(event: Event, agent_number: int = 0) -> str:
    """Render the heading of an event, without its line end; `agent_number` is 0 if all of the work is by one agent."""
    source = (
        "sandbox" if event.kind == "observation" else f"agent {agent_number}" if agent_number else "agent"
    )
    return f"## e{event.index} · {source} · {event.kind} · {quote_text(' '.join(event.tool.split()))}"


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

"""Events as text for a model; a whole file that repeats is shown once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

from langgraph_takeover.handoff.shell.command_effects import list_shown_files
from langgraph_takeover.handoff.text.fence import cut_middle, quote_text
from langgraph_takeover.handoff.trace.events import Event

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

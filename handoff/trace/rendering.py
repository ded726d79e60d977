"""Events as text for a model."""

from __future__ import annotations

from collections.abc import Iterable

from langgraph_takeover.handoff.text.fence import quote_text
from langgraph_takeover.handoff.trace.events import Event


def render_events(events: Iterable[Event]) -> str:
    """Render events as text: step, source, type, text. The text of a command's observation starts with its result."""
    return "\n".join(render_heading(event) + quote_text(event.text) + "\n" for event in events)


def render_heading(event: Event) -> str:
    """Render the heading of an event."""
    source = {"action": "agent", "observation": "sandbox"}[event.kind]
    return f"## e{event.index} · {source} · {event.kind} · {quote_text(' '.join(event.tool.split()))}\n"

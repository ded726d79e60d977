"""The view `trace`: every event."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import TRACE, quote_text
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.views.common import DEFAULT_RECIPIENT, Recipient, build_message


def trace_view(record: HandoffRecord, recipient: Recipient = DEFAULT_RECIPIENT) -> list[BaseMessage]:
    """Every event up to the point, without a limit."""
    return build_message(record, f"{TRACE}\n\n{render_events(record.trace)}")


def render_events(events: Iterable[Event]) -> str:
    """Render events as text: step, source, type, text. The text of a command's observation starts with its result."""
    return "\n".join(render_heading(event) + quote_text(event.text) + "\n" for event in events)


def render_heading(event: Event) -> str:
    """Render the heading of an event."""
    source = {"action": "agent", "observation": "machine"}[event.kind]
    return f"## e{event.index} · {source} · {event.kind} · {quote_text(' '.join(event.tool.split()))}\n"

"""The view that shows everything."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.messages import BaseMessage

from handoff.event import Event
from handoff.fence import TRACE, quoted
from handoff.record import HandoffRecord
from handoff.views.frame import ANY, Recipient, framed


def trace(record: HandoffRecord, recipient: Recipient = ANY) -> list[BaseMessage]:
    """Every event up to the point, unbounded."""
    return framed(record, f"{TRACE}\n\n{rendered(record.trace)}")


def rendered(events: Iterable[Event]) -> str:
    """Events as text: step, source, type, text. What a command showed begins with its result."""
    return "\n".join(heading(event) + quoted(event.text) + "\n" for event in events)


def heading(event: Event) -> str:
    """The line that an event's text stands under."""
    source = {"action": "agent", "observation": "machine"}[event.kind]
    return f"## e{event.index} · {source} · {event.kind} · {quoted(' '.join(event.tool.split()))}\n"

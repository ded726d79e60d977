"""Views: pure functions from a handoff record to a successor's first messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.resources import files

from langchain_core.messages import BaseMessage, HumanMessage

from handoff.event import Event
from handoff.note import structured_note
from handoff.record import HandoffRecord

View = Callable[[HandoffRecord], list[BaseMessage]]


def repository(record: HandoffRecord) -> list[BaseMessage]:
    """Nothing but the repository itself."""
    return _prompt(record, "")


def trace(record: HandoffRecord) -> list[BaseMessage]:
    """Every event up to the point, unbounded."""
    return _prompt(record, "# Record of the earlier work\n\n" + rendered(record.trace))


def summary(record: HandoffRecord) -> list[BaseMessage]:
    """The free-form notes of the predecessor's model."""
    notes = record.notes.summary if record.notes else "UNKNOWN"
    return _prompt(record, f"# Notes of the earlier agent\n\n{notes}\n")


def structured(record: HandoffRecord) -> list[BaseMessage]:
    """The note with fixed fields, or what a person made of it."""
    note = record.review.note if record.review and record.review.note else structured_note(record)
    return _prompt(record, "# Note on the earlier work\n\n" + note)


VIEWS: dict[str, View] = {view.__name__: view for view in (repository, trace, summary, structured)}
NEED_NOTES = ("summary", "structured")
"""The views that show what the predecessor's model wrote."""


class NoSuchView(ValueError):
    """There is no view of that name; the line names those there are."""


def named(name: str) -> View:
    """The view of that name. Raises NoSuchView."""
    if name not in VIEWS:
        raise NoSuchView(f"there is no view {name!r:.60}; there are {', '.join(VIEWS)}")
    return VIEWS[name]


def rendered(events: Iterable[Event]) -> str:
    """Events as text: step, source, type, text."""
    sources = {"action": "agent", "observation": "machine"}
    return "\n".join(
        f"## {event.index} · {sources[event.kind]} · {event.kind} · {event.tool}\n{event.text}\n"
        for event in events
    )


def prompt_text(name: str) -> str:
    """A prompt that ships with the package."""
    return (files("handoff") / "prompts" / f"{name}.md").read_text(encoding="utf-8")


def _prompt(record: HandoffRecord, handoff_text: str) -> list[BaseMessage]:
    parts = (prompt_text("takeover"), handoff_text, "# Task\n\n" + record.task.prompt)
    return [HumanMessage("\n".join(part for part in parts if part))]

"""Views: pure functions from a handoff record to a successor's first messages.

repository  nothing but the repository itself
trace       every event
summary     the notes of the predecessor's model, as it wrote them
structured  the note of fixed fields
payload     what a parent gives a child to start with: files read, commands run, dead ends
transcript  the predecessor's own messages
cited       the structured note with pointers to events, which a tool recalls
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from langchain_core.messages import AIMessage, BaseMessage

from handoff.record import HandoffRecord
from handoff.views.cited import cited
from handoff.views.frame import Recipient
from handoff.views.payload import payload
from handoff.views.repository import repository
from handoff.views.structured import structured
from handoff.views.summary import summary
from handoff.views.trace import trace
from handoff.views.transcript import transcript

__all__ = ["NEED_NOTES", "RECALLS", "VIEWS", "NoSuchView", "Recipient", "Size", "View", "named", "size_of"]

CHARS_A_TOKEN = 4
"""The estimate where nobody counts tokens; whatever rests on it says so."""


class View(Protocol):
    """What every view is."""

    def __call__(self, record: HandoffRecord, recipient: Recipient = ...) -> list[BaseMessage]: ...


VIEWS: dict[str, View] = {
    "repository": repository,
    "trace": trace,
    "summary": summary,
    "structured": structured,
    "payload": payload,
    "transcript": transcript,
    "cited": cited,
}
NEED_NOTES = ("summary", "structured", "cited")
"""The views that show what the predecessor's model wrote."""
RECALLS = ("cited",)
"""The views that come with the tool that recalls events."""


class NoSuchView(ValueError):
    """There is no view of that name; the line names those there are."""


class Size(NamedTuple):
    """How large a view is: what its messages hold, calls of tools included."""

    characters: int
    tokens: int
    """Estimated, at four characters each."""


def named(name: str) -> View:
    """The view of that name. Raises NoSuchView."""
    if name not in VIEWS:
        raise NoSuchView(f"there is no view {name!r:.60}; there are {', '.join(VIEWS)}")
    return VIEWS[name]


def size_of(messages: list[BaseMessage]) -> Size:
    """The size of a view's messages."""
    characters = sum(len(text) for message in messages for text in _texts(message))
    return Size(characters, -(-characters // CHARS_A_TOKEN))


def _texts(message: BaseMessage) -> list[str]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return [message.text, *(str(part) for call in calls for part in (call["name"], *call["args"].values()))]

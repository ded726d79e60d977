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

from collections.abc import Callable
from typing import NamedTuple, Protocol

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.trace.conversation import History
from langgraph_takeover.handoff.views.common import Recipient
from langgraph_takeover.handoff.views.record_views import (
    cited_view,
    payload_history,
    payload_view,
    repository_view,
    structured_view,
    summary_view,
    trace_view,
    transcript_history,
    transcript_view,
)

__all__ = [
    "HISTORIES",
    "NOTE_BY_VIEW",
    "VIEWS",
    "VIEWS_WITH_NOTES",
    "VIEWS_WITH_RECALL",
    "Recipient",
    "UnknownViewError",
    "View",
    "ViewSize",
    "find_view",
    "measure_view",
]

CHARS_PER_TOKEN = 4
"""The estimate where tokens are not counted; every number based on it is marked."""


class View(Protocol):
    """The type of every view.

    Example:
        >>> from langgraph_takeover.views import VIEWS, View
        >>> repository: View = VIEWS["repository"]
        >>> "# Task" in repository(record)[0].text
        True
    """

    def __call__(self, record: HandoffRecord, recipient: Recipient = ...) -> list[BaseMessage]: ...


VIEWS: dict[str, View] = {
    "repository": repository_view,
    "trace": trace_view,
    "summary": summary_view,
    "structured": structured_view,
    "payload": payload_view,
    "transcript": transcript_view,
    "cited": cited_view,
}
HISTORIES: dict[str, Callable[[HandoffRecord, Recipient], History]] = {
    "payload": payload_history,
    "transcript": transcript_history,
}
"""Views that show earlier work as the successor's own, and the histories that they are made of."""
NOTE_BY_VIEW = {"summary": "summary", "structured": "structured", "cited": "structured"}
"""The note of the predecessor's model that a view shows."""
VIEWS_WITH_NOTES = tuple(NOTE_BY_VIEW)
VIEWS_WITH_RECALL = ("cited",)
"""Views that come with the tool that recalls events."""


class UnknownViewError(TakeoverError, ValueError):
    """The name of a view is unknown."""


class ViewSize(NamedTuple):
    """The size of a view's messages, including tool calls.

    Example:
        >>> from langgraph_takeover.views import ViewSize
        >>> ViewSize(characters=400, tokens=100).tokens
        100
    """

    characters: int
    tokens: int
    """Estimated at four characters each."""


def find_view(name: str) -> View:
    """Return the view of that name. Raises UnknownViewError.

    Example:
        >>> from langgraph_takeover.views import find_view
        >>> [message.type for message in find_view("structured")(record)]
        ['human']
    """
    if name not in VIEWS:
        raise UnknownViewError(f"unknown view {name!r:.60} (use {', '.join(VIEWS)})")
    return VIEWS[name]


def measure_view(messages: list[BaseMessage]) -> ViewSize:
    """Measure a view's messages.

    Example:
        >>> from langgraph_takeover.views import find_view, measure_view
        >>> measure_view(find_view("trace")(record)).tokens > measure_view(find_view("repository")(record)).tokens
        True
    """
    characters = sum(len(text) for message in messages for text in _list_texts(message))
    return ViewSize(characters, -(-characters // CHARS_PER_TOKEN))


def _list_texts(message: BaseMessage) -> list[str]:
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return [message.text, *(str(part) for call in calls for part in (call["name"], *call["args"].values()))]

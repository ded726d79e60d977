"""The parts that all views share, and events that an agent recalls."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing

from langchain_core.messages import BaseMessage, HumanMessage
from pydantic import Field

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.names import ActionProtocol
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.records.record_facts import is_unsaved, render_chain
from langgraph_takeover.handoff.text.fence import (
    ENVELOPE,
    TASK,
    cut_middle,
    format_entry,
    format_inline_code,
    neutralize,
    wrap_in_fence,
)
from langgraph_takeover.handoff.trace.conversation import render_events
from langgraph_takeover.handoff.trace.events import Event, describe_unknown_forms


class Recipient(Frozen):
    """The properties of the successor that a view needs.

    Example:
        >>> from langgraph_takeover.views import Recipient, find_view
        >>> len(find_view("transcript")(record, Recipient(window_tokens=8_000))) > 2
        True
    """

    protocol: ActionProtocol = "text"
    window_tokens: int = Field(default=128_000, ge=1000)
    """Context window of the successor."""
    has_event_files: bool = False
    """Whether the successor finds the events of the earlier work as files, instead of a tool that recalls them."""


DEFAULT_RECIPIENT = Recipient()
_MAX_ITEMS = 20
_LOST_PROCESSES = "The earlier agent had these commands running in the background. They do not run here."
_PENDING = (
    "The earlier agent was at work when its session was captured. This was open, and has no result. Files may show a part of "
    "its effects."
)
_UNKNOWN_FORMS = "The record does not show what some calls of the earlier work did. Look for their effects."
_WITHDRAWN_FILES = "The user withdrew a part of the earlier work. These files may still contain its edits."
_MISSING_FILES = "These files of the earlier agent's directory are not here, or only as git has them."


def build_message(record: HandoffRecord, earlier_work: str = "") -> list[BaseMessage]:
    """Build one message with the earlier work between the instructions and the task."""
    has_data = bool(earlier_work) or has_data_beside_task(record)
    data = wrap_in_fence(f"{render_chain(record)}{earlier_work}") if earlier_work else ""
    parts = (load_instructions(), load_fence_rule() if has_data else "", data, render_task(record))
    return [HumanMessage("\n".join(part for part in parts if part))]


def load_instructions() -> str:
    """Load the instructions at the start of every takeover, which hold under every view."""
    return load_prompt("takeover")


def load_fence_rule() -> str:
    """Load the sentences about the fence, for views that have one."""
    return load_prompt("earlier_work")


def has_data_beside_task(record: HandoffRecord) -> bool:
    """Return whether `render_task` shows data in a fence, which needs the rule about the fence."""
    return bool(record.envelope or _render_session(record))


def render_task(record: HandoffRecord) -> str:
    """Render the source's message, what the snapshot lost and has of withdrawn work, if any, and the original task."""
    envelope = f"{wrap_in_fence(render_envelope(record.envelope))}\n" if record.envelope else ""
    return f"{envelope}{_render_session(record)}{TASK}\n\n{neutralize(record.task.prompt)}"


def _render_session(record: HandoffRecord) -> str:
    """Render what an external agent left running, open, withdrawn, in an unknown form, or without a file here; empty if none."""
    session = record.external
    if session is None:
        return ""
    unknown = describe_unknown_forms(session.unknown_forms)
    listed = {
        _LOST_PROCESSES: session.running,
        _PENDING: session.pending,
        _WITHDRAWN_FILES: session.withdrawn_files,
        _UNKNOWN_FORMS: (unknown,) if unknown else (),
        _MISSING_FILES: tuple(each.path for each in record.left_out if is_unsaved(each)),
    }
    return "".join(
        f"{text}\n{wrap_in_fence(_list_items(items))}\n" for text, items in listed.items() if items
    )


def _list_items(items: tuple[str, ...]) -> str:
    lines = [
        f"- {format_inline_code(' '.join(neutralize(each).split())[:300])}" for each in items[:_MAX_ITEMS]
    ]
    return "\n".join(lines)


def render_envelope(envelope: Envelope) -> str:
    """Render the envelope as data: the words of an agent or a person."""
    lists = {
        "Findings": envelope.findings,
        "Uncertain": envelope.uncertainties,
        "Recommended next": envelope.recommendations,
    }
    sure = "" if envelope.confidence is None else f"{envelope.confidence:.0%}"
    lines = {
        "From": envelope.source,
        "To": envelope.target,
        "Status": envelope.status.replace("_", " "),
        "Message": envelope.message,
        "Outcome so far": envelope.outcome,
        "The user": envelope.user_context if isinstance(envelope.user_context, str) else "",
        "Confidence": sure,
    }
    items = [f"- {name}: {format_entry(value)}" for name, value in lines.items() if value]
    listed = [f"- {name}: {'; '.join(map(format_entry, each))}" for name, each in lists.items() if each]
    return "\n".join([ENVELOPE, "", *items, *_render_user_context(envelope), *listed])


def _render_user_context(envelope: Envelope) -> list[str]:
    """Render a mapping as one line per key; a text is rendered like the other fields."""
    context = envelope.user_context
    if isinstance(context, str) or not context:
        return []
    return ["- The user:", *(f"  - {format_entry(f'{key}: {value}')}" for key, value in context.items())]


EVENT_FILES = "~/.takeover/events"
"""Directory inside the sandbox with one file per event, for successors without the tool."""
MAX_ANSWER_CHARS = 6_000
_MAX_EVENTS = 12
_MAX_HITS = 8
_SNIPPET_TOKENS = 40
_EVENT_NAMES = re.compile(
    r"[\s,;\[\]()]*+(?:e?\d{1,9}+(?:\s*+[-–]\s*+e?\d{1,9}+)?+(?:[\s,;\[\]()]++|\Z))++", re.IGNORECASE
)
_RANGE = re.compile(r"e?(\d+)(?:\s*[-–]\s*e?(\d+))?", re.IGNORECASE)


def recall_events(trace: Sequence[Event], query: str) -> str:
    """Return the answer to a successor's `query`, of at most about `MAX_ANSWER_CHARS` characters."""
    if not trace:
        return "The earlier work has no events."
    if _EVENT_NAMES.fullmatch(query):
        return _show_named_events(trace, query)
    if words := re.findall(r"\w+", query):
        return _search(trace, words)
    return f"Name events, such as e0 or e3-e5 (there are e0 to e{len(trace) - 1}), or words to search for."


def _show_named_events(trace: Sequence[Event], query: str) -> str:
    requested: list[int] = []
    for first, last in _RANGE.findall(query):
        requested += range(int(first), min(int(last or first), int(first) + _MAX_EVENTS) + 1)
    indexes = [index for index in dict.fromkeys(requested) if index < len(trace)]
    if not indexes:
        return f"No such event (known: e0 to e{len(trace) - 1})."
    shown, more = indexes[:_MAX_EVENTS], indexes[_MAX_EVENTS:]
    budget = MAX_ANSWER_CHARS // len(shown)
    text = render_events(
        trace[i].model_copy(update={"text": cut_middle(trace[i].text, budget)}) for i in shown
    )
    return wrap_in_fence(text) + (
        f"Not shown: e{', e'.join(map(str, more[:20]))}; ask for fewer.\n" if more else ""
    )


def _search(trace: Sequence[Event], words: Sequence[str]) -> str:
    with closing(sqlite3.connect(":memory:")) as base:
        base.execute("""CREATE VIRTUAL TABLE events USING fts5(text, tokenize="unicode61 tokenchars '_'")""")
        base.executemany(
            "INSERT INTO events (rowid, text) VALUES (?, ?)",
            ((event.index + 1, neutralize(event.text)) for event in trace),
        )
        # The request is always words to search for, never FTS5 syntax.
        query = " OR ".join(f'"{word}"' for word in words[:20])
        rows = base.execute(
            "SELECT rowid - 1, snippet(events, 0, '', '', '…', ?) FROM events WHERE events MATCH ? "
            "ORDER BY rank, rowid LIMIT ?",
            (_SNIPPET_TOKENS, query, _MAX_HITS),
        ).fetchall()
    if not rows:
        return f"No event of the earlier work mentions {neutralize(' '.join(words[:20]))[:200]}."
    budget = MAX_ANSWER_CHARS // _MAX_HITS
    found = render_events(trace[i].model_copy(update={"text": cut_middle(text, budget)}) for i, text in rows)
    return f"{wrap_in_fence(found)}These events mention it; ask for one by its name, such as e{rows[0][0]}, to see it whole.\n"


def build_event_files(trace: Sequence[Event]) -> dict[str, str]:
    """Return the files of `EVENT_FILES`, by their names."""
    return {f"e{event.index}.txt": wrap_in_fence(render_events([event])) for event in trace}

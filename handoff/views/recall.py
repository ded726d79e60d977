"""Show events of the earlier work on request: by name, or by words to search for."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing

from langgraph_takeover.handoff.text.fence import cut_middle, neutralize, wrap_in_fence
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.trace.rendering import render_events

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

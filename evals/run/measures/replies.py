"""Replies without text and action, empty and truncated notes, and what they say about a model's settings."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from langgraph_takeover.handoff.records.record import HandoffRecord, Notes
from langgraph_takeover.handoff.text.note_fields import UNKNOWN
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event
from langgraph_takeover.nodes.model.messages.thoughts import CUT_OFF, EMPTY_REPLY, THOUGHT_ONLY
from langgraph_takeover.nodes.model.notes import NotesCall

NOTE_BY_VIEW = {"summary": "summary", "structured": "structured", "cited": "structured"}
"""The note that a view shows."""
NOTES = ("summary", "structured")


def list_needed_notes(views: Collection[str]) -> frozenset[str]:
    """The kinds of notes that these views show."""
    return frozenset(NOTE_BY_VIEW[view] for view in views if view in NOTE_BY_VIEW)


class EmptyReplies(NamedTuple):
    """Counts of the replies with neither text nor action."""

    total: int
    thought_only: int
    cut_off: int
    """Replies that ended at their length limit."""


def count_empty_replies(events: Sequence[Event]) -> EmptyReplies:
    """Count a run's empty replies, by the runtime's answers to them."""
    answers = [
        seen.text
        for action, seen in pairwise(events)
        if action.tool == UNREADABLE and seen.refused and seen.text.startswith((THOUGHT_ONLY, EMPTY_REPLY))
    ]
    return EmptyReplies(
        total=len(answers),
        thought_only=sum(text.startswith(THOUGHT_ONLY) for text in answers),
        cut_off=sum(CUT_OFF in text for text in answers),
    )


def describe_empty_replies(empty: EmptyReplies, calls: int, model: str, max_tokens: int | None) -> str:
    """Describe a run's empty replies and which limit to raise; empty if there are none.

    `max_tokens` is the limit of a reply that the run sets; None: the server's.
    """
    if not empty.total:
        return ""
    nothing = empty.total - empty.thought_only
    kinds = [
        f"{empty.thought_only} had thought, but no text and no action" if empty.thought_only else "",
        f"{nothing} had nothing" if nothing else "",
    ]
    what = f"of {calls} replies {' and '.join(filter(None, kinds))}"
    if not empty.cut_off:
        return what
    own = f"max_output_tokens of {model} in --models, or --max-reply-tokens"
    if max_tokens is None:
        return f"{what}; {empty.cut_off} were cut off at the server's limit (raise it there, or set {own})"
    return f"{what}; {empty.cut_off} were cut off at the limit of {max_tokens:,} output tokens (raise {own})"


def find_empty_note(notes: Notes, calls: Sequence[NotesCall], views: Collection[str]) -> str | None:
    """The first note that these views show and that the writer left empty, if any.

    A structured note with text that is not in its format is not empty: its observed fields count.
    """
    replies = [call.empty_reply for call in calls if call.note == "structured"]
    empty = {"summary": notes.summary == UNKNOWN, "structured": notes.malformed and all(replies)}
    return next((NOTE_BY_VIEW[view] for view in views if empty.get(NOTE_BY_VIEW.get(view, ""))), None)


def has_note(record: HandoffRecord, view: str) -> bool:
    """Whether the record has the note that the view shows."""
    notes = record.notes
    if notes is None:
        return False
    if NOTE_BY_VIEW[view] == "summary":
        return notes.summary != UNKNOWN
    return notes.malformed or bool(notes.structured)  # else it was not requested


def digest_notes(notes: Notes) -> dict[str, str | None]:
    """The digest of each note's content; None if the note was not requested."""
    content = {
        "summary": None if notes.summary == UNKNOWN else notes.summary,
        "structured": notes.model_dump_json(include={"structured"})
        if notes.structured or notes.malformed
        else None,
    }
    return {
        f"{note}_digest": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        if text is not None
        else None
        for note, text in content.items()
    }


def list_note_digests(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The notes that a row of notes has, or that a takeover showed, each with its digest."""
    shown = NOTE_BY_VIEW.get(row.get("view") or "")
    digests = {note: row.get(f"{note}_digest") for note in NOTES}
    digests |= {shown: row.get("note_digest")} if shown else {}
    return [(note, digest) for note, digest in digests.items() if digest]


def find_changed_note(row: Mapping[str, Any], notes: Notes) -> str | None:
    """The first note, if any, that differs from the one that was written with a row of notes."""
    now = digest_notes(notes)
    return next((note for note, digest in list_note_digests(row) if now[f"{note}_digest"] != digest), None)


def list_truncated_notes(calls: Sequence[NotesCall]) -> list[str]:
    """The notes whose last reply was cut off at its length limit."""
    last = {call.note: call.is_truncated for call in calls}
    return [note for note, is_truncated in last.items() if is_truncated]


def describe_empty_notes(calls: Sequence[NotesCall], writer: str, max_tokens: int) -> str:
    """Describe the replies without text of a writer of notes, and which limit to raise; empty if there are none."""
    empty = [call for call in calls if call.empty_reply]
    if not empty:
        return ""
    what = f"{len(empty)} of {len(calls)} replies had {empty[0].empty_reply}"
    cut_off = sum(call.is_truncated for call in empty)
    if not cut_off:
        return what
    return (
        f"{what}; {cut_off} were cut off at the limit of {max_tokens:,} output tokens (raise max_output_tokens of {writer} "
        "in --models)"
    )

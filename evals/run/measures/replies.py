"""Tokens and costs of replies; replies without text and action, empty and truncated notes, and their likely cause."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from langgraph_takeover.evals.models import ModelPrice
from langgraph_takeover.evals.run.rows import NotesRow, Takeover
from langgraph_takeover.handoff.records.record import HandoffRecord, Notes
from langgraph_takeover.handoff.text.note_fields import UNKNOWN
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event, Usage
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN, NOTE_BY_VIEW
from langgraph_takeover.nodes.model.actions import RECALL_TOOL
from langgraph_takeover.nodes.model.message_content import CUT_OFF, EMPTY_REPLY, THOUGHT_ONLY
from langgraph_takeover.nodes.model.note_calls import NotesCall

_DIGITS = 8
"""Decimals of an amount: the smallest call costs a fraction of a millionth of a dollar."""


class TokenTotals(NamedTuple):
    """Sums over the calls of a run. None if one of its calls was not counted, because the sum would be incomplete."""

    prompt: int | None
    cached: int | None
    """The part of the prompt tokens that the endpoint had cached. None also if no call reports it."""
    completion: int | None
    uncounted_calls: int
    """Calls whose tokens the endpoint did not report: their replies, failed attempts and time-outs."""


def count_tokens(events: Iterable[Event], uncounted_calls: int = 0) -> TokenTotals:
    """Sum the usage of a run's calls; `uncounted_calls` are those that the runtime counted, with attempts without an event."""
    return sum_usage((event.usage or Usage() for event in events if event.kind == "action"), uncounted_calls)


def sum_usage(usages: Iterable[Usage], uncounted_calls: int = 0) -> TokenTotals:
    """Sum the usage of calls. The runtime's estimates suffice for its budgets, not for a measurement."""
    every = list(usages)
    uncounted = max(sum(not is_counted(usage) for usage in every), uncounted_calls)
    if uncounted or not every:
        return TokenTotals(None, None, None, uncounted)
    # Servers omit the cached tokens of a call that had none.
    cached = [usage.cached_tokens for usage in every if usage.cached_tokens is not None]
    return TokenTotals(
        prompt=sum(usage.prompt_tokens or 0 for usage in every),
        cached=sum(cached) if cached else None,
        completion=sum(usage.completion_tokens or 0 for usage in every),
        uncounted_calls=0,
    )


def is_counted(usage: Usage) -> bool:
    """Whether the endpoint reported a call's tokens."""
    return not usage.estimated and usage.prompt_tokens is not None and usage.completion_tokens is not None


def compute_cost_usd(price: ModelPrice | None, tokens: TokenTotals, calls: int) -> float | None:
    """The cost in US dollars; None if the price or the usage is unknown, and 0 without any call."""
    if price is not None and price.input == price.output == (price.cached or 0.0) == 0.0:
        return 0.0
    if not calls and not tokens.uncounted_calls:
        return 0.0
    if price is None or tokens.prompt is None or tokens.completion is None:
        return None
    usage = Usage(
        prompt_tokens=tokens.prompt, cached_tokens=tokens.cached, completion_tokens=tokens.completion
    )
    return round(price.build_prices().compute_cost(usage), _DIGITS)


def count_recall_tokens(events: Sequence[Event]) -> list[int]:
    """The size of each recall of earlier events, estimated at four characters per token."""
    return [
        -(-(len(action.text) + len(seen.text)) // CHARS_PER_TOKEN)
        for action, seen in pairwise(events)
        if action.kind == "action" and action.tool == RECALL_TOOL and seen.kind == "observation"
    ]


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
    """Describe a run's empty replies and which limit to raise; empty without any.

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
        "structured": notes.model_dump_json(include={"structured", "stated"})
        if notes.structured or notes.malformed
        else None,
    }
    return {
        f"{note}_digest": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        if text is not None
        else None
        for note, text in content.items()
    }


def list_note_digests(row: NotesRow | Takeover) -> list[tuple[str, str]]:
    """The notes that a row of notes has, or that a takeover showed, each with its digest."""
    if isinstance(row, Takeover):
        digests = {NOTE_BY_VIEW.get(row.view, ""): row.note_digest}
    else:
        digests = {"summary": row.summary_digest, "structured": row.structured_digest}
    return [(note, digest) for note, digest in digests.items() if note and digest]


def find_changed_note(row: NotesRow, notes: Notes) -> str | None:
    """The first note, if any, that differs from the one that was written with a row of notes."""
    now = digest_notes(notes)
    return next((note for note, digest in list_note_digests(row) if now[f"{note}_digest"] != digest), None)


def list_truncated_notes(calls: Sequence[NotesCall]) -> list[str]:
    """The notes whose last reply was cut off at its length limit."""
    last = {call.note: call.is_truncated for call in calls}
    return [note for note, is_truncated in last.items() if is_truncated]


def describe_empty_notes(calls: Sequence[NotesCall], writer: str, max_tokens: int) -> str:
    """Describe a note writer's replies without text, and which limit to raise; empty without any."""
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

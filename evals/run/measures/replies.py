"""Replies without text and action, and what they say about a model's settings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from langgraph_takeover.handoff.trace.events import UNREADABLE, Event
from langgraph_takeover.nodes.model.notes import NotesCall
from langgraph_takeover.nodes.model.thoughts import CUT_OFF, EMPTY_REPLY, THOUGHT_ONLY


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

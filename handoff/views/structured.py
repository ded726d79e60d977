"""The view `structured`: the note of fixed fields."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.notes.structured_note import render_structured_note
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import NOTE, quote_text
from langgraph_takeover.handoff.views.common import DEFAULT_RECIPIENT, Recipient, build_message


def structured_view(record: HandoffRecord, recipient: Recipient = DEFAULT_RECIPIENT) -> list[BaseMessage]:
    """The note of fixed fields, or a person's version of it."""
    return build_message(record, f"{NOTE}\n\n{render_review(record) or render_structured_note(record)}")


def render_review(record: HandoffRecord) -> str:
    """Render the note as a reviewer rewrote it; empty if nobody did."""
    review = record.review
    return quote_text(review.note, escape_fields=False) if review and review.decision == "approve" else ""

"""The view that shows the note of fixed fields."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from handoff.fence import NOTE, quoted
from handoff.notes.note import structured_note
from handoff.record import HandoffRecord
from handoff.views.frame import ANY, Recipient, framed


def structured(record: HandoffRecord, recipient: Recipient = ANY) -> list[BaseMessage]:
    """The note with fixed fields, or what a person made of it."""
    return framed(record, f"{NOTE}\n\n{reviewed(record) or structured_note(record)}")


def reviewed(record: HandoffRecord) -> str:
    """The note as a reviewer rewrote it; empty where nobody did."""
    review = record.review
    return quoted(review.note, fields=False) if review and review.decision == "approve" else ""

"""The view that shows what the predecessor's model wrote freely."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from handoff.fence import SUMMARY, quoted
from handoff.notes.fields import UNKNOWN
from handoff.record import HandoffRecord
from handoff.views.frame import ANY, Recipient, framed


def summary(record: HandoffRecord, recipient: Recipient = ANY) -> list[BaseMessage]:
    """The free-form notes of the predecessor's model."""
    notes = quoted(record.notes.summary) if record.notes else UNKNOWN
    return framed(record, f"{SUMMARY}\n\n{notes}")

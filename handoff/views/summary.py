"""The view `summary`: the model's free-form notes."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import SUMMARY, quote_text
from langgraph_takeover.handoff.text.note_fields import UNKNOWN
from langgraph_takeover.handoff.views.common import DEFAULT_RECIPIENT, Recipient, build_message


def summary_view(record: HandoffRecord, recipient: Recipient = DEFAULT_RECIPIENT) -> list[BaseMessage]:
    """The free-form notes of the predecessor's model."""
    notes = quote_text(record.notes.summary) if record.notes else UNKNOWN
    return build_message(record, f"{SUMMARY}\n\n{notes}")

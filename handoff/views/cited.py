"""The view that is as short as notes and gives the trace when it is asked."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from handoff.fence import NOTE
from handoff.notes.note import render_structured_note
from handoff.prompts import load_prompt
from handoff.record import HandoffRecord
from handoff.views.frame import DEFAULT_RECIPIENT, Recipient, build_message
from handoff.views.structured import render_review


def cited_view(record: HandoffRecord, recipient: Recipient = DEFAULT_RECIPIENT) -> list[BaseMessage]:
    """The structured note with pointers to events, for a successor that has the tool to recall them."""
    last = len(record.trace) - 1
    how = load_prompt("cited").format(last=f"e{last}") if last >= 0 else ""
    return build_message(
        record, f"{NOTE}\n\n{how}\n{render_review(record) or render_structured_note(record, pointers=True)}"
    )

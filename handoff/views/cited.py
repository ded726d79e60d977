"""The view that is as short as notes and gives the trace when it is asked."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from handoff.fence import NOTE
from handoff.notes.note import structured_note
from handoff.prompts import prompt_text
from handoff.record import HandoffRecord
from handoff.views.frame import ANY, Recipient, framed
from handoff.views.structured import reviewed


def cited(record: HandoffRecord, recipient: Recipient = ANY) -> list[BaseMessage]:
    """The structured note with pointers to events, for a successor that has the tool to recall them."""
    last = len(record.trace) - 1
    how = prompt_text("cited").format(last=f"e{last}") if last >= 0 else ""
    return framed(record, f"{NOTE}\n\n{how}\n{reviewed(record) or structured_note(record, pointers=True)}")

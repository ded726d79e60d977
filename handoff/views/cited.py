"""The view `cited`: the structured note with pointers to events that a tool recalls."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.notes.structured_note import render_structured_note
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import NOTE
from langgraph_takeover.handoff.views.common import DEFAULT_RECIPIENT, Recipient, build_message
from langgraph_takeover.handoff.views.recall import EVENT_FILES
from langgraph_takeover.handoff.views.structured import render_review


def cited_view(record: HandoffRecord, recipient: Recipient = DEFAULT_RECIPIENT) -> list[BaseMessage]:
    """The structured note with pointers to events, for a successor that can recall them."""
    last = len(record.trace) - 1
    prompt = load_prompt("cited_files" if recipient.has_event_files else "cited")
    how = prompt.format(last=f"e{last}", directory=EVENT_FILES) if last >= 0 else ""
    return build_message(
        record, f"{NOTE}\n\n{how}\n{render_review(record) or render_structured_note(record, pointers=True)}"
    )

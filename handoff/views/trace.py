"""The view `trace`: every event."""

from __future__ import annotations

from functools import partial

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.records.chain import find_agent_number
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import TRACE
from langgraph_takeover.handoff.trace.rendering import render_trace
from langgraph_takeover.handoff.views.common import DEFAULT_RECIPIENT, Recipient, build_message


def trace_view(record: HandoffRecord, recipient: Recipient = DEFAULT_RECIPIENT) -> list[BaseMessage]:
    """Every event up to the point, without a limit; a long text that repeats is shown once."""
    return build_message(
        record,
        f"{TRACE}\n\n{render_trace(record.trace, find_agent_number=partial(find_agent_number, record))}",
    )

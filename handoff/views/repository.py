"""The view `repository`: nothing between instructions and task."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.views.common import DEFAULT_RECIPIENT, Recipient, build_message


def repository_view(record: HandoffRecord, recipient: Recipient = DEFAULT_RECIPIENT) -> list[BaseMessage]:
    """Only the repository itself: the baseline."""
    return build_message(record.model_copy(update={"envelope": None}))

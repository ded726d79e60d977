"""The view that shows nothing."""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from handoff.record import HandoffRecord
from handoff.views.frame import ANY, Recipient, framed


def repository(record: HandoffRecord, recipient: Recipient = ANY) -> list[BaseMessage]:
    """Nothing but the repository itself: the baseline."""
    return framed(record.model_copy(update={"envelope": None}))

"""The views: pure functions from a handoff record to the first messages of a successor."""

from langgraph_takeover.handoff.names import ViewName
from langgraph_takeover.handoff.views import (
    VIEWS,
    VIEWS_WITH_NOTES,
    VIEWS_WITH_RECALL,
    Recipient,
    View,
    ViewSize,
    find_view,
    measure_view,
)

__all__ = [
    "VIEWS",
    "VIEWS_WITH_NOTES",
    "VIEWS_WITH_RECALL",
    "Recipient",
    "View",
    "ViewName",
    "ViewSize",
    "find_view",
    "measure_view",
]

"""Live detection of handoff points in any agent's messages or events, without a sandbox or a graph."""

from langgraph_takeover.handoff.interop.live_detection import PointDetector, detect_points
from langgraph_takeover.handoff.recordings.recorded_run import TraceError
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, PointKind

__all__ = ["Event", "HandoffPoint", "PointDetector", "PointKind", "TraceError", "detect_points"]

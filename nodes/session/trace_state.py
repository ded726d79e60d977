"""State derived from a run's events, updated per step so that no step reads all events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.trace.events import Differences, Event, apply_changes
from langgraph_takeover.sandbox.interface import FileChange


class TraceState:
    """The detector state and the tree differences after a growing list of events."""

    def __init__(self, detector: DetectorState, differences: Differences) -> None:
        self.detector = detector
        self.differences = differences
        self._count = 0
        self._last: dict[str, Any] | None = None

    def is_prefix_of(self, events: list[dict[str, Any]]) -> bool:
        """Whether these events begin with the ones added so far; compared by identity, so a fork's do not."""
        return self._count == 0 or (len(events) >= self._count and events[self._count - 1] is self._last)

    def compute_differences_with(self, changes: Iterable[FileChange]) -> Differences:
        return apply_changes(self.differences, changes)

    def add_all(self, events: list[dict[str, Any]], load: Callable[[dict[str, Any]], Event]) -> None:
        for each in events[self._count :]:
            self.add(load(each), each)

    def add(self, event: Event, event_data: dict[str, Any]) -> tuple[Any, ...]:
        """Add one event, and return the points that it fires; `event_data` is the event in the graph state."""
        self.detector, points = detectors.observe(self.detector, event)
        self.differences = apply_changes(self.differences, event.changes)
        self._count, self._last = self._count + 1, event_data
        return points

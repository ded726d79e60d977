"""What a run's events come to, kept from step to step so that no step reads them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.trace.events import Differences, Event, apply_changes
from langgraph_takeover.sandbox.interface import FileChange


class TraceState:
    """What a list of events comes to, taken up one by one: what detectors know, and how the tree differs."""

    def __init__(self, detector: DetectorState, differences: Differences) -> None:
        self.detector = detector
        self.differences = differences
        self._count = 0
        self._last: dict[str, Any] | None = None

    def is_prefix_of(self, events: list[dict[str, Any]]) -> bool:
        """Whether these events begin with those taken up so far: a fork's are other objects."""
        return self._count == 0 or (len(events) >= self._count and events[self._count - 1] is self._last)

    def compute_differences_with(self, changes: Iterable[FileChange]) -> Differences:
        return apply_changes(self.differences, changes)

    def add_all(self, events: list[dict[str, Any]]) -> None:
        for each in events[self._count :]:
            self.add(Event.model_validate(each), each)

    def add(self, event: Event, event_data: dict[str, Any]) -> tuple[Any, ...]:
        """Take one event up, as it is written to the state; the points that it fires."""
        self.detector, points = detectors.observe(self.detector, event)
        self.differences = apply_changes(self.differences, event.changes)
        self._count, self._last = self._count + 1, event_data
        return points

"""State derived from a run's events, updated per step so that no step reads all events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.trace.events import (
    Differences,
    Event,
    apply_changes,
    compute_tree_digest,
)
from langgraph_takeover.sandbox.interface import FileChange


class TraceState:
    """The detector state and the tree differences after a growing list of events."""

    def __init__(self, detector: DetectorState, differences: Differences) -> None:
        self.detector = detector
        self.differences = differences
        self.tree = compute_tree_digest(differences)
        """Digest of the tree."""
        self._next: tuple[Sequence[FileChange], Differences, str] | None = None
        """The changes after which the tree was computed, and the tree."""
        self._count = 0
        self._last: dict[str, Any] | None = None

    def is_prefix_of(self, events: list[dict[str, Any]]) -> bool:
        """Whether these events begin with the ones added so far; compared by identity, so a fork's do not."""
        return self._count == 0 or (len(events) >= self._count and events[self._count - 1] is self._last)

    def compute_tree_after(self, changes: Sequence[FileChange]) -> str:
        """Return the digest of the tree after more changes."""
        if not changes:
            return self.tree
        differences = apply_changes(self.differences, changes)
        self._next = changes, differences, compute_tree_digest(differences)
        return self._next[2]

    def add_all(self, events: list[dict[str, Any]], load: Callable[[dict[str, Any]], Event]) -> None:
        for each in events[self._count :]:
            self.add(load(each), each)

    def add(self, event: Event, event_data: dict[str, Any]) -> tuple[Any, ...]:
        """Add one event, and return the points that it fires; `event_data` is the event in the graph state."""
        self.detector, points = detectors.observe(self.detector, event)
        if event.changes:
            if self._next is None or self._next[0] is not event.changes:
                self.compute_tree_after(event.changes)
            assert self._next is not None
            _, self.differences, self.tree = self._next
            self._next = None
        self._count, self._last = self._count + 1, event_data
        return points

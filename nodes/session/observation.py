"""The result of an action, before it becomes an event and a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pydantic import JsonValue

from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets
from langgraph_takeover.handoff.trace.events import (
    Differences,
    Event,
    FileRead,
    apply_changes,
    compute_tree_digest,
)
from langgraph_takeover.nodes.session.external_turn import ExternalTurn
from langgraph_takeover.sandbox.interface import FileChange, Frozen


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


class Observation(Frozen):
    """The result and the changes of a tool call."""

    text: str
    changes: tuple[FileChange, ...] = ()
    reads: tuple[FileRead, ...] = ()
    exit_code: int | None = None
    cwd: str | None = None
    refused: bool = False
    timed_out: bool = False
    shell_ended: bool = False
    seconds: float = 0.0
    turn: ExternalTurn | None = None
    """External agents only: the results of a reply with any number of calls."""
    diff: str = ""
    """What the action changed in files, for a person."""
    artifact: JsonValue = None
    """Custom tools only: what the call returned beside its text, for the program."""
    edit: dict[str, Any] | None = None
    """An edit of the editor, for its undo; `incomplete` if the previous text contained a secret."""

    def redact_secrets(self, keys: Collection[str] = ()) -> Observation:
        """Return the observation for the effect journal and the agent."""
        names = [name for change in self.changes for name in (change.path, change.renamed_from) if name]
        turn = self.turn.model_dump_json() if self.turn else ""
        artifact = "" if self.artifact is None else json.dumps(self.artifact, ensure_ascii=False)
        text = "\n".join(
            [
                self.text,
                self.diff,
                self.cwd or "",
                turn,
                artifact,
                *names,
                *(read.path for read in self.reads),
            ]
        )
        redacted = self
        if redact(text, keys) != text:
            values = self.model_dump(exclude={"edit"})
            redacted = Observation.model_validate({**redact(values, keys), "edit": self.edit})
        # An undo writes the previous text back unchanged, or not at all.
        edit = redact_known_secrets(redacted.edit, keys)
        if edit == redacted.edit:
            return redacted
        return redacted.model_copy(update={"edit": {**(edit or {}), "incomplete": True}})

"""The result of an action before it becomes an event, an external agent's included."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.ledger import Lease, LedgerUnavailableError, effects
from langgraph_takeover.handoff.ledger.effects import UnsavedCalls
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets
from langgraph_takeover.handoff.trace.events import (
    Differences,
    Event,
    FileRead,
    Usage,
    apply_changes,
    compute_tree_digest,
)
from langgraph_takeover.nodes.model.calls import CallCount
from langgraph_takeover.sandbox.interface import FileChange


class CallLog:
    """Counts calls that a kill or an error cut off, so that the session that repeats their step knows of them.

    A step that is repeated after a return to an earlier checkpoint counts with the steps after it.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._left: UnsavedCalls | None = None
        """Calls of earlier sessions, or of a failed step of this one."""
        self._has_read = self._has_noted = False
        self._step = self._unsaved = 0
        self._count: CallCount | None = None
        """The requests of the step in progress."""

    def begin_call(self, step: int, model: object) -> tuple[CallCount, int]:
        """Return the counter of a call's requests, and the number of the step's calls that were lost before.

        A step can make several calls, or none. Those of a model that is no LLM cost nothing.
        """
        if not self._has_read:
            self._left, self._has_read = effects.read_unsaved_calls(self._lease), True
        left = self._left
        earlier = self._unsaved + self._count.billable if self._count is not None else 0
        self._step = step
        lost = left.calls + left.step - step if left is not None and left.step >= step else 0
        self._unsaved = lost + earlier
        self._count = CallCount(self._note_attempt if getattr(model, "is_llm", True) else None)
        return self._count, lost

    def _note_attempt(self, billable: int) -> None:
        self._note(self._unsaved + billable + 1)

    def _note(self, calls: int) -> None:
        effects.note_calls(self._lease, self._step, calls)
        self._left, self._has_noted = None, True

    def end_step(self) -> None:
        """Learn that the step's update has its calls. If the process dies before it is saved, they were lost."""
        if self._left is not None and self._left.step >= self._step:
            self._note(self._unsaved)  # No call of the step replaced the note.
        self._count = None

    def end_failed_step(self) -> None:
        """Keep the calls of a step whose replies are not saved."""
        count, self._count = self._count, None
        if count is None or not count.is_observed or not self._has_noted:
            return
        calls = self._unsaved + count.billable
        self._left = UnsavedCalls(self._step, calls) if calls else None
        with contextlib.suppress(LedgerUnavailableError):
            effects.keep_calls(self._lease, calls)

    def close(self) -> None:
        """Forget the calls, whose replies the checkpoints have."""
        if self._has_noted:
            with contextlib.suppress(LedgerUnavailableError):
                effects.forget_calls(self._lease)


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


class CallResult(Frozen):
    """One tool call of a reply, in this project's terms, and its result as the agent reported it to its model."""

    call_id: str
    tool: str
    arguments: Mapping[str, str]
    text: str
    exit_code: int | None = None
    refused: bool = False
    timed_out: bool = False


class SideWork(Frozen):
    """Requests beside the main conversation: of subagents, for side tasks, and refused ones."""

    usages: tuple[Usage, ...] = ()
    """Of each request that reached the model; an estimate if its answer came too late to be counted."""
    uncounted_calls: int = 0
    """Requests to the endpoint that it may have billed, with unknown tokens."""
    refused: Mapping[str, int] = {}
    """Requests that the bridge refused, by reason."""

    def __add__(self, other: SideWork) -> SideWork:
        return SideWork(
            usages=self.usages + other.usages,
            uncounted_calls=self.uncounted_calls + other.uncounted_calls,
            refused=dict(Counter(self.refused) + Counter(other.refused)),
        )


class ExternalTurn(Frozen):
    """The results of a reply's calls, and the agent's next step: another request, or its end."""

    results: tuple[CallResult, ...] = ()
    messages: tuple[str, ...] = ()
    """User messages that the agent added."""
    is_ended: bool = False
    """Whether the agent has ended."""
    is_complete: bool = False
    """Whether it ended by itself and without an error."""
    end_message: str = ""
    session_id: str = ""
    running: tuple[str, ...] = ()
    """Commands that still run in the background, as the agent reported them."""
    side: SideWork = SideWork()
    """Side requests meanwhile."""
    account: Mapping[str, int] = {}
    """How many events of the earlier work became what in the agent's session, if one was written."""

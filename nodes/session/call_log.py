"""The model calls of a session that may be billed before a checkpoint has their replies."""

from __future__ import annotations

import contextlib

from langgraph_takeover.handoff.ledger import Lease, LedgerUnavailableError, model_calls
from langgraph_takeover.handoff.ledger.model_calls import UnsavedCalls
from langgraph_takeover.nodes.model.attempts import CallCount


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
            self._left, self._has_read = model_calls.read_unsaved_calls(self._lease), True
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
        model_calls.note_calls(self._lease, self._step, calls)
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
            model_calls.keep_calls(self._lease, calls)

    def close(self) -> None:
        """Forget the calls, whose replies the checkpoints have."""
        if self._has_noted:
            with contextlib.suppress(LedgerUnavailableError):
                model_calls.forget_calls(self._lease)

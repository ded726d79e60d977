"""What a handoff says beside its record: from whom, to whom, how far the task is; and what whoever takes it answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from langgraph_takeover.handoff.trace.sequences import FailFastTuple
from langgraph_takeover.sandbox.interface import Frozen

_MIN_LENGTH, _MAX_LENGTH = 8, 2_000
TaskStatus = Literal["completed", "partial", "failed", "requires_input"]
RefusalKind = Literal[
    "no_record",
    "schema",
    "checksum",
    "snapshot",
    "target",
    "task",
    "checkpoint",
    "budget",
    "self",
    "cycle",
    "view",
]


class Envelope(Frozen):
    """What the source tells the target beside the record. Source: PROTOCOL.md, section 9."""

    status: TaskStatus = "partial"
    outcome: str = ""
    """What came of the work so far, in a few sentences."""
    findings: FailFastTuple[str] = ()
    uncertainties: FailFastTuple[str] = ()
    user_context: str = ""
    recommendations: FailFastTuple[str] = ()
    confidence: float | None = Field(default=None, ge=0, le=1)
    message: str = ""
    """What the source says to the target itself."""
    source: str = ""
    target: str = ""
    sent_at: str = ""
    """When it was prepared, in UTC; as source and target, filled in where it is sent."""
    view: str = ""
    """The view that the source wants shown; empty leaves it to the target."""
    needs_tokens: int = Field(default=0, ge=0)
    """What the work is thought to need; a target with less refuses."""


class Understanding(Frozen):
    """By what a receiver shows that it not only got a handoff but knows what to do."""

    goal: str = Field(min_length=_MIN_LENGTH, max_length=_MAX_LENGTH)
    next_step: str = Field(min_length=_MIN_LENGTH, max_length=_MAX_LENGTH)
    verify_first: str = Field(min_length=_MIN_LENGTH, max_length=_MAX_LENGTH)


class Refusal(Frozen):
    """Why a receiver does not take a handoff, and what has to be sent again."""

    kind: RefusalKind
    what: str
    """In one line, with what was found."""
    resend: str
    """What would be taken."""

    def __str__(self) -> str:
        return f"{self.what}; {self.resend}"

"""What goes with a record: the source's message, the receiver's answer, and the payload of a delegation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, StringConstraints

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.trace.events import FailFastTuple

Mode = Literal["work", "look"]
"""Whether a child's changes return to its parent, or only its message."""


class ReadFile(Frozen):
    """A file as the predecessor last saw it."""

    path: str
    sha256: str
    event: int | None
    """The observation that showed it; None if it was read for the child."""
    content: str | None = None
    """The whole content, if its digest proves that it is complete."""
    stale: bool = False
    """It changed after it was read."""


class RanCommand(Frozen):
    """A command that was run, and how it ended."""

    cmd: str
    rc: int | None
    tail: str
    event: int | None
    """None if only its parent reports it, and not its trace."""
    stale: bool = False
    """Files have changed since."""


class DeadEnd(Frozen):
    """An attempt that need not be repeated."""

    what: str
    why: str
    event: int | None
    shown: str = ""
    """The evidence for a parent's claim in the trace. `event` is its index, None without evidence."""
    proven: bool = True
    """The trace shows that it was tried and failed."""


class Payload(Frozen):
    """Everything."""

    goal: str
    read_files: FailFastTuple[ReadFile] = ()
    ran_commands: FailFastTuple[RanCommand] = ()
    probe_results: FailFastTuple[RanCommand] = ()
    """Searches for the names in the goal."""
    dead_ends: FailFastTuple[DeadEnd] = ()
    mode: Mode = "work"


_MIN_LENGTH, _MAX_LENGTH = 8, 2_000
_MAX_KEY_LENGTH, _MAX_KEYS = 100, 50
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
RESENDABLE_KINDS: tuple[RefusalKind, ...] = (
    "no_record",
    "schema",
    "checksum",
    "snapshot",
    "task",
    "checkpoint",
)
"""The refusals that another record of the source can cure."""


def _write_values_as_text(value: Any) -> Any:
    """Return a mapping with every value as text: a text unchanged, another value as JSON."""
    if not isinstance(value, Mapping):
        return value
    return {key: each if isinstance(each, str) else _to_json(key, each) for key, each in value.items()}


def _to_json(key: object, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"user_context[{key!r:.60}]: cannot be written as JSON: {error!s:.100} "
            "(use text, finite numbers, lists or mappings)"
        ) from error


_Key = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_KEY_LENGTH)]
_Value = Annotated[str, StringConstraints(max_length=_MAX_LENGTH)]
UserContext = Annotated[
    str | Annotated[dict[_Key, _Value], Field(max_length=_MAX_KEYS)], BeforeValidator(_write_values_as_text)
]


class Envelope(Frozen):
    """The source's message to the target.

    Example:
        >>> from langgraph_takeover import Envelope
        >>> Envelope(message="Mind negative numbers.", confidence=0.6).status
        'partial'
    """

    status: TaskStatus = "partial"
    outcome: str = ""
    """Summary of the outcome so far, in a few sentences."""
    findings: FailFastTuple[str] = ()
    uncertainties: FailFastTuple[str] = ()
    user_context: UserContext = ""
    """Preferences and constraints of the user: a text, or up to 50 keys with a value of at most 2,000 characters each.
    Other values than texts become their JSON text."""
    recommendations: FailFastTuple[str] = ()
    confidence: float | None = Field(default=None, ge=0, le=1)
    message: str = ""
    """Message of the source to the target."""
    source: str = ""
    target: str = ""
    sent_at: str = ""
    """When it was sent, in UTC; set on sending, like source and target."""
    view: str = ""
    """The view that the source asks for; empty leaves it to the target."""
    needs_tokens: int = Field(default=0, ge=0)
    """Estimated tokens that the work needs; a target with fewer refuses."""


class Understanding(Frozen):
    """The receiver's confirmation that it received and understood a handoff: three texts of 8 to 2,000 characters.

    As JSON it is the reply that accepts the handoff.

    Example:
        >>> from langgraph_takeover.protocol import Understanding
        >>> understanding = Understanding(
        ...     goal="All tests pass.", next_step="I run the tests.", verify_first="That wrap() fails: I call it."
        ... )
        >>> understanding.model_dump_json()
        '{"goal":"All tests pass.","next_step":"I run the tests.","verify_first":"That wrap() fails: I call it."}'
    """

    goal: str = Field(min_length=_MIN_LENGTH, max_length=_MAX_LENGTH)
    """What must be true when the task is done."""
    next_step: str = Field(min_length=_MIN_LENGTH, max_length=_MAX_LENGTH)
    """The receiver's first action."""
    verify_first: str = Field(min_length=_MIN_LENGTH, max_length=_MAX_LENGTH)
    """The claim of the earlier work that the receiver checks before it relies on it, and how."""


class Refusal(Frozen):
    """Why a receiver refuses a handoff, and what must be sent again."""

    kind: RefusalKind
    what: str
    """The problem, in one line."""
    resend: str
    """The fix."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}; {self.resend}"


def parse_refusal_kind(text: str) -> RefusalKind | None:
    """Return the kind of a refusal by its text; None if it names none."""
    kind = text.partition(": ")[0]
    return next((each for each in get_args(RefusalKind) if each == kind), None)

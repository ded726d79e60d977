"""What an agent did and saw: the events of one run, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from handoff.sequences import FailFastTuple
from sandbox.machine import FileChange, Frozen

EventKind = Literal["action", "observation"]
PointKind = Literal["first_source_edit", "first_validation", "first_post_failure_edit", "requested"]
UNREADABLE = "unreadable"
"""The tool name of an action whose text could not be read as exactly one action."""


class FileRead(Frozen):
    """One file whose content an action showed, by the SHA-256 that it had then."""

    path: str
    sha256: str


class Usage(Frozen):
    """What one model call cost, in tokens as the server counted them; None where nobody did."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False
    """The server did not say: they were counted here, at four characters each."""


class Event(Frozen):
    """One action of the agent, or the one observation that answers it: the unit of effort.

    Paths are relative to the repository inside it and absolute outside it.
    """

    index: int = Field(ge=0)
    kind: EventKind
    tool: str
    """`shell`, `editor`, `handoff`, `finish`, or `unreadable`."""
    text: str
    """An action: the model's whole reply. An observation: exactly what the agent was shown."""
    arguments: Mapping[str, str] = {}
    """Actions only: `command` for the shell; `command`, `path`, `old`, `new`, … for the editor."""
    exit_code: int | None = None
    """Observations of the shell only; None where the command did not end by itself."""
    cwd: str | None = None
    """Observations of the shell only: where the shell stood before the command; None where nobody knows."""
    refused: bool = False
    """Observations only: the tool did not carry the action out, and nothing happened."""
    timed_out: bool = False
    changes: FailFastTuple[FileChange] = ()
    """Observations only: the files whose content the action changed, wherever they lie."""
    reads: FailFastTuple[FileRead] = ()
    """Observations only: the files whose content the action showed."""
    tree: str = ""
    """Digest of everything that differs from the base: before an action, and after its observation."""
    seconds: float = 0.0
    usage: Usage | None = None


class HandoffPoint(Frozen):
    """An event boundary at which a detector fired; it lies after event `event_index`."""

    kind: PointKind
    event_index: int = Field(ge=0)
    detail: str
    """One line: what fired it, such as the edited paths or the failed command."""

"""What an action came to, before it becomes an event and a message."""

from __future__ import annotations

from typing import Any

from handoff.event import FileRead
from sandbox.machine import FileChange, Frozen


class Observation(Frozen):
    """What a tool saw and did; it goes into the journal of effects as it is."""

    text: str
    changes: tuple[FileChange, ...] = ()
    reads: tuple[FileRead, ...] = ()
    exit_code: int | None = None
    cwd: str | None = None
    refused: bool = False
    timed_out: bool = False
    shell_ended: bool = False
    seconds: float = 0.0
    edit: dict[str, Any] | None = None
    """What the editor did, so that it can be undone."""

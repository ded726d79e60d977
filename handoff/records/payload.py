"""The delegation payload: what an agent hands to another so that it need not recover it.

As in `delegate_task(goal, handoff={read_files, ran_commands, probe_results, dead_ends})`: `handoff.delegation.selection`
derives it from a trace, `handoff.delegation.request` from an orchestrator's arguments.
"""

from __future__ import annotations

from typing import Literal

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

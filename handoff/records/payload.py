"""The delegation payload: what an agent hands to another so that it need not find it out again.

As in `delegate_task(goal, handoff={read_files, ran_commands, probe_results, dead_ends})`: `handoff.delegation.selection` makes one
of a trace, `handoff.delegation.request` of what an orchestrator gives.
"""

from __future__ import annotations

from typing import Literal

from langgraph_takeover.handoff.trace.sequences import FailFastTuple
from langgraph_takeover.sandbox.interface import Frozen

Mode = Literal["work", "look"]
"""Whether what a child changes comes back to its parent, or only what it says."""


class ReadFile(Frozen):
    """A file as the predecessor last saw it."""

    path: str
    sha256: str
    event: int | None
    """The observation that showed it; None where it was read for the child."""
    content: str | None = None
    """The whole of it, where it is known to be all: its digest says so."""
    stale: bool = False
    """It was changed after it was read."""


class RanCommand(Frozen):
    """A command that was run, and how it ended."""

    cmd: str
    rc: int | None
    tail: str
    event: int | None
    """None where its parent tells of it and its trace does not."""
    stale: bool = False
    """Files have changed since."""


class DeadEnd(Frozen):
    """What was tried and need not be tried again."""

    what: str
    why: str
    event: int | None
    shown: str = ""
    """What the trace shows of it, where a parent told of it; `event` is where, None: nowhere."""
    proven: bool = True
    """The trace shows that it was tried and failed."""


class Payload(Frozen):
    """All of it."""

    goal: str
    read_files: FailFastTuple[ReadFile] = ()
    ran_commands: FailFastTuple[RanCommand] = ()
    probe_results: FailFastTuple[RanCommand] = ()
    """Searches that mention what the goal names."""
    dead_ends: FailFastTuple[DeadEnd] = ()
    mode: Mode = "work"

"""What an agent did and saw: the events of one run, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from langgraph_takeover.handoff.trace.sequences import FailFastTuple
from langgraph_takeover.sandbox.interface import FileChange, Frozen

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


Differences = dict[str, tuple[str | None, str | None]]
"""Path -> SHA-256 at the base and now, for every file in which a tree differs from its base."""
TraceFormat = Literal[
    "mini-swe-agent-v1", "mini-swe-agent-v2", "swe-agent-0.x", "swe-agent-1.x", "openhands-v0", "openhands-v1",
    "atif", "langchain", "takeover",
]  # fmt: skip


class Continuation(Frozen):
    """What a successor's run took over."""

    trace: str
    """The predecessor's trace, by its id."""
    record: str
    """The handoff record's id."""
    point: HandoffPoint
    view: str


class Trace(Frozen):
    """The ordered events of one run, and what its recording says about it.

    An imported run had a file system that nobody kept: the digests in its changes then stand for
    contents without being theirs; two are equal exactly when the contents are known to be equal.
    """

    id: str
    format: TraceFormat
    events: tuple[Event, ...]
    workspace: str = ""
    """The repository's absolute path in the machine of the run; empty where nobody knows."""
    base_directories: tuple[str, ...] = ()
    """Top-level directories of the base commit, as far as they were seen."""
    task: str = ""
    """The prompt that the run began with."""
    model: str = ""
    keeps_shell: bool = True
    """One shell ran all commands, so that what a command set stayed set."""
    continues: Continuation | None = None


def action_indices(events: Iterable[Event]) -> dict[int, int]:
    """Event index -> action index of every event; an observation has its action's, an unreadable reply none."""
    found: dict[int, int] = {}
    number, current = -1, None
    for event in events:
        if event.kind == "action":
            current = None if event.tool == UNREADABLE else number + 1
            number = number if current is None else current
        if current is not None:
            found[event.index] = current
    return found


def apply_changes(
    before: Mapping[str, tuple[str | None, str | None]], changes: Iterable[FileChange]
) -> Differences:
    """The differences to the base after some more changes; a file put back as it was is none."""
    after = dict(before)
    for change in changes:
        base = after[change.path][0] if change.path in after else change.before
        if change.after == base:
            after.pop(change.path, None)
        else:
            after[change.path] = (base, change.after)
    return after


def compute_differences(events: Iterable[Event]) -> Differences:
    """The differences to the base at the end of a whole trace."""
    found: Differences = {}
    for event in events:
        found = apply_changes(found, event.changes)
    return found


def compute_tree_digest(differences: Mapping[str, tuple[str | None, str | None]]) -> str:
    """One digest for a tree, equal for two trees of one base exactly when their files are equal."""
    digest = hashlib.sha256()
    for path in sorted(differences):
        digest.update(f"{path}\0{differences[path][1]}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()

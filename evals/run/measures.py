"""What a takeover cost, and how much of it the predecessor had paid already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from handoff.command_effects import is_search
from handoff.detector_state import DetectorState
from handoff.detectors import state_after
from handoff.event import Event, FileRead
from handoff.record import HandoffRecord
from handoff.views import CHARS_A_TOKEN
from nodes.actions import RECALL

Kind = Literal["read", "search", "command", "verification"]


class Tokens(NamedTuple):
    """Sums over the calls of a run; None where no call said."""

    prompt: int | None
    cached: int | None
    completion: int | None


def tokens(events: Iterable[Event]) -> Tokens:
    # What the runtime only estimated is good enough for its budgets, not for a measurement.
    usages = [event.usage for event in events if event.usage is not None and not event.usage.estimated]

    def total(name: str) -> int | None:
        said = [value for usage in usages if (value := getattr(usage, name)) is not None]
        return sum(said) if said else None

    return Tokens(total("prompt_tokens"), total("cached_tokens"), total("completion_tokens"))


def recall_tokens(events: Sequence[Event]) -> list[int]:
    """What each recall of earlier events put into the conversation, estimated at four characters a token."""
    return [
        -(-(len(action.text) + len(seen.text)) // CHARS_A_TOKEN)
        for action, seen in pairwise(events)
        if action.kind == "action" and action.tool == RECALL and seen.kind == "observation"
    ]


def rediscovery(record: HandoffRecord, successor: Sequence[Event]) -> Counter[Kind]:
    """How many of the successor's events are of each kind that `classified` tells."""
    return Counter(kind for kind in classified(record, successor) if kind is not None)


class Known(NamedTuple):
    """What a predecessor had found out by its handoff point."""

    reads: frozenset[FileRead]
    commands: frozenset[tuple[str, str]]
    """Each with the tree it ran on."""
    searches: frozenset[str]
    to_verify: str | None
    """Its latest validation command."""


def known(record: HandoffRecord, state: DetectorState | None = None) -> Known:
    """What `classified` holds a successor's events against: the same for all that take the record over.

    `state` is the detectors' at the record's point, where somebody has it already.
    """
    commands = frozenset((step.command, step.tree) for step in _steps(record.trace) if step.command)
    task = record.task
    latest = (state or state_after(record.trace, task.base_directories, task.workspace)).latest_validation
    return Known(
        reads=frozenset(read for event in record.trace for read in event.reads),
        commands=commands,
        searches=frozenset(command for command, _ in commands if is_search(command)),
        to_verify=_normal(latest.command) if latest else None,
    )


def classified(before: HandoffRecord | Known, successor: Sequence[Event]) -> tuple[Kind | None, ...]:
    """What each of the successor's events finds out that the predecessor had found out; None for new work.

    An action and its observation are two events of one kind. A step is a `read` when every file it
    showed had been shown to the predecessor with the same content; a `search` when the predecessor had
    made the same one; a `command` when it had run the same on the same tree. The first re-run of the predecessor's latest
    validation command is `verification`, which is no debt.
    """
    had = known(before) if isinstance(before, HandoffRecord) else before
    to_verify = had.to_verify
    found: list[Kind | None] = [None] * len(successor)
    for step in _steps(successor):
        kind: Kind | None = None
        if to_verify is not None and step.command == to_verify:
            kind, to_verify = "verification", None
        elif step.reads and step.reads <= had.reads:
            kind = "read"
        elif step.command in had.searches:
            kind = "search"
        elif (step.command, step.tree) in had.commands:
            kind = "command"
        found[step.place] = found[step.place + 1] = kind
    return tuple(found)


class _Step(NamedTuple):
    """An action that was carried out: its command if it was one, the tree it ran on, what it showed."""

    place: int
    """Of the action in the sequence; its observation is the next."""
    command: str
    tree: str
    reads: frozenset[FileRead]


def _steps(events: Sequence[Event]) -> Iterable[_Step]:
    for place, (action, observation) in enumerate(pairwise(events)):
        if action.kind == "action" and observation.kind == "observation" and not observation.refused:
            command = _normal(action.arguments["command"]) if action.tool == "shell" else ""
            yield _Step(place, command, action.tree, frozenset(observation.reads))


def _normal(command: str) -> str:
    return " ".join(command.split())

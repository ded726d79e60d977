"""Rediscovery by event: steps that repeat the predecessor's work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.points.detectors import compute_state
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.shell.command_effects import is_search
from langgraph_takeover.handoff.trace.events import Event, FileRead

RediscoveryKind = Literal["read", "search", "command", "verification"]
REDISCOVERY_KINDS: tuple[RediscoveryKind, ...] = ("read", "search", "command")
"""The kinds that are debt; verification is not."""


class PredecessorKnowledge(NamedTuple):
    """The predecessor's knowledge at its handoff point."""

    reads: frozenset[FileRead]
    commands: frozenset[tuple[str, str]]
    """Each command with the tree on which it ran."""
    searches: frozenset[str]
    verification_command: str | None
    """Its latest validation command."""


def collect_knowledge(predecessor: Sequence[Event], state: DetectorState) -> PredecessorKnowledge:
    """The predecessor's knowledge for `classify_events`, the same for all its takeovers.

    `state` is the detectors' state after the predecessor's last event.
    """
    commands = frozenset(
        (step.command, step.tree) for step in _list_executed_actions(predecessor) if step.command
    )
    latest = state.latest_validation
    return PredecessorKnowledge(
        reads=frozenset(read for event in predecessor for read in event.reads),
        commands=commands,
        searches=frozenset(command for command, _ in commands if is_search(command)),
        verification_command=_normalize(latest.command) if latest else None,
    )


def _collect_record(record: HandoffRecord) -> PredecessorKnowledge:
    task = record.task
    return collect_knowledge(record.trace, compute_state(record.trace, task.base_directories, task.workspace))


def classify_events(
    predecessor: HandoffRecord | PredecessorKnowledge, successor: Sequence[Event]
) -> tuple[RediscoveryKind | None, ...]:
    """For each of the successor's events, which of the predecessor's findings it repeats. None for new work.

    An action and its observation are two events of one kind. A step is a `read` if the predecessor had seen every file that
    it showed, with the same content; a `search` if the predecessor made the same search; a `command` if the
    predecessor ran the same command on the same tree. The first re-run of the predecessor's latest
    validation command is `verification`, which is not debt.
    """
    had = _collect_record(predecessor) if isinstance(predecessor, HandoffRecord) else predecessor
    to_verify = had.verification_command
    found: list[RediscoveryKind | None] = [None] * len(successor)
    for step in _list_executed_actions(successor):
        kind: RediscoveryKind | None = None
        if to_verify is not None and step.command == to_verify:
            kind, to_verify = "verification", None
        elif step.reads and step.reads <= had.reads:
            kind = "read"
        elif step.command in had.searches:
            kind = "search"
        elif (step.command, step.tree) in had.commands:
            kind = "command"
        found[step.event_index] = found[step.event_index + 1] = kind
    return tuple(found)


class _ExecutedAction(NamedTuple):
    """A completed action: its command if it has one, the tree on which it ran, and the files that it showed."""

    event_index: int
    """Index of the action in the sequence. Its observation follows."""
    command: str
    tree: str
    reads: frozenset[FileRead]


def _list_executed_actions(events: Sequence[Event]) -> Iterable[_ExecutedAction]:
    for index, (action, observation) in enumerate(pairwise(events)):
        if action.kind == "action" and observation.kind == "observation" and not observation.refused:
            command = _normalize(action.arguments["command"]) if action.tool == "shell" else ""
            yield _ExecutedAction(index, command, action.tree, frozenset(observation.reads))


def _normalize(command: str) -> str:
    return " ".join(command.split())

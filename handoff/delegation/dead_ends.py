"""Dead ends that the trace itself proves: failures in the current state, and edits that failed and were undone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.points.detectors import DetectorUpdate, replay_events
from langgraph_takeover.handoff.points.validation import ShellLocation, find_validations
from langgraph_takeover.handoff.records.record import TaskBrief
from langgraph_takeover.handoff.shell.command_effects import CommandEffect, find_effect
from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.trace.conversation import Step, list_steps
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event
from langgraph_takeover.sandbox.interface import FileChange

_WRITING_COMMANDS = ("create", "insert", "str_replace")
"""Commands of the editor that depend on nothing but their arguments and the files."""
_TOOLS_WITHOUT_EFFECT = ("editor", "handoff", "finish", "recall", UNREADABLE)
"""Tools that change nothing, or only files that the tree covers."""
_NOT_STARTED = (126, 127)
"""Exit codes of a shell that cannot start a program: they say nothing about the files."""
_SEPARATORS = re.compile(r"&&|\|\||[;|\n]|(?<![<>&])&(?![>&])")
_SUBSTITUTION = re.compile(r"[`(]")


class ProvenDeadEnd(NamedTuple):
    """An attempt that need not be repeated, with the events that prove it."""

    action: Event
    observation: Event
    sentence: str
    """The runtime's own words: nothing from the sandbox, from the agent or from its parent but numbers."""
    undone_by: int | None = None
    """The event that undid an edit."""


class _Edit(NamedTuple):
    step: Step
    change: FileChange


def list_proven_dead_ends(trace: tuple[Event, ...], task: TaskBrief) -> tuple[ProvenDeadEnd, ...]:
    """List the dead ends of a trace in order.

    A command is one if it failed on the current files each time that it ran on them, and no later command may have changed
    the shell, a process or an ignored file. An edit that the editor refused is one if it failed on the current files. An
    edit that was made is one if the last validation before its undoing failed, and its content did not come back. The
    files of an imported run are inferred, so its trace proves nothing.
    """
    if not trace or not all(event.tree for event in trace):
        return ()
    steps = [Step(action, seen) for action, seen in list_steps(trace) if seen is not None]
    replayed = replay_events(trace, task.base_directories, task.workspace)
    updates = {event.index: update for event, update in zip(trace, replayed, strict=True)}
    found = (*_list_failures(steps, updates, trace), *_list_undone_edits(steps, updates))
    return tuple(sorted(found, key=lambda end: end.observation.index))


def _list_failures(
    steps: list[Step], updates: Mapping[int, DetectorUpdate], trace: tuple[Event, ...]
) -> Iterator[ProvenDeadEnd]:
    """Yield the last run of each action that always failed in the current state and left the files unchanged."""
    tree = trace[-1].tree
    found: dict[tuple[str, ...], ProvenDeadEnd | None] = {}
    for step, next_cwd in zip(steps, _list_next_directories(steps), strict=True):
        action, seen = step
        assert seen is not None
        if _may_change_state(action, seen, next_cwd, updates[seen.index].state):
            found = {key: each for key, each in found.items() if each is None or each.action.tool == "editor"}
        if not action.tree == seen.tree == tree:
            continue
        run = updates[seen.index].validation
        outcome = run.outcome if run else None
        if not seen.timed_out and (outcome == "environment_error" or seen.exit_code in _NOT_STARTED):
            continue
        key = (action.tool, seen.cwd or "", *map(str, sorted(action.arguments.items())))
        reason = _explain_failure(action, seen, outcome)
        if not reason or (key in found and found[key] is None):
            found[key] = None
            continue
        what = "edit" if action.tool == "editor" else "command"
        sentence = f"Do not repeat the {what} of event {seen.index}: {reason} on the current files."
        found[key] = ProvenDeadEnd(action, seen, sentence)
    yield from (each for each in found.values() if each is not None)


def _list_next_directories(steps: list[Step]) -> list[str | None]:
    """Return, for each step, the directory in which the next shell command starts; None if unknown."""
    directories: list[str | None] = []
    directory: str | None = None
    for action, seen in reversed(steps):
        directories.append(directory)
        if action.tool == "shell" and seen is not None:
            directory = seen.cwd
    return directories[::-1]


def _may_change_state(action: Event, seen: Event, next_cwd: str | None, state: DetectorState) -> bool:
    """Return whether an action may change what a tree omits: the shell, processes, ignored and installed files.

    Tests, linters and reproductions count as harmless, builds do not.
    """
    if seen.refused or action.tool in _TOOLS_WITHOUT_EFFECT:
        return False
    if action.tool != "shell":
        return True
    command = action.arguments.get("command", "")
    effect = find_effect(command)
    if effect == "anything":
        effects = {_find_part_effect(part, seen, state) for part in _SEPARATORS.split(command)}
        effect = max(effects, key=("nothing", "shell", "anything").index)
    is_same_directory = seen.cwd is not None and seen.cwd == next_cwd
    return effect == "anything" or (effect == "shell" and not is_same_directory)


def _find_part_effect(part: str, seen: Event, state: DetectorState) -> CommandEffect:
    """Return the effect of one program of a command line, without that of a validation that builds nothing."""
    if not part.strip():
        return "nothing"
    location = ShellLocation(seen.cwd, state.workspace)
    matches = () if _SUBSTITUTION.search(part) else find_validations(part, state.written_scripts, location)
    is_harmless = bool(matches) and all(match.kind != "build" for match in matches)
    return "nothing" if is_harmless else find_effect(part)


def _explain_failure(action: Event, seen: Event, outcome: ValidationOutcome | None) -> str:
    """Return how an action failed; empty if it did not, or if its exit code is an answer, as that of a search."""
    command = action.arguments.get("command", "")
    if action.tool == "editor":
        return "the editor refused it" if seen.refused and command in _WRITING_COMMANDS else ""
    if action.tool != "shell" or seen.refused:
        return ""
    if seen.timed_out:
        return "it did not end in time"
    if outcome in ("passed", "unknown"):
        return ""
    if seen.exit_code and (outcome is not None or find_effect(command) == "anything"):
        return f"it failed with exit code {seen.exit_code}"
    return "its validation failed" if outcome == "failed" else ""


def _list_undone_edits(steps: list[Step], updates: Mapping[int, DetectorUpdate]) -> Iterator[ProvenDeadEnd]:
    """Yield edits all of whose changes were undone after a failed validation, and not made again."""
    latest: dict[str, _Edit] = {}
    makers: dict[tuple[str, str | None], int] = {}
    kept_paths: dict[int, set[str]] = {}
    found: dict[int, ProvenDeadEnd] = {}
    failed_at = -1
    for step in steps:
        seen = step.observation
        assert seen is not None
        for change in seen.changes:
            maker = makers.get((change.path, change.after))
            if maker is not None:
                kept_paths[maker].add(change.path)
                found.pop(maker, None)
            edit = latest.pop(change.path, None)
            if edit is not None and _is_undone(edit, change) and _index(edit.step) < failed_at:
                kept_paths[_index(edit.step)].discard(change.path)
                if not kept_paths[_index(edit.step)]:
                    found[_index(edit.step)] = _build_undone_edit(edit.step, failed_at, seen.index)
        update = updates[seen.index]
        if update.edited_files:
            kept_paths[seen.index] = {change.path for change in seen.changes}
            latest |= {change.path: _Edit(step, change) for change in seen.changes}
            makers |= {(change.path, change.after): seen.index for change in seen.changes}
        if update.validation is not None and update.validation.outcome in ("failed", "passed"):
            failed_at = seen.index if update.validation.outcome == "failed" else -1
    yield from found.values()


def _is_undone(edit: _Edit, change: FileChange) -> bool:
    return (change.before, change.after) == (edit.change.after, edit.change.before)


def _index(step: Step) -> int:
    assert step.observation is not None
    return step.observation.index


def _build_undone_edit(step: Step, failed_at: int, undone_by: int) -> ProvenDeadEnd:
    assert step.observation is not None
    sentence = (
        f"Do not reapply the edit of event {step.observation.index} as a fix: "
        f"validation failed at event {failed_at}, and event {undone_by} undid the edit."
    )
    return ProvenDeadEnd(step.action, step.observation, sentence, undone_by)

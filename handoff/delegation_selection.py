"""What a delegated successor gets from a trace: its last reads and commands, and dead ends that it proves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from langgraph_takeover.handoff.notes.evidence import list_shell_steps
from langgraph_takeover.handoff.notes.observed_fields import describe_missing_programs
from langgraph_takeover.handoff.points.detector_state import DetectorState
from langgraph_takeover.handoff.points.detectors import DetectorUpdate, list_validations, replay_events
from langgraph_takeover.handoff.points.validation import ShellLocation, find_validations
from langgraph_takeover.handoff.records.envelope import DeadEnd, Payload, RanCommand, ReadFile
from langgraph_takeover.handoff.records.record import EditedFile, HandoffRecord, TaskBrief
from langgraph_takeover.handoff.shell.command_effects import CommandEffect, find_effect, is_search
from langgraph_takeover.handoff.shell.program_table import find_running_spellings
from langgraph_takeover.handoff.shell.runner_summaries import ValidationOutcome
from langgraph_takeover.handoff.text.patch_sections import split_patch
from langgraph_takeover.handoff.trace.conversation import (
    Step,
    compute_text_digest,
    extract_whole_content,
    list_steps,
)
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event
from langgraph_takeover.sandbox.interface import FileChange

_MAX_CHARS = 24_000
"""A longer file is shown in part."""
_CONTEXT_LINES = 60
_LINE_NUMBER_CHARS = 8
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


class Excerpt(NamedTuple):
    """Lines of a file, counted from 1."""

    first: int
    last: int
    total: int
    """Number of lines of the whole file."""
    text: str
    """The lines with their numbers, as the editor shows them."""


def list_excerpts(path: str, content: str, patch: str, budget_chars: int) -> tuple[Excerpt, ...]:
    """List what to show of a file: all of it, or of a long one the lines around its changes, from the top.

    `patch` is that of the repository; `budget_chars` is the space for everything that is shown to the successor.
    """
    limit = _limit(budget_chars)
    if is_shown_whole(content, budget_chars):
        return (cut_whole(content),)
    lines = _split_lines(content)
    found: list[Excerpt] = []
    for first, last in _merge(_list_hunks(path, patch), len(lines)) or [(1, len(lines))]:
        room = limit - sum(len(each.text) for each in found)
        while last >= first and len(_cut(lines, first, last).text) > room:
            last = first + (last - first + 1) // 2 - 1
        if last >= first:
            found.append(_cut(lines, first, last))
    return tuple(found)


def is_shown_whole(content: str, budget_chars: int) -> bool:
    """Whether a file is short enough to be shown without a cut."""
    return len(content) + _LINE_NUMBER_CHARS * (content.count("\n") + 1) <= _limit(budget_chars)


def _limit(budget_chars: int) -> int:
    return min(_MAX_CHARS, budget_chars // 3)


def measure_excerpts(excerpts: Iterable[Excerpt]) -> int:
    """Characters of the excerpts."""
    return sum(len(each.text) for each in excerpts)


def cut_whole(content: str) -> Excerpt:
    """The whole file as one excerpt."""
    lines = _split_lines(content)
    return _cut(lines, 1, len(lines))


def _split_lines(content: str) -> list[str]:
    return content.removesuffix("\n").split("\n")


def _cut(lines: list[str], first: int, last: int) -> Excerpt:
    text = "\n".join(f"{number:6}\t{lines[number - 1]}" for number in range(first, last + 1))
    return Excerpt(first, last, len(lines), text)


def _list_hunks(path: str, patch: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each hunk of a file, in its new text."""
    text = next((section.text for section in split_patch(patch) if section.path == path), "")
    for first, count in _HUNK.findall(text):
        yield int(first[:9]), int(first[:9]) + max(int((count or "1")[:9]), 1) - 1


def _merge(hunks: Iterable[tuple[int, int]], total: int) -> list[tuple[int, int]]:
    """Widen the hunks by their context, and merge those that meet."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(hunks):
        start, end = max(first - _CONTEXT_LINES, 1), min(last + _CONTEXT_LINES, total)
        if start > total:
            continue
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


LAST_READS, LAST_COMMANDS, LAST_SEARCHES = 8, 6, 4
WINDOW_SHARE = 0.25
"""Maximum share of the child's context window."""
_CHARS_PER_TOKEN = 4
_MAX_TAIL_CHARS = 2_000
_MAX_DEAD_ENDS = 10
_WORD = re.compile(r"`([^`\n]{3,60})`|\b(\w*_\w+|[a-z]+[A-Z]\w+|[A-Z][a-z]+[A-Z]\w*|\w+(?:\.\w+)+)\b")


def select_record_payload(record: HandoffRecord, window_tokens: int) -> Payload:
    """Select the payload from a record; the files that the run edited come with their current content."""
    return select_payload(record.trace, record.task, window_tokens, record.edited_files, record.patch)


def select_payload(
    trace: tuple[Event, ...],
    task: TaskBrief,
    window_tokens: int,
    edited_files: tuple[EditedFile, ...] = (),
    patch: str = "",
) -> Payload:
    """Select the last reads, the last commands and the searches for the goal's names, within a share of the window.

    If they do not fit, the oldest searches go first, then the oldest commands, then the oldest reads; dead ends stay.
    """
    taken = list_answered_steps(trace)
    files = _select_read_files(taken, edited_files)
    goal = task.prompt
    names = {next(filter(None, found)) for found in _WORD.findall(goal)}
    change = find_last_change(trace)
    commands = [build_ran_command(step, change) for step in taken if _is_command(step)]
    searches = [ran for ran in commands if is_search(ran.cmd)]
    others = [ran for ran in commands if ran not in searches]
    parts: list[list[Any]] = [
        [ran for ran in searches if any(name in ran.cmd for name in names)][-LAST_SEARCHES:],
        list(others[-LAST_COMMANDS:]),
        list(files[-LAST_READS:]),
    ]
    budget = compute_budget_chars(window_tokens)
    shown = {event.index: len(event.text) for event in trace}
    shown_files = {
        file.path: measure_excerpts(list_excerpts(file.path, file.content or "", patch, budget))
        for file in parts[2]
        if file.event is None
    }
    while sum(_measure_entries(parts, shown, shown_files)) > budget:
        next(part for part in parts if part).pop(0)
    probes, ran, seen = map(tuple, parts)
    return Payload(
        goal=goal,
        read_files=seen,
        ran_commands=ran,
        probe_results=probes,
        dead_ends=tuple(_find_dead_ends(taken, trace, task))[-_MAX_DEAD_ENDS:],
    )


def compute_budget_chars(window_tokens: int) -> int:
    """Return the space for the results in a derived payload, in characters."""
    return int(WINDOW_SHARE * window_tokens * _CHARS_PER_TOKEN)


def _measure_entries(
    parts: list[list[Any]], shown: Mapping[int, int], shown_files: Mapping[str, int]
) -> Iterator[int]:
    for entry in chain.from_iterable(parts):
        yield shown_files[entry.path] if entry.event is None else shown[entry.event]


def build_read_cache(record: HandoffRecord) -> dict[str, ReadFile]:
    """Return every file at its last read, by path; the content of a payload comes before the trace."""
    files = record.payload.read_files if record.payload is not None else ()
    return {
        file.path: file
        for file in (
            *map(
                _drop_partial_content,
                _select_read_files(list_answered_steps(record.trace), record.edited_files),
            ),
            *map(_drop_partial_content, files),
        )
    }


def list_answered_steps(trace: Iterable[Event]) -> list[Step]:
    """Yield the actions of a trace that had an effect."""
    return [step for step in list_steps(trace) if step.observation is not None]


def find_last_change(trace: Iterable[Event]) -> int:
    return max((event.index for event in trace if event.changes), default=-1)


def _drop_partial_content(file: ReadFile) -> ReadFile:
    """Return the file, without its content if that is no longer complete, for instance because a key was redacted."""
    kept = file.content is not None and compute_text_digest(file.content) == file.sha256
    return file if kept else file.model_copy(update={"content": None})


def _select_read_files(
    answered_steps: Iterable[Step], edited_files: Iterable[EditedFile] = ()
) -> list[ReadFile]:
    """Return the files in the order of their last read or edit, without those that no longer exist.

    A file that was edited after its last read has its content from `edited_files`, and is stale only without it.
    """
    edited = {file.path: file for file in edited_files}
    found: dict[str, ReadFile] = {}
    for step in answered_steps:
        action, seen = step
        assert seen is not None
        for read in seen.reads:
            found.pop(read.path, None)
            content = extract_whole_content(action, seen, read.sha256) if len(seen.reads) == 1 else None
            file = ReadFile(path=read.path, sha256=read.sha256, event=seen.index, content=content)
            now = edited.get(read.path)
            is_part = content is None and now is not None and now.sha256 == read.sha256
            found[read.path] = _use_current_content(now) if now is not None and is_part else file
        for change in seen.changes:
            known, now = found.get(change.path), edited.get(change.path)
            if now is not None and change.after == now.sha256 != (known.sha256 if known else None):
                found.pop(change.path, None)
                found[change.path] = _use_current_content(now)
            elif known is not None and change.after != known.sha256:
                found[change.path] = known.model_copy(update={"stale": True})
            if change.after is None:
                found.pop(change.path, None)
    return list(found.values())


def _use_current_content(file: EditedFile) -> ReadFile:
    return ReadFile(path=file.path, sha256=file.sha256, event=None, content=file.content)


def _is_command(step: Step) -> bool:
    """Whether it ran something in the shell; showing a file is a read, even after another command."""
    seen = step.observation
    return step.action.tool == "shell" and seen is not None and not seen.refused and not seen.reads


def build_ran_command(step: Step, last_change: int) -> RanCommand:
    """Describe a command from the trace."""
    seen = step.observation
    assert seen is not None
    command = step.action.arguments.get("command", "")
    return RanCommand(
        cmd=command,
        rc=seen.exit_code,
        tail=seen.text[-_MAX_TAIL_CHARS:],
        event=seen.index,
        stale=seen.index < last_change,
    )


def _find_dead_ends(
    answered_steps: list[Step], trace: tuple[Event, ...], task: TaskBrief
) -> Iterator[DeadEnd]:
    """Yield dead ends: commands that hung or could never run, and edits that were reverted."""
    runs = {run.event_index: run for run in list_validations(trace, task.base_directories, task.workspace)}
    worked = {
        step.action.arguments.get("command")
        for step in answered_steps
        if step.observation and step.observation.exit_code == 0
    }

    @cache
    def find_running() -> dict[str, str]:
        return find_running_spellings(
            (step.command, step.observation.text, step.observation.exit_code)
            for step in list_shell_steps(trace)
        )

    reported: set[str] = set()
    history: dict[str, list[str | None]] = {}
    for action, seen in answered_steps:
        assert seen is not None
        command = action.arguments.get("command", "") if action.tool == "shell" else ""
        why = _explain_dead_end(seen, seen.index in runs and runs[seen.index].outcome == "environment_error")
        if why and command and command not in worked and command not in reported:
            reported.add(command)
            missing = describe_missing_programs(command, seen.text, find_running)
            yield DeadEnd(what=command, why=f"{why}: {missing}" if missing else why, event=seen.index)
        for change in seen.changes:
            states = history.setdefault(change.path, [change.before])
            if change.before is not None and change.after in states[:-1] and len(states) > 1:
                back = states.index(change.after)
                del states[back + 1 :]
                yield DeadEnd(what=f"an edit of {change.path}", why="it was reverted", event=seen.index)
            elif change.after != states[-1]:
                states.append(change.after)


def _explain_dead_end(observation: Event, could_not_run: bool) -> str:
    if observation.timed_out:
        return "it did not end in time"
    if could_not_run:
        return "this exact command could not run"
    if observation.exit_code in (126, 127):
        return "this exact command could not be started"
    return ""


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

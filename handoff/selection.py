"""What of a trace a delegated successor is handed: its last reads, its last commands, and what ended in nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from handoff.command_effects import is_search, shown_files
from handoff.conversation import Step, steps
from handoff.detectors import validations
from handoff.event import Event
from handoff.payload import DeadEnd, Payload, RanCommand, ReadFile
from handoff.record import HandoffRecord, TaskBrief

LAST_READS, LAST_COMMANDS, LAST_SEARCHES = 8, 6, 4
SHARE = 0.25
"""Of the child's context window, at most."""
_CHARS_A_TOKEN = 4
_LONGEST_TAIL = 2_000
_MOST_DEAD_ENDS = 10
_WORD = re.compile(r"`([^`\n]{3,60})`|\b(\w*_\w+|[a-z]+[A-Z]\w+|[A-Z][a-z]+[A-Z]\w*|\w+(?:\.\w+)+)\b")
_HEAD = re.compile(r"\[exit code -?\d+\]\n")
_NUMBERED = re.compile(r"\s*\d+\t(.*)")


def payload_of(record: HandoffRecord, window_tokens: int) -> Payload:
    """As `derived`, from a record."""
    return derived(record.trace, record.task, window_tokens)


def derived(trace: tuple[Event, ...], task: TaskBrief, window_tokens: int) -> Payload:
    """The last reads, the last commands and the searches for what the goal names, within a share of the window.

    Where they do not fit, the oldest searches go first, then the oldest commands, then the oldest reads; dead
    ends stay.
    """
    taken = answered(trace)
    files = _read_files(taken)
    goal = task.prompt
    names = {next(filter(None, found)) for found in _WORD.findall(goal)}
    change = last_change(trace)
    commands = [ran_in(step, change) for step in taken if _is_command(step)]
    searches = [ran for ran in commands if is_search(ran.cmd)]
    others = [ran for ran in commands if ran not in searches]
    parts: list[list[Any]] = [
        [ran for ran in searches if any(name in ran.cmd for name in names)][-LAST_SEARCHES:],
        list(others[-LAST_COMMANDS:]),
        list(files[-LAST_READS:]),
    ]
    room = int(SHARE * window_tokens * _CHARS_A_TOKEN)
    shown = {event.index: len(event.text) for event in trace}
    for part in parts:
        while part and sum(shown[each.event] for every in parts for each in every) > room:
            part.pop(0)
    probes, ran, seen = map(tuple, parts)
    return Payload(
        goal=goal,
        read_files=seen,
        ran_commands=ran,
        probe_results=probes,
        dead_ends=tuple(_dead_ends(taken, trace, task))[-_MOST_DEAD_ENDS:],
    )


def read_cache(record: HandoffRecord) -> dict[str, ReadFile]:
    """Every file that was read, as it was read last, by its path; what a payload brings goes before the trace."""
    given = record.payload.read_files if record.payload is not None else ()
    return {file.path: file for file in (*_read_files(answered(record.trace)), *map(_whole, given))}


def answered(trace: Iterable[Event]) -> list[Step]:
    """The actions of a trace that were seen to come to something."""
    return [step for step in steps(trace) if step.observation is not None]


def last_change(trace: Iterable[Event]) -> int:
    return max((event.index for event in trace if event.changes), default=-1)


def _whole(file: ReadFile) -> ReadFile:
    """The file, without a content that is not whole any more, such as one that a key was taken out of."""
    kept = file.content is not None and digest_of(file.content) == file.sha256
    return file if kept else file.model_copy(update={"content": None})


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read_files(taken: Iterable[Step]) -> list[ReadFile]:
    """The files in the order of their last reading; those that are not there any more are left out."""
    found: dict[str, ReadFile] = {}
    for step in taken:
        action, seen = step
        assert seen is not None
        for read in seen.reads:
            found.pop(read.path, None)
            content = whole_content(action, seen, read.sha256) if len(seen.reads) == 1 else None
            found[read.path] = ReadFile(path=read.path, sha256=read.sha256, event=seen.index, content=content)
        for change in seen.changes:
            if (known := found.get(change.path)) is not None and change.after != known.sha256:
                found[change.path] = known.model_copy(update={"stale": True})
            if change.after is None:
                found.pop(change.path, None)
    return list(found.values())


def whole_content(action: Event, seen: Event, sha256: str) -> str | None:
    """The file that an observation shows, if it shows all of it: only then it has the digest."""
    if action.tool == "editor":
        lines = [_NUMBERED.fullmatch(line) for line in seen.text.split("\n")[1:]]
        text = "\n".join(line[1] for line in lines if line)
    elif shown_files(action.arguments.get("command", "")):
        text = _HEAD.sub("", seen.text, count=1)
    else:
        return None
    for content in (text, f"{text}\n"):
        if digest_of(content) == sha256:
            return content
    return None


def _is_command(step: Step) -> bool:
    """Whether it ran something in the shell; what shows a file is a read, also when another came after it."""
    seen = step.observation
    return step.action.tool == "shell" and seen is not None and not seen.refused and not seen.reads


def ran_in(step: Step, last_change: int) -> RanCommand:
    """A command as the trace has it."""
    seen = step.observation
    assert seen is not None
    command = step.action.arguments.get("command", "")
    return RanCommand(
        cmd=command,
        rc=seen.exit_code,
        tail=seen.text[-_LONGEST_TAIL:],
        event=seen.index,
        stale=seen.index < last_change,
    )


def _dead_ends(taken: list[Step], trace: tuple[Event, ...], task: TaskBrief) -> Iterator[DeadEnd]:
    """What ended in nothing: commands that hung or could not run and never did, and edits that were taken back."""
    runs = {run.event_index: run for run in validations(trace, task.base_directories, task.workspace)}
    worked = {
        step.action.arguments.get("command")
        for step in taken
        if step.observation and step.observation.exit_code == 0
    }
    told: set[str] = set()
    history: dict[str, list[str | None]] = {}
    for action, seen in taken:
        assert seen is not None
        command = action.arguments.get("command", "") if action.tool == "shell" else ""
        why = _why_dead(seen, seen.index in runs and runs[seen.index].outcome == "environment_error")
        if why and command and command not in worked and command not in told:
            told.add(command)
            yield DeadEnd(what=command, why=why, event=seen.index)
        for change in seen.changes:
            states = history.setdefault(change.path, [change.before])
            if change.before is not None and change.after in states[:-1] and len(states) > 1:
                back = states.index(change.after)
                del states[back + 1 :]
                yield DeadEnd(what=f"an edit of {change.path}", why="it was taken back", event=seen.index)
            elif change.after != states[-1]:
                states.append(change.after)


def _why_dead(seen: Event, could_not_run: bool) -> str:
    if seen.timed_out:
        return "it did not end in time"
    if could_not_run:
        return "it could not run here"
    if seen.exit_code in (126, 127):
        return "there is no such program"
    return ""

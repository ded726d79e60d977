"""The payload of `delegate_task`: its arguments, parsed strictly and checked against the orchestrator's trace."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, WithJsonSchema

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.delegation_selection import (
    build_ran_command,
    find_last_change,
    list_answered_steps,
)
from langgraph_takeover.handoff.points.detectors import list_validations
from langgraph_takeover.handoff.records.envelope import DeadEnd, Mode, Payload, RanCommand, ReadFile
from langgraph_takeover.handoff.records.record import TaskBrief
from langgraph_takeover.handoff.trace.conversation import Step, compute_text_digest, extract_whole_content
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.sandbox.interface import FileAccessError

_MAX_REPORTED = 5
_ENTRY_FIELDS = frozenset(("cmd", "rc", "tail"))
_ERROR_TEXTS = {
    "extra_forbidden": "unknown field",
    "missing": "missing",
    "string_too_short": "empty",
}

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class DelegationError(TakeoverError, ValueError):
    """A call of `delegate_task` is invalid; the line says what to send instead."""


class FileArgument(Frozen):
    """A file for the child; its content is read from the sandbox."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class CommandArgument(Frozen):
    """A command that was run, as the orchestrator reports it."""

    cmd: _Text
    rc: int | None = None
    tail: str = ""


class DeadEndArgument(Frozen):
    """A dead end, as the orchestrator sees it."""

    what: _Text
    why: str = ""


def _wrap_text(name: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {name: value} if isinstance(value, str) else value)


def _list_probes(value: Any) -> Any:
    """Convert an object from command to result to the list of its entries. Raises ValueError."""
    if not isinstance(value, Mapping):
        return value
    if "cmd" in value and value.keys() <= _ENTRY_FIELDS:
        raise ValueError("put the entry into a list")
    if not all(isinstance(each, str) for entry in value.items() for each in entry):
        raise ValueError("an object must map command strings to result strings (or give a list of entries)")
    return [{"cmd": command, "tail": result} for command, result in value.items()]


class HandoffArguments(Frozen):
    """The orchestrator's knowledge."""

    read_files: tuple[
        Annotated[FileArgument, _wrap_text("path"), WithJsonSchema({"type": "string"})], ...
    ] = Field(default=(), max_length=100, description="Paths of files that you read.")
    ran_commands: tuple[CommandArgument, ...] = Field(
        default=(), max_length=100, description="Commands that you ran."
    )
    probe_results: Annotated[tuple[CommandArgument, ...], BeforeValidator(_list_probes)] = Field(
        default=(), max_length=100, description="Searches that you ran."
    )
    dead_ends: tuple[Annotated[DeadEndArgument, _wrap_text("what")], ...] = Field(
        default=(), max_length=100, description="What you tried without success."
    )


class TaskArguments(Frozen):
    """One task for one child."""

    goal: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1),
        Field(description="Everything that the child must know about its task."),
    ]
    handoff: HandoffArguments | None = Field(default=None, description="Default: taken from your own trace.")
    mode: Mode = Field(
        default="work", description="work: its changes come back. look: only its message does."
    )


class TaskListArguments(Frozen):
    """Tasks for several children at once."""

    tasks: tuple[TaskArguments, ...] = Field(min_length=1)


def parse_tasks(arguments: Mapping[str, Any], max_tasks: int) -> tuple[TaskArguments, ...]:
    """Parse the tasks of one call: `goal`, `handoff` and `mode`, or `tasks` with several of them. Raises DelegationError."""
    # Models that fill in every field leave unused ones empty.
    several = bool(arguments.get("tasks")) or set(arguments) == {"tasks"}
    left_out: dict[str, Any] = {"goal": "", "handoff": None, "mode": "work"} if several else {"tasks": []}
    meant = {
        name: value
        for name, value in arguments.items()
        if name not in left_out or (value is not None and value != left_out[name])
    }
    try:
        if not several:
            return (TaskArguments.model_validate(meant),)
        tasks = TaskListArguments.model_validate(meant).tasks
    except ValidationError as error:
        problems = "; ".join(map(_describe_validation_error, error.errors()[:_MAX_REPORTED]))
        raise DelegationError(problems) from None
    if len(tasks) > max_tasks:
        raise DelegationError(f"tasks: at most {max_tasks} in one call, not {len(tasks)}")
    return tasks


def _describe_validation_error(error: Any) -> str:
    # The names are the model's; its long values are not repeated to it.
    field = ".".join(str(part)[:100] for part in error["loc"]) or "arguments"
    if error["type"] == "extra_forbidden" and "read_files" in error["loc"]:
        return f"{field}: unknown field (give the path alone; its content is read from the sandbox)"
    if error["type"] == "extra_forbidden" and error["loc"] in (("goal",), ("handoff",), ("mode",)):
        return f"{field}: set it in each entry of tasks, not at the top level"
    return f"{field}: {_ERROR_TEXTS.get(error['type'], error['msg'].removeprefix('Value error, '))}"


MAX_SHARE = 0.3
"""Of the child's context window."""
_CHARS_PER_TOKEN = 4
_LINE_NUMBER_CHARS = 8
"""Number of characters of a line number."""
_INLINE_CODE = re.compile(r"`([^`\n]+)`")

FileReader = Callable[[str], bytes]
"""Reads a file in the parent's sandbox; raises FileAccessError."""


def build_payload(
    arguments: TaskArguments, trace: tuple[Event, ...], task: TaskBrief, read_file: FileReader
) -> Payload:
    """Build a payload from the orchestrator's arguments, each checked against its trace. Raises DelegationError."""
    handoff = arguments.handoff or HandoffArguments()
    taken = list_answered_steps(trace)
    commands, change = _index_commands(taken), find_last_change(trace)

    def resolve_command(claimed: CommandArgument) -> RanCommand:
        step = commands.get(_collapse_spaces(claimed.cmd))
        if step is not None:
            return build_ran_command(step, change)
        return RanCommand(cmd=claimed.cmd, rc=claimed.rc, tail=claimed.tail, event=None)

    paths = tuple(dict.fromkeys(_normalize_path(file.path, task.workspace) for file in handoff.read_files))
    failures = _find_failures(taken, trace, task)
    return Payload(
        goal=arguments.goal,
        read_files=tuple(_load_file(path, read_file, taken) for path in paths),
        ran_commands=tuple(map(resolve_command, handoff.ran_commands)),
        probe_results=tuple(map(resolve_command, handoff.probe_results)),
        dead_ends=tuple(_check_dead_end(each, taken, failures) for each in handoff.dead_ends),
        mode=arguments.mode,
    )


def check_size(
    payload: Payload, trace: tuple[Event, ...], window_tokens: int, max_tokens: int | None
) -> None:
    """Raise DelegationError for a payload too large for its child, with what to cut."""
    sizes = dict(_list_sizes(payload, {event.index: len(event.text) for event in trace}))
    tokens = -(-sum(sizes.values()) // _CHARS_PER_TOKEN)
    share = int(MAX_SHARE * window_tokens)
    limit, whose = share, f"{MAX_SHARE:.0%} of its window of {window_tokens:,}"
    if max_tokens is not None and max_tokens < limit:
        limit, whose = max_tokens, "its whole budget"
    if tokens > limit:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_MAX_REPORTED]
        parts = ", ".join(f"{name} ({-(-sizes[name] // _CHARS_PER_TOKEN):,})" for name in largest)
        raise DelegationError(
            f"handoff: the child would start with about {tokens:,} tokens, and the limit is {limit:,} "
            f"({whose}); cut the largest parts: {parts}"
        )


def _list_sizes(payload: Payload, event_chars: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    yield "goal", len(payload.goal)
    for file in payload.read_files:
        held = len(file.content or "") + _LINE_NUMBER_CHARS * (file.content or "").count("\n")
        yield (
            f"read_files {file.path[:100]}",
            len(file.path) + (held if file.event is None else event_chars[file.event]),
        )
    for name in ("ran_commands", "probe_results"):
        for number, ran in enumerate(getattr(payload, name)):
            tail = len(ran.tail) if ran.event is None else event_chars[ran.event]
            yield f"{name}.{number}", len(ran.cmd) + tail
    for number, end in enumerate(payload.dead_ends):
        yield f"dead_ends.{number}", len(end.what) + len(end.why) + len(end.shown)


def _normalize_path(path: str, workspace: str) -> str:
    """Return the path as reads name it. Raises DelegationError for one outside the repository."""
    whole = posixpath.normpath(posixpath.join(workspace or "/", path))
    name = whole.removeprefix((workspace or "/").rstrip("/") + "/")
    if "\0" in path or name == whole or name.split("/", 1)[0] == ".git":
        raise DelegationError(
            f"handoff.read_files: {path!r:.200} is not in the repository (give paths inside it)"
        )
    return name


def _load_file(path: str, read_file: FileReader, steps: list[Step]) -> ReadFile:
    try:
        content = read_file(path).decode()
    except FileAccessError as error:
        raise DelegationError(f"handoff.read_files: {error!s:.300}") from None
    except UnicodeDecodeError:
        content = "\0"
    if "\0" in content:
        raise DelegationError(f"handoff.read_files: {path!r:.200} is not text (leave it out)")
    digest = compute_text_digest(content)
    for action, seen in reversed(steps):
        if seen is None or len(seen.reads) != 1 or seen.reads[0].path != path:
            continue
        if seen.reads[0].sha256 == digest and extract_whole_content(action, seen, digest) is not None:
            return ReadFile(path=path, sha256=digest, event=seen.index, content=content)
    return ReadFile(path=path, sha256=digest, event=None, content=content)


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def _index_commands(steps: list[Step]) -> dict[str, Step]:
    """Return the last run of every command."""
    return {
        _collapse_spaces(step.action.arguments.get("command", "")): step
        for step in steps
        if step.action.tool == "shell" and step.observation is not None and not step.observation.refused
    }


def _check_dead_end(claimed: DeadEndArgument, steps: list[Step], failures: Mapping[int, str]) -> DeadEnd:
    """Return a claim with what the trace shows of it: only an action in the same words counts as tried."""
    tried = [
        seen.index
        for action, seen in steps
        if seen is not None and not seen.refused and _is_attempt(action, bool(seen.changes), claimed.what)
    ]
    failed = next((index for index in reversed(tried) if index in failures), None)
    if failed is not None:
        return DeadEnd(what=claimed.what, why=claimed.why, event=failed, shown=failures[failed])
    shown = "it was done, and nothing shows that it failed" if tried else "nothing shows that it was tried"
    return DeadEnd(
        what=claimed.what, why=claimed.why, event=tried[-1] if tried else None, shown=shown, proven=False
    )


def _is_attempt(action: Event, has_changes: bool, what: str) -> bool:
    """Whether an action did what these words, or those in backticks among them, spell out.

    They are a complete command, or text that an edit wrote; a search for that text does not count.
    """
    if action.tool not in ("shell", "editor"):
        return False
    named = ("command",) if action.tool == "shell" else ("new", "content")
    done = [_collapse_spaces(action.arguments.get(name, "")) for name in named]
    for words in map(_collapse_spaces, (what, *_INLINE_CODE.findall(what))):
        # One word alone, such as a file's name, occurs in many unrelated actions.
        if words in done or (has_changes and " " in words and any(words in each for each in done)):
            return True
    return False


def _find_failures(steps: list[Step], trace: tuple[Event, ...], task: TaskBrief) -> dict[int, str]:
    """Return how each failed action failed: by itself, or by a validation before the next change."""
    runs = {run.event_index: run for run in list_validations(trace, task.base_directories, task.workspace)}
    found: dict[int, str] = {}
    pending: list[int] = []
    for action, seen in steps:
        assert seen is not None
        if seen.changes:
            pending = [seen.index]
        run = runs.get(seen.index)
        if run is not None and run.outcome == "failed":
            found |= dict.fromkeys(pending, f"validation failed after it, at e{seen.index}")
        elif run is not None and run.has_passed:
            pending = []
        if seen.timed_out:
            found[seen.index] = "it did not end in time"
        elif seen.exit_code not in (None, 0) and action.tool == "shell":
            found[seen.index] = f"it ended with exit code {seen.exit_code}"
    return found

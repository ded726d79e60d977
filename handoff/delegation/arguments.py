"""The arguments of `delegate_task`, parsed strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, WithJsonSchema

from langgraph_takeover.base.values import Frozen, TakeoverError
from langgraph_takeover.handoff.records.payload import Mode

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

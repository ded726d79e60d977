"""Several attempts of one takeover, of which one is kept: `--attempts` and `--choose`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from langgraph_takeover import Outcome
from langgraph_takeover.evals.run.rows import Fields, Takeover
from langgraph_takeover.handoff.points.detectors import list_validations
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.sandbox.interface import Sandbox

_SUMS = ("steps", "llm_calls", "prompt_tokens", "completion_tokens", "cost_usd", "seconds")


class ValidationCommand(NamedTuple):
    """A validation of the predecessor."""

    command: str
    cwd: str | None


class TakeoverAttempt(NamedTuple):
    """A completed attempt with its costs."""

    name: str
    """Of its thread, trace and logs."""
    outcome: Outcome
    events: list[Event]
    passed: int
    """Number of the predecessor's test commands that pass in its final sandbox."""
    costs: Fields


def name_attempts(name: str, number: int) -> tuple[str, ...]:
    """The names of a takeover's attempts; the first has that of the takeover."""
    return (name, *(f"{name}.attempt-{each}" for each in range(2, number + 1)))


def list_test_commands(record: HandoffRecord) -> tuple[ValidationCommand, ...]:
    """The command lines with validations that the predecessor ran before the point, each once."""
    task, events = record.task, record.trace
    found = list_validations(events, task.base_directories, task.workspace)
    lines = (_find_line(events, each.event_index) for each in found)
    return tuple(dict.fromkeys(line for line in lines if line is not None))


def _find_line(events: Sequence[Event], index: int) -> ValidationCommand | None:
    """The shell command whose observation has an index."""
    at = next((n for n, each in enumerate(events) if each.index == index), 0)
    action = next((each for each in reversed(events[:at]) if each.kind == "action"), None)
    command = action.arguments.get("command") if action is not None and action.tool == "shell" else None
    return ValidationCommand(command, events[at].cwd) if command else None


def count_passing(
    sandbox: Sandbox, commands: Iterable[ValidationCommand], record: HandoffRecord, timeout_s: float
) -> int:
    """Run test commands in a sandbox, and count those that pass, as handoff points judge it; else by exit code."""
    passed = 0
    for command, cwd in commands:
        line, directory = (
            text.replace(record.task.workspace, sandbox.workspace)
            for text in (command, cwd or record.task.workspace)
        )
        sandbox.run(f"cd {shlex.quote(directory)}", timeout_s=timeout_s)
        result = sandbox.run(line, timeout_s=timeout_s)
        events = (
            Event(index=0, kind="action", tool="shell", text=line, arguments={"command": line}),
            Event(
                index=1,
                kind="observation",
                tool="shell",
                text=result.output,
                exit_code=None if result.timed_out else result.exit_code,
                timed_out=result.timed_out,
                cwd=directory,
            ),
        )
        found = list_validations(events, record.task.base_directories, sandbox.workspace)
        passed += found[-1].outcome == "passed" if found else result.exit_code == 0
    return passed


def choose_attempt(attempts: Sequence[TakeoverAttempt]) -> TakeoverAttempt:
    """The attempt with the most passing commands; of several, that with the fewest steps, then the first."""
    return min(attempts, key=lambda each: (-each.passed, each.outcome.steps))


def describe_attempts(attempts: Sequence[TakeoverAttempt], chosen: TakeoverAttempt, commands: int) -> Fields:
    """The columns of a takeover's attempts; none for a single one."""
    if len(attempts) == 1:
        return {}
    sums = {name: [each.costs[name] for each in attempts] for name in _SUMS}
    return {
        "attempts": len(attempts),
        "chosen_attempt": attempts.index(chosen) + 1,
        "choice_commands": commands,
        "attempts_passed": tuple(each.passed for each in attempts),
        **{
            f"attempts_{name}": None if None in values else round(sum(values), 6)
            for name, values in sums.items()
        },
    }


def list_traces(row: Takeover) -> tuple[str, ...]:
    """The names of all attempts of a row."""
    base = (row.trace or "").partition(".attempt-")[0]
    return name_attempts(base, row.attempts or 1)

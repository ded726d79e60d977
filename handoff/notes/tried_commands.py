"""The commands of a run with their results, without those that only look around."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from langgraph_takeover.handoff.shell.command_effects import may_edit
from langgraph_takeover.handoff.shell.commands import SimpleCommand
from langgraph_takeover.handoff.shell.heredocs import PLACEHOLDER, extract_heredocs
from langgraph_takeover.handoff.shell.missing_programs import list_missing_programs
from langgraph_takeover.handoff.shell.programs import find_program
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.text.fence import format_inline_code, neutralize
from langgraph_takeover.handoff.text.note_fields import UNKNOWN
from langgraph_takeover.handoff.trace.conversation import list_steps
from langgraph_takeover.handoff.trace.events import UNREADABLE, Event

FindRunning = Callable[[], Mapping[str, str]]
"""Finds the programs that ran, each with a spelling by which it did; called only if one is missing."""
_MAX_COMMAND_CHARS = 200
_MAX_LOOK_CHARS = 4_000
"""A longer command line does more than look."""
_LOOKS = frozenset({
    "cd", "pushd", "popd", "pwd", "ls", "tree", "dir", "stat", "file", "wc", "which", "type", "date", "clear", "true",
})  # fmt: skip
_PRINTS = frozenset(("echo", "printf", ":"))
"""They separate the outputs of other commands; alone they may matter."""
_PLACEHOLDER = re.compile(rf"< {PLACEHOLDER}[0-9]+")
_HARMLESS_TARGETS = ("/dev/null", "/dev/stderr", "/dev/stdout")


class ShellStep(NamedTuple):
    """One command that was run, with its observation."""

    command: str
    observation: Event


def list_shell_steps(trace: tuple[Event, ...]) -> tuple[ShellStep, ...]:
    """List the commands that the shell of a run accepted, in order."""
    return tuple(
        ShellStep(command, seen)
        for action, seen in list_steps(trace)
        if seen is not None and action.tool == "shell" and not seen.refused and seen.tool != UNREADABLE
        if (command := action.arguments.get("command", ""))
    )


def is_look(command: str) -> bool:
    """Whether a command line only lists, prints files unchanged, or changes the directory; searches do more."""
    commands = parse_command(command) if len(command) <= _MAX_LOOK_CHARS else ()
    names = {simple.name for simple in commands}
    return bool(names - _PRINTS) and all(map(_is_look, commands))


def _is_look(command: SimpleCommand) -> bool:
    if any(
        ">" in redirect.operator
        and redirect.target not in _HARMLESS_TARGETS
        and not redirect.target.isdigit()
        for redirect in command.redirects
    ):
        return False
    if command.name in _LOOKS or command.name in _PRINTS:
        return True
    program = find_program(command.name)
    return (program.valued_options is not None or program.is_filter) and not may_edit(command)


def describe_result(step: ShellStep, find_running: FindRunning) -> str:
    """Describe how a command ended, and which of its programs could not be started by that name."""
    seen = step.observation
    ended = UNKNOWN if seen.exit_code is None else f"exit code {seen.exit_code}"
    missing = describe_missing_programs(step.command, seen.text, find_running)
    return f"{'timed out' if seen.timed_out else ended}{f' ({missing})' if missing else ''}"


def describe_missing_programs(command: str, output: str, find_running: FindRunning) -> str:
    """Name the programs that could not be started, and how they ran otherwise; empty if all were started."""
    parts = []
    for launch in list_missing_programs(command, output):
        spelled = format_inline_code(shorten_command(launch.spelling))
        other = find_running().get(launch.program)
        ran = f", but {format_inline_code(shorten_command(other))} ran" if other else ""
        ran = ", but it ran in another command" if other == launch.spelling else ran
        parts.append(f"{spelled} was not found under this name{ran}")
    return "; ".join(parts)


def shorten_command(command: str) -> str:
    """Put a command on one line, without the here-documents that it writes."""
    bare, _ = extract_heredocs(neutralize(command))
    bare = _PLACEHOLDER.sub("<<…", bare)
    line = " ⏎ ".join(" ".join(each.split()) for each in bare.splitlines() if each.strip())
    return line if len(line) <= _MAX_COMMAND_CHARS else f"{line[:_MAX_COMMAND_CHARS]}…"

"""Programs that a command line could not start, and other spellings by which the same program runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from langgraph_takeover.handoff.shell.commands import SimpleCommand
from langgraph_takeover.handoff.shell.runners import find_python_target
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.shell.windows import find_program_name

_NOT_FOUND = re.compile(
    r"(?:^|: )(?P<program>[^\s:]+): (?:command )?not found\b"
    r"|^(?:\S*/)?env: [‘'](?P<env>[^’'\n]+)[’']: No such file or directory"
    r"|^\S*(?:python|pypy)[\d.]*: No module named (?P<module>[\w.]+)",
    re.MULTILINE,
)
_HINTS = ("not found", "No such file or directory", "No module named")
_MAX_CHARS = 20_000
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_HAS_NOT_STARTED = re.compile(r"not (?:be )?found|No such file|No module named|syntax error|\bcd: ")
"""Output of a failed command line whose program may not have started."""
_NO_TOOLS = frozenset({
    ".", ":", "[", "alias", "cd", "command", "date", "echo", "eval", "exec", "export", "false", "file", "history", "printf",
    "pwd", "read", "set", "source", "test", "time", "trap", "true", "type", "umask", "unset", "wait", "which",
})  # fmt: skip
"""Builtins of shells, and programs that are always there."""


class ProgramLaunch(NamedTuple):
    """One program that a command line starts."""

    program: str
    """Its name, without a directory and without the version of an interpreter."""
    spelling: str
    """How the line names it: `pylint`, `python -m pylint`, `./bin/pylint`."""


def list_launches(command: str) -> tuple[ProgramLaunch, ...]:
    """List the programs that a command line starts, in order; a Python module counts as a program."""
    if len(command) > _MAX_CHARS:
        return ()
    return tuple(launch for simple in parse_command(command) for launch in _name_programs(simple))


def list_missing_programs(command: str, output: str) -> tuple[ProgramLaunch, ...]:
    """List the programs of a command line that its output reports as missing.

    Only a program that the line names counts: the output may quote the failure of another line.
    """
    if not any(hint in output for hint in _HINTS):
        return ()
    names = {
        name: kind
        for found in _NOT_FOUND.finditer(output)
        for kind, name in found.groupdict().items()
        if name
    }
    return tuple(
        launch
        for launch in dict.fromkeys(list_launches(command))
        if (names.get(launch.spelling) in ("program", "env") or _is_missing_module(launch, names))
    )


def _is_missing_module(launch: ProgramLaunch, names: Mapping[str, str]) -> bool:
    module = launch.spelling.partition(" -m ")[2]
    return bool(module) and names.get(module) == "module"


def find_running_spellings(steps: Iterable[tuple[str, str, int | None]]) -> dict[str, str]:
    """Map each program to a spelling by which it certainly ran; the latest counts.

    `steps` are command lines, each with its output and its exit code.
    """
    found: dict[str, str] = {}
    for command, output, exit_code in steps:
        missing = list_missing_programs(command, output)
        found |= {
            launch.program: launch.spelling
            for simple in _list_started(command, output, exit_code)
            for launch in _name_programs(simple)
            if launch not in missing and launch.program not in _NO_TOOLS
        }
    return found


def _list_started(command: str, output: str, exit_code: int | None) -> list[SimpleCommand]:
    """List the commands of a line that started for certain.

    If the line succeeded, those whose success this implies; if it failed, only its first one after `cd`.
    """
    if len(command) > _MAX_CHARS or exit_code in (None, 126, 127):
        return []
    commands = parse_command(command)
    if any(simple.connector == "||" or simple.name in ("exit", "return") for simple in commands):
        return []
    if exit_code == 0:
        return [simple for simple in commands if simple.success_is_own and simple.stages == 1]
    first = next((simple for simple in commands if simple.name != "cd"), None)
    if first is None or not first.exit_code_is_own or first.stages > 1 or _HAS_NOT_STARTED.search(output):
        return []
    hides_errors = any(">" in each.operator and each.operator != "2>&" for each in first.redirects)
    return [] if hides_errors else [first]


def _name_programs(command: SimpleCommand) -> Iterable[ProgramLaunch]:
    if not command.argv:
        return
    spelling = command.argv[0]
    name = find_program_name(spelling)
    if not _PYTHON.fullmatch(name):
        yield ProgramLaunch(name, spelling)
        return
    yield ProgramLaunch(name.rstrip("0123456789."), spelling)
    target = find_python_target(command.argv[1:])
    if target is not None and target[0] == "-m":
        yield ProgramLaunch(target[1], f"{spelling} -m {target[1]}")

"""File changes of a command line, inferred from its words and its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from langgraph_takeover.handoff.readers.inference import file_commands, git, in_place, patches, programs
from langgraph_takeover.handoff.readers.inference.command_line import CommandLine, ExpandedCommand
from langgraph_takeover.handoff.shell.command_parser import (
    find_executed_part,
    find_place_after,
)
from langgraph_takeover.handoff.shell.commands import SimpleCommand, resolve_path

if TYPE_CHECKING:
    from langgraph_takeover.handoff.readers.inference.files import InferredFiles

_MAX_DEPTH = 3
_HANDLERS: dict[str, Callable[[CommandLine, ExpandedCommand], None]] = {
    **dict.fromkeys(in_place.FORMATTERS, in_place.format_files),
    **dict.fromkeys(("sed", "perl", "ruby", "find"), in_place.edit_in_place),
    **dict.fromkeys(("patch", "apply_patch"), patches.apply_patch),
    **dict.fromkeys(("mv", "cp", "install"), file_commands.run_move),
    **dict.fromkeys(("rm", "unlink"), file_commands.run_remove),
    **dict.fromkeys(programs.SHELLS, programs.run_script),
    "git": git.run_git,
    "mkdir": file_commands.run_mkdir,
    "touch": file_commands.run_touch,
}
_CD_FAILURES = ("cd: ", "cd: no such file or directory: ", "can't cd to ")
_PRINT_PROGRAMS = {"cat", "tee", "echo", "printf"}


def find_directory_after(command: str, cwd: str | None) -> str | None:
    """The directory of a shell after a command line; None if unknown."""
    place = find_place_after(command)
    if not place.is_known or place.path is None:
        return cwd if place.is_known else None
    return place.path if cwd is None else resolve_path(place.path, cwd)


def has_failed_cd(commands: Sequence[SimpleCommand], output: str) -> bool:
    """Whether the output says that a `cd` of the command line failed."""
    if "cd: " not in output and "can't cd" not in output:
        return False
    targets = (each.argv[-1] for each in commands if each.name in ("cd", "pushd"))
    return any(f"{phrase}{target}" in output for target in targets for phrase in _CD_FAILURES)


def apply_command_line(
    files: InferredFiles, command: str, text: str, exit_code: int | None, timed_out: bool, depth: int = 0
) -> set[str]:
    """Apply a command line to the files and return the touched paths."""

    def run_nested(inner: str) -> set[str]:
        return (
            apply_command_line(files, inner, text, exit_code, False, depth + 1)
            if depth < _MAX_DEPTH
            else set()
        )

    executed = find_executed_part(command, text)
    # If Bash stopped at a syntax error, the exit code is that of the parser.
    code = exit_code if executed == command else None
    line = CommandLine(files, executed, text, code, timed_out=timed_out, run_nested=run_nested)
    for position in range(len(line.commands)):
        if line.did_run(position):
            _apply_command(line, line.expand_command(position))
    return line.touched_paths


def _apply_command(line: CommandLine, part: ExpandedCommand) -> None:
    name = part.command.name
    if name in _PRINT_PROGRAMS:
        file_commands.run_printer(line, part)
        return
    if name.startswith(("python", "pypy")):
        programs.run_python(line, part)
    elif name in _HANDLERS:
        _HANDLERS[name](line, part)
    elif "/" in part.command.argv[0] or name.endswith(".sh"):
        programs.run_script(line, part)
    file_commands.write_redirects(line, part)

"""File changes of a command line, inferred from its words, its programs and its output."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from langgraph_takeover.handoff.readers.inference import file_commands, git, in_place, patches, python_scripts
from langgraph_takeover.handoff.readers.inference.command_line import (
    CommandLine,
    ExpandedCommand,
    list_operands,
)
from langgraph_takeover.handoff.readers.inference.content import (
    add_opaque_change,
    fingerprint,
    known_content,
    unknown_content,
)
from langgraph_takeover.handoff.readers.inference.content_edits import replace_text
from langgraph_takeover.handoff.readers.inference.file_commands import find_input_text
from langgraph_takeover.handoff.shell.commands import SimpleCommand, resolve_path
from langgraph_takeover.handoff.shell.runners import find_python_target
from langgraph_takeover.handoff.shell.syntax_reader import (
    find_executed_part,
    find_place_after,
)

if TYPE_CHECKING:
    from langgraph_takeover.handoff.readers.inference.files import InferredFiles

SHELLS = {"bash", "sh", "zsh", "source", "."}
_READS_FILES = re.compile(
    r"\.read\(|\.read_text\(|readlines|fileinput|for \w+ in (?:f|file|fin|src|infile)\b"
    r"|open\((?:(?!open\()[^)])*['\"](?:r[+bt]*|a[+bt]*)['\"]"
)


def run_python(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply a Python program given as text, on standard input, as a module or as a file."""
    target = find_python_target(part.command.argv[1:])
    if target is None:
        argv = list(part.command.argv[2:]) if part.command.argv[1:2] == ("-",) else []
        code, name = find_input_text(line, part), "<stdin>"
    elif target[0] == "-c":
        argv = list(target[2:])
        code, name = target[1], "<string>"
    else:
        is_module = target[0] == "-m"
        script = target[1].replace(".", "/") + ".py" if is_module else target[0]
        path = line.files.resolve_path(script, part.cwd)
        code, name = _find_written_text(line, path), posixpath.basename(path)
        argv = list(target[2 if is_module else 1 :])
    if code is None:
        return
    if line.timed_out and (part.position == len(line.commands) - 1 or not line.text.strip()):
        return  # a killed program is assumed to have written nothing
    _apply_program(line, part, code, argv, name)


def run_script(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply a script that is run by a shell or directly."""
    names = list_operands(part.words) if part.command.name in SHELLS else [part.command.argv[0]]
    path = line.files.resolve_path(names[0], part.cwd) if names else ""
    text = _find_written_text(line, path)
    if text is None:
        return
    if path.endswith(".py") or re.match(r"#!.*python", text):
        _apply_program(line, part, text, part.words, posixpath.basename(path))
    else:
        line.run_nested(text)


def _find_written_text(line: CommandLine, path: str) -> str | None:
    """The text of a file that the agent wrote, if known."""
    return line.files.text(path) if path in line.files.touched_contents else None


def _apply_program(
    line: CommandLine, part: ExpandedCommand, code: str, argv: Sequence[str], name: str
) -> None:
    exit_code = line.exit_code if part.command.exit_code_is_own else None
    effects = python_scripts.analyze_program(code, argv, line.text, exit_code, name)
    program = fingerprint(code, *argv)
    for write in effects.writes:
        path = line.files.resolve_path(write.path, part.cwd)
        is_new = not line.files.exists(path)
        is_made = any(write.path.startswith(f"{directory}/") for directory in effects.directories)
        reads_files = bool(effects.replacements) or (not is_made and _READS_FILES.search(code) is not None)
        is_created = is_new and (path in line.files.touched_contents or not reads_files)
        if (
            is_new
            and (is_created or write.text is not None)
            and path not in line.files.touched_contents
            and "/" in path
        ):
            line.files.make_directory(path)
        if write.text is not None:
            line.write_file(path, known_content(write.text))
            continue
        if is_created:
            line.write_file(path, unknown_content(f"created:{program}:{path}"))
            continue
        content = line.content_or_empty(path)
        for old, new in effects.replacements:
            content = replace_text(content, line.files.known_lines, old, new)
        line.edit_file(path, content if effects.replacements else add_opaque_change(content, program))
    for source, target, keep_source in effects.moves:
        file_commands.move_paths(line, [source, target], part.cwd, keep_source=keep_source)
    file_commands.remove_paths(line, effects.removes, part.cwd)


_MAX_DEPTH = 3
_HANDLERS: dict[str, Callable[[CommandLine, ExpandedCommand], None]] = {
    **dict.fromkeys(in_place.FORMATTERS, in_place.format_files),
    **dict.fromkeys(("sed", "perl", "ruby", "find"), in_place.edit_in_place),
    **dict.fromkeys(("patch", "apply_patch"), patches.apply_patch),
    **dict.fromkeys(("mv", "cp", "install"), file_commands.run_move),
    **dict.fromkeys(("rm", "unlink"), file_commands.run_remove),
    **dict.fromkeys(SHELLS, run_script),
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
        run_python(line, part)
    elif name in _HANDLERS:
        _HANDLERS[name](line, part)
    elif "/" in part.command.argv[0] or name.endswith(".sh"):
        run_script(line, part)
    file_commands.write_redirects(line, part)

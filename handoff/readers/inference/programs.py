"""Runs of Python and shell programs that the agent wrote."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from langgraph_takeover.handoff.readers.inference import file_commands, python_scripts
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
from langgraph_takeover.handoff.shell.runners import find_python_target

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

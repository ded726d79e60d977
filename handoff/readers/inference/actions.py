"""File changes of single actions, and the lines of files that actions show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.readers.inference import shell
from langgraph_takeover.handoff.readers.inference.content import Content, add_opaque_change, known_content
from langgraph_takeover.handoff.readers.inference.content_edits import (
    insert_lines,
    replace_lines,
    replace_text,
)
from langgraph_takeover.handoff.readers.inference.files import InferredFiles
from langgraph_takeover.handoff.readers.tool_names import parse_replacement
from langgraph_takeover.handoff.shell.command_effects import find_effect, may_edit
from langgraph_takeover.handoff.shell.commands import SimpleCommand
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.sandbox.interface import FileChange

if TYPE_CHECKING:
    from langgraph_takeover.handoff.readers.inference.files import InferredFiles

_SHOWING_PROGRAM = re.compile(r"\b(?:cat|sed|head|nl|grep|tail)\b")
_SILENT_PROGRAMS = {"cd", "rm", "mv", "cp", "mkdir", "export", "true", "touch"}
_NUMBERED_LINE = re.compile(r"^[ ]{0,6}(\d{1,6})(?:\t|[:-])(.*)$")
_TABBED_LINE = re.compile(r"^[ ]{0,6}(\d{1,6})\t(.*)$")
_PRINT_COMMAND = re.compile(r"^(\d+)(?:,(\d+|\$))?p$")
_ELISION = re.compile(r"elided_chars|characters left out|\[\.\.\. |<response clipped>|truncated")
_MAX_LINES = 3000


def learn_from_editor(files: InferredFiles, arguments: Mapping[str, str], text: str) -> None:
    """Learn the numbered lines that an editor showed of its file."""
    path = arguments.get("path", "")
    if path:
        _learn_numbered_lines(
            files,
            files.resolve_path(path),
            [m for line in text.split("\n") if (m := _TABBED_LINE.match(line))],
        )


def learn_from_shell(files: InferredFiles, command: str, text: str) -> None:
    """Learn the lines that a command line showed, if exactly one of its pipelines prints."""
    if len(command) > 4000 or not _SHOWING_PROGRAM.search(command) or _ELISION.search(text):
        return
    pipeline, lines = _find_printing_pipeline(parse_command(command)), _split_shown_lines(text)
    names = [word for word in pipeline[0].argv[1:] if not word.startswith("-")] if pipeline else []
    if not names or not lines:
        return
    first = pipeline[0]
    path = files.resolve_path(names[-1], _find_directory(files, first))
    if first.name == "grep" and _has_flag(first, "n"):
        if len(names) == 2:
            _learn_numbered_lines(files, path, _match_numbered_lines(lines))
    elif first.name == "nl" or (first.name == "cat" and _has_flag(first, "n")):
        _learn_numbered_lines(files, path, _match_numbered_lines(lines))
    else:
        _learn_lines(files, path, _find_first_line(pipeline), lines)


def _find_printing_pipeline(commands: Sequence[SimpleCommand]) -> Sequence[SimpleCommand]:
    """The only pipeline that prints to the terminal; empty without exactly one."""
    printing = [command for command in commands if command.stage == 0 and not _is_silent(command)]
    if (
        len(printing) != 1
        or printing[0].is_repeated
        or any(">" in redirect.operator for redirect in printing[0].redirects)
    ):
        return ()
    first = printing[0]
    later = commands[commands.index(first) + 1 :]
    return (first, *(command for command in later if command.stage > 0))[: first.stages]


def _split_shown_lines(text: str) -> list[str]:
    """Split an output into lines; empty if it is too long or reports a missing file."""
    lines = text.removesuffix("\n").split("\n")
    is_unusable = (
        not text or len(lines) > _MAX_LINES or re.search(r": No such file|: command not found", lines[0])
    )
    return [] if is_unusable else lines


def _find_directory(files: InferredFiles, command: SimpleCommand) -> str:
    cwd = files.cwd or ""
    if command.cwd is None:
        return cwd
    return f"{cwd}/{command.cwd}" if cwd else command.cwd


def _match_numbered_lines(lines: Sequence[str]) -> list[re.Match[str]]:
    return [match for line in lines if (match := _NUMBERED_LINE.match(line))]


def _learn_lines(files: InferredFiles, path: str, begin: int | None, lines: Sequence[str]) -> None:
    """Learn lines of a file from number `begin`; 0 means the complete file."""
    content = files.content(path)
    if begin is None or content is None:
        return
    files.mark_base_file(path)
    if begin == 0:
        files.known_lines.learn_file(content, lines)
    else:
        files.known_lines.learn(content, begin, lines)


def _learn_numbered_lines(files: InferredFiles, path: str, matches: Sequence[re.Match[str]]) -> None:
    content = files.content(path)
    if content is not None and matches:
        files.mark_base_file(path)
        for match in matches[:_MAX_LINES]:
            files.known_lines.learn(content, int(match[1]), [match[2]])


def _find_first_line(pipeline: Sequence[SimpleCommand]) -> int | None:
    """The number of the first line that is shown; 0 for a complete file, None if unknown."""
    first = pipeline[0]
    options = [w for w in first.argv[1:] if w.startswith("-")]
    if first.name == "cat" and not options:
        if len(pipeline) == 1:
            return 0 if len(first.argv) == 2 else None
        second = pipeline[1]
        if len(pipeline) == 2 and second.name == "sed":
            return _find_first_printed_line(second)
        return 1 if len(pipeline) == 2 and second.name == "head" else None
    if len(pipeline) > 1:
        return None
    if first.name == "sed":
        return _find_first_printed_line(first)
    return 1 if first.name == "head" and not _has_flag(first, "c") else None


def _find_first_printed_line(command: SimpleCommand) -> int | None:
    if not _has_flag(command, "n"):
        return None
    programs = [w for w in command.argv[1:] if not w.startswith("-")]
    match = _PRINT_COMMAND.match(programs[0]) if programs else None
    return int(match[1]) if match else None


def _has_flag(command: SimpleCommand, letter: str) -> bool:
    return any(re.fullmatch(rf"-\w*{letter}\w*", w) for w in command.argv[1:])


def _is_silent(command: SimpleCommand) -> bool:
    if command.name == "sed":
        return may_edit(command)
    return command.name in _SILENT_PROGRAMS or (command.name == "cat" and command.stdin is not None)


_MAX_EDITS = 100
_EDIT_COMMANDS = {"str_replace", "insert", "lines", "edit"}


def apply_editor_call(files: InferredFiles, arguments: Mapping[str, str]) -> set[str]:
    """Apply a successful editor call to the files and return the touched paths."""
    command, path = arguments.get("command", ""), files.resolve_path(arguments.get("path", ""))
    if command == "undo":
        earlier = files.replaced_contents.get(path)
        if not earlier:
            return set()
        files.write(path, earlier.pop())
        return {path}
    if command in _EDIT_COMMANDS:
        files.mark_base_file(path)
    elif command == "create" and "/" in path and not files.was_shown(path.split("/")[0]):
        files.make_directory(path)
    content = _edit_content(files, command, files.content(path) or known_content(""), arguments)
    if content is None:
        return set()
    files.replaced_contents.setdefault(path, []).append(files.content(path) if files.exists(path) else None)
    files.write(path, content)
    return {path}


def _edit_content(
    files: InferredFiles, command: str, content: Content, arguments: Mapping[str, str]
) -> Content | None:
    """The content after the call; None if the call changes nothing."""
    new = arguments.get("new", "")
    lines = new.removesuffix("\n").split("\n") if new else []
    if command in ("create", "write"):
        return known_content(arguments.get("content", ""))
    if command == "str_replace":
        return replace_text(content, files.known_lines, arguments.get("old", ""), new)
    if command == "insert":
        line = _parse_number(arguments.get("line", ""))
        return (
            _add_unknown_edit(content, arguments)
            if line is None
            else insert_lines(content, line, lines or [""])
        )
    if command == "lines":
        first, last = _parse_number(arguments.get("start", "")), _parse_number(arguments.get("end", ""))
        if first is None or last is None:
            return _add_unknown_edit(content, arguments)
        return replace_lines(content, max(first, 1), last, lines)
    return _apply_edits(files, content, arguments) if command == "edit" else None


def _apply_edits(files: InferredFiles, content: Content, arguments: Mapping[str, str]) -> Content:
    """Apply the replacements of a call in order; edits of another form have an unknown effect."""
    try:
        edits = [parse_replacement(edit) for edit in parse_json(arguments.get("edits", "[]"))]
    except (ValueError, TypeError):
        edits = []
    if not edits or len(edits) > _MAX_EDITS or None in edits:
        return _add_unknown_edit(content, arguments)
    for old, new in filter(None, edits):
        content = replace_text(content, files.known_lines, old, new)
    return content


def _add_unknown_edit(content: Content, arguments: Mapping[str, str]) -> Content:
    return add_opaque_change(content, repr(sorted(arguments.items())))


def _parse_number(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 10 else None


def infer_changes(
    files: InferredFiles,
    tool: str,
    arguments: Mapping[str, str],
    output: str,
    exit_code: int | None,
    timed_out: bool,
) -> tuple[FileChange, ...]:
    """Infer the changes of an executed action; updates the files and their known lines."""
    before = dict(files.touched_contents)
    touched: set[str] = set()
    if tool == "editor":
        touched = apply_editor_call(files, arguments)
        learn_from_editor(files, arguments, output)
    elif tool == "shell":
        command = arguments.get("command", "")
        if find_effect(command) == "anything":
            touched = shell.apply_command_line(files, command, output, exit_code, timed_out)
        learn_from_shell(files, command, output)
        is_moving = "cd" in command or "pushd" in command or "popd" in command
        if is_moving and not shell.has_failed_cd(parse_command(command), output):
            files.set_directory(shell.find_directory_after(command, files.cwd))
    return files.list_changes(before, touched)

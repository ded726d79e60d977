"""File changes of single actions, including the calls of agents' editors."""

from __future__ import annotations

from collections.abc import Mapping

from langgraph_takeover.handoff.readers.inference import shell, shown_lines
from langgraph_takeover.handoff.readers.inference.content import Content, add_opaque_change, known_content
from langgraph_takeover.handoff.readers.inference.content_edits import (
    insert_lines,
    replace_lines,
    replace_text,
)
from langgraph_takeover.handoff.readers.inference.files import InferredFiles
from langgraph_takeover.handoff.readers.tool_names import parse_replacement
from langgraph_takeover.handoff.shell.command_effects import find_effect
from langgraph_takeover.handoff.shell.command_parser import parse_command
from langgraph_takeover.sandbox.interface import FileChange
from langgraph_takeover.sandbox.storage.untrusted_json import parse_json

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
        shown_lines.learn_from_editor(files, arguments, output)
    elif tool == "shell":
        command = arguments.get("command", "")
        if find_effect(command) == "anything":
            touched = shell.apply_command_line(files, command, output, exit_code, timed_out)
        shown_lines.learn_from_shell(files, command, output)
        is_moving = "cd" in command or "pushd" in command or "popd" in command
        if is_moving and not shell.has_failed_cd(parse_command(command), output):
            files.set_directory(shell.find_directory_after(command, files.cwd))
    return files.list_changes(before, touched)

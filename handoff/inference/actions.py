"""Which files an agent's action changed, inferred from the action and from what it came to."""

from __future__ import annotations

from collections.abc import Mapping

from handoff.command_effects import find_effect
from handoff.inference import editing, shell, views
from handoff.inference.files import InferredFiles
from sandbox.machine import FileChange


def infer_changes(
    files: InferredFiles,
    tool: str,
    arguments: Mapping[str, str],
    output: str,
    exit_code: int | None,
    timed_out: bool,
) -> tuple[FileChange, ...]:
    """The changes of one action that was carried out; the files follow it, and what it showed is known from then on."""
    before = dict(files.touched_contents)
    touched: set[str] = set()
    if tool == "editor":
        touched = editing.apply_editor_call(files, arguments)
        views.learn_from_editor(files, arguments, output)
    elif tool == "shell":
        command = arguments.get("command", "")
        if find_effect(command) == "anything":
            touched = shell.apply_command_line(files, command, output, exit_code, timed_out)
        views.learn_from_shell(files, command, output)
        if "cd" in command or "pushd" in command:
            files.set_directory(shell.find_directory_after(command, files.cwd))
    return files.list_changes(before, touched)

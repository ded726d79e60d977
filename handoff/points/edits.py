"""Source edits among the file changes of an action: new content that the agent wrote itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from langgraph_takeover.handoff.points.detector_state import CodeFile, DetectorState
from langgraph_takeover.handoff.points.validation import ValidationMatch
from langgraph_takeover.handoff.shell import attribution
from langgraph_takeover.handoff.shell.command_effects import is_restore, may_act, may_edit
from langgraph_takeover.handoff.shell.commands import SimpleCommand
from langgraph_takeover.handoff.trace import file_kinds
from langgraph_takeover.sandbox.interface import FileChange


class ChangeSummary(NamedTuple):
    """File changes of one observation, whatever caused them."""

    files: dict[str, CodeFile]
    """All code files of the run after the changes."""
    written_scripts: list[str]
    """All scripts that the agent has created."""
    source_files: list[str]
    """Changed source files."""
    edited_files: list[str]
    """Changed source files with content that they never had before."""
    rewritten_files: list[str]
    """Changed code files of the base commit, whether source or test."""


def summarize_changes(state: DetectorState, changes: Iterable[FileChange]) -> ChangeSummary:
    """Apply the changes of one observation to the files of a run."""
    summary = ChangeSummary(dict(state.files), list(state.written_scripts), [], [], [])
    for change in changes:
        path = change.path
        file = summary.files.get(path) or CodeFile(base=change.before, known=(), current=change.before)
        is_new = file.base is None and change.before is None and change.after is not None
        if is_new and file_kinds.is_script(path) and path not in summary.written_scripts:
            summary.written_scripts.append(path)
        if not file_kinds.is_code(path) or file_kinds.is_generated(path):
            continue
        if file_kinds.is_scratch(path, file.base is not None, state.base_directories):
            # Tracked nevertheless: its next change must not look like a change of a base file.
            summary.files[path] = CodeFile(base=file.base, known=(), current=change.after)
            continue
        file = file.with_content(change.before)
        summary.files[path] = file.with_content(change.after)
        if change.after == change.before:
            continue
        if file.base is not None:
            summary.rewritten_files.append(path)
        if is_source_change(state, path, file.base):
            summary.source_files.append(path)
            # A deletion changes the source, but is not an edit because it adds no content.
            if change.after is not None and change.after not in file.known:
                summary.edited_files.append(path)
    return summary


def list_authored_files(
    summary: ChangeSummary, command: str, commands: Sequence[SimpleCommand]
) -> tuple[str, ...]:
    """Edited files without those that the command only restored or generated."""
    if summary.edited_files and attribution.is_restore_only(commands):
        return ()
    if summary.edited_files and attribution.is_build_or_install(commands):
        return tuple(
            path
            for path in summary.edited_files
            if summary.files[path].base is not None or path.rpartition("/")[2] in command
        )
    return tuple(summary.edited_files)


def is_source_change(state: DetectorState, path: str, base: str | None) -> bool:
    """Whether the file is source; `base` is its content in the base commit."""
    return file_kinds.is_source(path, base is not None, state.base_directories)


def attribute_changes(
    matches: tuple[ValidationMatch, ...],
    commands: Sequence[SimpleCommand],
    changed_paths: Collection[str],
    has_new_content: bool,
) -> tuple[tuple[ValidationMatch, ...], bool, set[str]]:
    """Separate the validations of a line from its edits.

    Returns the validations without scripts that edited files, whether an edit precedes the last validation, and the
    scripts that edited files.
    """
    if not changed_paths or not matches:
        return matches, True, set()
    editor_positions = [
        number
        for number, command in enumerate(commands)
        if may_edit(command, changed_paths) and not (has_new_content and is_restore(command))
    ]
    script_runs = [match for match in matches if match.script is not None]
    editing_scripts: set[str] = set()
    is_explained = any(
        number < script_runs[0].position or attribution.may_mention(commands[number], changed_paths)
        for number in (editor_positions if script_runs else ())
    )
    if script_runs and not is_explained:
        # No other command can have made the change, so the first script is an edit.
        editing_scripts = {script_runs[0].script or ""}
        editor_positions.append(script_runs[0].position)
        matches = tuple(match for match in matches if match.script not in editing_scripts)
    if not matches:
        return matches, True, editing_scripts
    if editor_positions:
        return matches, min(editor_positions) < matches[-1].position, editing_scripts
    return matches, any(may_act(c) for c in commands[: matches[0].position]), editing_scripts

"""Which files an action's changes are edits of: source that got a new content from the agent's own hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from langgraph_takeover.handoff.points.detector_state import CodeFile, DetectorState
from langgraph_takeover.handoff.shell import attribution
from langgraph_takeover.handoff.shell.commands import SimpleCommand
from langgraph_takeover.handoff.trace import file_kinds
from langgraph_takeover.sandbox.interface import FileChange


class ChangeSummary(NamedTuple):
    """What one observation's changes did to the files, whoever made them."""

    files: dict[str, CodeFile]
    written_scripts: list[str]
    source_files: list[str]
    """The source files that it changed."""
    edited_files: list[str]
    """Those of them that got a content which they never had before."""
    rewritten_files: list[str]
    """The files of the base that it changed, source or not."""


def summarize_changes(state: DetectorState, changes: Iterable[FileChange]) -> ChangeSummary:
    """What the changes of one observation do to what a run has seen so far."""
    seen = ChangeSummary(dict(state.files), list(state.written_scripts), [], [], [])
    for change in changes:
        path = change.path
        file = seen.files.get(path) or CodeFile(base=change.before, seen=(), current=change.before)
        is_new = file.base is None and change.before is None and change.after is not None
        if is_new and file_kinds.is_script(path) and path not in seen.written_scripts:
            seen.written_scripts.append(path)
        if not file_kinds.is_code(path) or file_kinds.is_generated(path):
            continue
        if file_kinds.is_scratch(path, file.base is not None, state.base_directories):
            # Remembered all the same: at its next change it must not pass for a file of the base.
            seen.files[path] = CodeFile(base=file.base, seen=(), current=change.after)
            continue
        file = file.with_content(change.before)
        seen.files[path] = file.with_content(change.after)
        if change.after == change.before:
            continue
        if file.base is not None:
            seen.rewritten_files.append(path)
        if is_source_change(state, path, file.base):
            seen.source_files.append(path)
            # Deleting gives a file no content, so it changes the source but is not an edit.
            if change.after is not None and change.after not in file.seen:
                seen.edited_files.append(path)
    return seen


def list_authored_files(
    summary: ChangeSummary, command: str, commands: Sequence[SimpleCommand]
) -> tuple[str, ...]:
    """The edited files that the agent wrote, not those that a command restored or generated."""
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
    """Whether a change of this file, which the base has or not, is one of the task's source."""
    return file_kinds.is_source(path, base is not None, state.base_directories)

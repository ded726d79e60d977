"""Source edits among the file changes of an action: new content that the agent wrote itself."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from langgraph_takeover.handoff.points.detector_state import CodeFile, DetectorState
from langgraph_takeover.handoff.points.validation import ValidationMatch
from langgraph_takeover.handoff.shell.command_effects import (
    is_build_or_install,
    is_restore,
    is_restore_only,
    may_act,
    may_edit,
    may_mention,
)
from langgraph_takeover.handoff.shell.syntax import SimpleCommand
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.text.word_search import contains_any
from langgraph_takeover.handoff.trace import file_kinds
from langgraph_takeover.sandbox.interface import FileChange

_EMPTY = {hashlib.sha256(text).hexdigest() for text in (b"", b"\n")}
_MARK = r"backup|bak|bkp|orig|original|old|saved?|copy|before|prev|previous|unpatched"
_MAX_NAME_CHARS = 255
"""Longer names of files do not exist."""
_BACKUP_NAME = re.compile(
    rf"(?P<stem>.+?)(?:[-_. ](?:{_MARK})\d*(?:[-_](?:\d+|v\d+|final))*)+(?P<rest>\.\w+)?|(?:{_MARK})[-_.](?P<after>.+)",
    re.IGNORECASE,
)
"""`core_backup.py`, `core.orig.py` and `old_core.py` for `core.py`."""
_WRITING_WORDS = (
    ">", "open(", ".write(", "write_", "writeFile", "put_contents", "fileinput", "shutil", "os.re", "sed ", "perl ", "patch",
    "git ", "tee ", "mv ", "cp ",
)  # fmt: skip


_WRITING_CALL = re.compile(
    r"(?:\bwriteFile(?:Sync)?|\b(?:File|IO)\.write|\bfile_put_contents)\(\s{0,5}"
    r"(?:['\"](?P<path>[^'\"\n]{1,200})['\"]|(?P<name>\$?\w{1,40}))"
)
"""A call of JavaScript, Ruby or PHP that writes a file."""


class ChangeSummary(NamedTuple):
    """File changes of one observation, whatever caused them."""

    files: dict[str, CodeFile]
    """All code files of the run after the changes."""
    written_scripts: list[str]
    """All scripts that the agent has created, without auxiliary files."""
    written_inputs: list[str]
    """All other files that the agent has created itself."""
    auxiliary_files: list[str]
    """All backups of source files and all scripts written to edit source files."""
    source_files: list[str]
    """Changed source files."""
    edited_files: list[str]
    """Changed source files with content that they never had before."""
    rewritten_files: list[str]
    """Changed code files of the base commit, whether source or test."""


def summarize_changes(
    state: DetectorState, changes: Iterable[FileChange], command: str = "", text: str = ""
) -> ChangeSummary:
    """Apply the changes of one observation to the files of a run.

    `command` is the command line of the action, `text` what an editor wrote.
    """
    changes = tuple(changes)
    summary = ChangeSummary(
        dict(state.files),
        list(state.written_scripts),
        list(state.written_inputs),
        list(state.auxiliary_files),
        *([], [], []),
    )
    for change in changes:
        path = change.path
        file = summary.files.get(path) or CodeFile(base=change.before, known=(), current=change.before)
        # A file is written once it has text; an empty one is nothing.
        is_empty = change.after in _EMPTY
        if file.base is None and change.after is not None and not is_empty:
            is_new = change.before is None or change.before in _EMPTY
            is_auxiliary = _is_auxiliary(state, path, changes, command, text)
            _classify_new_file(summary, path, is_auxiliary=is_auxiliary, is_new=is_new)
            # The output of a program is not an input that the agent wrote.
            is_own = not command or posixpath.basename(path) in command
            if is_new and is_own and not is_auxiliary and not file_kinds.is_script(path):
                summary.written_inputs[:] = dict.fromkeys((*summary.written_inputs, path))
        if not file_kinds.is_code(path) or file_kinds.is_generated(path):
            continue
        is_scratch = file_kinds.is_scratch(path, file.base is not None, state.base_directories)
        if is_scratch or path in summary.auxiliary_files:
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
            is_known = change.after in file.known or (is_empty and file.base is None)
            if change.after is not None and not is_known:
                summary.edited_files.append(path)
    return summary


def _classify_new_file(summary: ChangeSummary, path: str, *, is_auxiliary: bool, is_new: bool) -> None:
    """Add a file that the base commit does not have to the scripts or to the auxiliary files."""
    if is_auxiliary:
        summary.auxiliary_files[:] = dict.fromkeys((*summary.auxiliary_files, path))
        summary.written_scripts[:] = (script for script in summary.written_scripts if script != path)
    elif is_new:
        summary.auxiliary_files[:] = (file for file in summary.auxiliary_files if file != path)
        if file_kinds.is_script(path) and path not in summary.written_scripts:
            summary.written_scripts.append(path)


def _is_auxiliary(
    state: DetectorState, path: str, changes: Sequence[FileChange], command: str, text: str
) -> bool:
    """Whether a new file is a backup of a source file, or a script that will edit source files."""
    for original in _list_originals(path):
        name = posixpath.basename(original)
        is_named = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", command) is not None
        if is_named or original in state.files or any(change.path == original for change in changes):
            return True
    if not file_kinds.is_script(path):
        return False
    texts = [text] if text else _list_written_texts(path, command)
    return any(_edits_source(state, path, each) for each in texts)


def _list_originals(path: str) -> Iterator[str]:
    """The paths of which a file is a backup, by its name or that of a directory."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        found = _BACKUP_NAME.fullmatch(part) if len(part) <= _MAX_NAME_CHARS else None
        if found:
            original = found["after"] or f"{found['stem']}{found['rest'] or ''}"
            yield "/".join((*parts[:number], original, *parts[number + 1 :]))


def _list_written_texts(path: str, command: str) -> list[str]:
    """The texts that a command line writes into a file, from its here-documents and arguments."""
    name = posixpath.basename(path)
    if name not in command:
        return []
    texts = []
    commands = parse_command(command)
    for number, simple in enumerate(commands):
        targets = [r.target for r in simple.redirects if ">" in r.operator]
        targets += simple.argv[1:] if simple.name == "tee" else ()
        if name in map(posixpath.basename, targets):
            source = commands[number - 1] if simple.name == "tee" and simple.stage else simple
            texts.append(source.stdin if source.stdin is not None else " ".join(source.argv[1:]))
    return texts


def _edits_source(state: DetectorState, path: str, text: str) -> bool:
    """Whether the text of a script writes a source file that exists."""
    if not contains_any(text, _WRITING_WORDS):
        return False
    if path.endswith(".py"):
        # Imported late, because the import of the package loads every reader.
        from langgraph_takeover.handoff.recordings.python_scripts import list_written_paths

        paths = list_written_paths(text)
    elif path.endswith((".sh", ".bash", ".zsh")):
        parts = parse_command(text)
        is_read = not state.base_directories
        paths = {word: is_read for part in parts if may_edit(part) for word in part.argv[1:]}
        paths |= {r.target: False for part in parts for r in part.redirects if ">" in r.operator}
    elif path.endswith((".js", ".mjs", ".cjs", ".ts", ".rb", ".php")):
        calls = list(_WRITING_CALL.finditer(text))[:50]
        paths = {call["path"]: True for call in calls if call["path"]}
        for name in {call["name"] for call in calls if call["name"]}:
            value = re.search(rf"{re.escape(name)}\s{{0,5}}=\s{{0,5}}['\"]([^'\"\n]{{1,200}})['\"]", text)
            paths |= {value[1]: True} if value else {}
    else:
        return False
    prefix = state.workspace.rstrip("/") + "/" if state.workspace else ""
    return any(
        _is_existing_source(state, posixpath.normpath(name.removeprefix(prefix)), is_read)
        for name, is_read in paths.items()
        if name
    )


def _is_existing_source(state: DetectorState, path: str, is_read: bool) -> bool:
    """Whether a path is source before a script writes it; a script that also reads the path says that it exists."""
    file = state.files.get(path)
    if file is not None:
        return file.current is not None and is_source_change(state, path, file.base)
    is_in_base = is_read or path.partition("/")[0] in state.base_directories
    return is_in_base and "/" in path and file_kinds.is_source(path, True, state.base_directories)


def list_authored_files(
    summary: ChangeSummary, command: str, commands: Sequence[SimpleCommand]
) -> tuple[str, ...]:
    """Edited files without those that the command only restored or generated."""
    if summary.edited_files and is_restore_only(commands):
        return ()
    if summary.edited_files and is_build_or_install(commands):
        return tuple(
            path
            for path in summary.edited_files
            if summary.files[path].base is not None or path.rpartition("/")[2] in command
        )
    return tuple(summary.edited_files)


def is_source_change(state: DetectorState, path: str, base: str | None) -> bool:
    """Whether the file is source; `base` is its content in the base commit."""
    return path not in state.auxiliary_files and file_kinds.is_source(
        path, base is not None, state.base_directories
    )


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
        number < script_runs[0].position or may_mention(commands[number], changed_paths)
        for number in (editor_positions if script_runs else ())
    )
    if script_runs and not is_explained:
        # No other command can have made the change, so the first script is an edit.
        editing_scripts = {script_runs[0].script or ""}
        editor_positions.append(script_runs[0].position)
    names = {posixpath.basename(path) for path in changed_paths}
    for run in script_runs:
        # A filter: its line writes the output over the file that it reads.
        if any(r.operator == "<" and posixpath.basename(r.target) in names for r in run.command.redirects):
            editing_scripts.add(run.script or "")
    matches = tuple(match for match in matches if match.script not in editing_scripts)
    if not matches:
        return matches, True, editing_scripts
    if editor_positions:
        return matches, min(editor_positions) < matches[-1].position, editing_scripts
    return matches, any(may_act(c) for c in commands[: matches[0].position]), editing_scripts

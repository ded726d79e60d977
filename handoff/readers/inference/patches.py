"""Patches of `patch`, `git apply` and agents' `apply_patch`."""

from __future__ import annotations

import posixpath
import re
from itertools import groupby
from typing import NamedTuple

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as UnifiedHunk
from unidiff.patch import PatchedFile, PatchSet

from langgraph_takeover.handoff.readers.inference.command_line import (
    CommandLine,
    ExpandedCommand,
    list_operands,
)
from langgraph_takeover.handoff.readers.inference.content import add_opaque_change, known_content
from langgraph_takeover.handoff.readers.inference.content_edits import (
    append_lines,
    replace_lines,
    replace_text,
)
from langgraph_takeover.handoff.readers.inference.file_commands import find_input_text
from langgraph_takeover.handoff.trace import file_kinds

_FILE_HEADER = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)\n?", re.M)
_MOVE_TARGET = re.compile(r"^\*\*\* Move to: (.+)$", re.M)
_PATCHED_FILE = re.compile(r"^patching file '?([^'\n]+?)'?(?: \(.*)?$", re.M)
_REJECTED_HUNKS = re.compile(r"^(\d+) out of (\d+) hunks? (?:FAILED|ignored)", re.M)
_BINARY_FILE = re.compile(r"^Binary file.*\n", re.M)
DRY_RUN_OPTIONS = {"--dry-run", "--check", "--stat", "--numstat", "--summary"}


class Hunk(NamedTuple):
    """Lines and their replacement; `line` is the number of the first line, None if the format has no numbers."""

    line: int | None
    old: tuple[str, ...]
    new: tuple[str, ...]


class FilePatch(NamedTuple):
    """All hunks of one file."""

    path: str
    hunks: tuple[Hunk, ...]
    is_new: bool = False
    is_deleted: bool = False
    new_path: str = ""
    """Path after a move; empty if the file stays."""


def parse_patch(text: str, *, strip: int | None = None, reverse: bool = False) -> tuple[FilePatch, ...]:
    """Parse a patch; empty if malformed. `strip` is the number of leading path parts, None the prefix of Git."""
    if "*** Begin Patch" in text:
        return _parse_block_patch(text)
    try:
        # Binary files are never source, and unidiff's pattern for them is slow on hostile text.
        files = PatchSet.from_string(_BINARY_FILE.sub("", text))
    except (UnidiffParseError, ValueError):
        return ()
    return tuple(_build_file_patch(file, strip, reverse) for file in files)


def _build_file_patch(file: PatchedFile, strip: int | None, reverse: bool) -> FilePatch:
    name = file.source_file if file.is_removed_file else file.target_file
    prefix = r"[ab]/" if strip is None else rf"(?:[^/]*/){{0,{strip}}}"
    path = re.sub(f"^{prefix}", "", name)
    ends = file.is_added_file, file.is_removed_file
    creates, deletes = reversed(ends) if reverse else ends
    return FilePatch(path, tuple(h for hunk in file for h in _split_hunk(hunk, reverse)), creates, deletes)


def _split_hunk(hunk: UnifiedHunk, reverse: bool) -> list[Hunk]:
    """Split a hunk into its changed parts, without context lines."""
    start, length = hunk.source_start, hunk.source_length
    if reverse:
        start, length = hunk.target_start, hunk.target_length
    number = start if length else start + 1
    hunks: list[Hunk] = []
    for is_context, group in groupby(hunk, key=lambda line: line.is_context):
        lines = list(group)
        if is_context:
            number += len(lines)
            continue
        old = tuple(line.value.removesuffix("\n") for line in lines if line.is_removed)
        new = tuple(line.value.removesuffix("\n") for line in lines if line.is_added)
        if reverse:
            old, new = new, old
        hunks.append(Hunk(number, old, new))
        number += len(old)
    return hunks


def _parse_block_patch(text: str) -> tuple[FilePatch, ...]:
    """Parse the format `*** Begin Patch`, which locates hunks by their text."""
    patches: list[FilePatch] = []
    _, *sections = _FILE_HEADER.split(text.partition("*** End Patch")[0])
    for verb, path, body in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        hunks: list[Hunk] = []
        for section in re.split(r"^@@.*\n?", body, flags=re.M):
            lines = [line for line in section.splitlines() if not line.startswith("***")]
            old = tuple(line[1:] for line in lines if not line.startswith("+"))
            new = tuple(line[1:] for line in lines if not line.startswith("-"))
            if old != new:
                hunks.append(Hunk(None, old, new))
        move = _MOVE_TARGET.search(body)
        target = move[1].strip() if move and verb == "Update" else ""
        patches.append(FilePatch(path.strip(), tuple(hunks), verb == "Add", verb == "Delete", target))
    return tuple(patches)


def apply_patch(line: CommandLine, part: ExpandedCommand, *, strip: int | None = None) -> None:
    """Apply `patch`, `git apply` or `apply_patch` to the files.

    `strip` is the number of leading path parts to remove, unless an option `-pN` overrides it.
    """
    if DRY_RUN_OPTIONS & set(part.words):
        return
    strip = next((int(m[1]) for w in part.words if (m := re.fullmatch(r"-p(\d)", w))), strip)
    confirmed = _PATCHED_FILE.findall(line.text)
    operand = next((w for w in list_operands(part.words) if file_kinds.is_code(w)), None)
    changes = parse_patch(_find_patch_text(line, part) or "", strip=strip, reverse=is_reversed(part))
    for change in changes:
        name = operand or change.path
        is_confirmed = posixpath.basename(name) in map(posixpath.basename, confirmed) or not confirmed
        if name and is_confirmed and not _is_rejected(line, name):
            path = line.files.resolve_path(name, part.cwd)
            _apply_file_patch(line, path, change)
            if change.new_path:
                line.write_file(
                    line.files.resolve_path(change.new_path, part.cwd), line.content_or_empty(path)
                )
                line.write_file(path, None)
    for name in confirmed if not changes else ():
        path = line.files.resolve_path(name, part.cwd)
        line.edit_file(path, add_opaque_change(line.content_or_empty(path), line.command))


def is_reversed(part: ExpandedCommand) -> bool:
    return "-R" in part.words or "--reverse" in part.words


def _find_patch_text(line: CommandLine, part: ExpandedCommand) -> str | None:
    if part.command.name == "apply_patch" and part.words:
        return part.words[0]
    text = find_input_text(line, part)
    names = [word for word in list_operands(part.words) if not file_kinds.is_code(word)]
    texts = (line.files.text(line.files.resolve_path(name, part.cwd)) for name in names)
    return text or next(filter(None, texts), None)


def _apply_file_patch(line: CommandLine, path: str, change: FilePatch) -> None:
    if change.is_deleted:
        line.write_file(path, None)
        return
    if change.is_new:
        line.write_file(path, known_content("".join(f"{new}\n" for hunk in change.hunks for new in hunk.new)))
        return
    content = line.content_or_empty(path)
    for hunk in sorted(change.hunks, key=lambda h: -(h.line or 0)):
        if hunk.line is not None:
            content = replace_lines(content, hunk.line, hunk.line + len(hunk.old) - 1, hunk.new)
        elif hunk.old:
            content = replace_text(content, line.files.known_lines, "\n".join(hunk.old), "\n".join(hunk.new))
        else:
            content = append_lines(content, hunk.new)
    line.edit_file(path, content)


def _is_rejected(line: CommandLine, name: str) -> bool:
    report = line.text.partition(posixpath.basename(name))[2].partition("\npatching file ")[0]
    rejected = _REJECTED_HUNKS.search(report)
    return rejected is not None and rejected[1] == rejected[2]

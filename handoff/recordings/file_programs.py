"""Programs that change files by name: copies and moves, patches, and Git's commands."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as UnifiedHunk
from unidiff.patch import PatchedFile, PatchSet

from langgraph_takeover.handoff.recordings.command_lines import CommandLine, ExpandedCommand, list_operands
from langgraph_takeover.handoff.recordings.inferred_content import (
    Content,
    add_opaque_change,
    append_lines,
    full_text,
    known_content,
    replace_lines,
    replace_text,
    unknown_content,
)
from langgraph_takeover.handoff.shell.syntax import resolve_path
from langgraph_takeover.handoff.trace import file_kinds

if TYPE_CHECKING:
    from langgraph_takeover.handoff.recordings.inferred_files import InferredFiles


def run_move(line: CommandLine, part: ExpandedCommand) -> None:
    move_paths(line, part.words, part.cwd, keep_source=part.command.name != "mv")


def move_paths(line: CommandLine, words: Sequence[str], cwd: str, *, keep_source: bool) -> None:
    """Move or, with `keep_source`, copy files and directories."""
    names = list_operands(words)
    if len(names) < 2:
        return
    *sources, target = names
    target_path = line.files.resolve_path(target, cwd)
    is_directory = target.endswith("/") or target in (".", "..") or len(sources) > 1
    if (
        not is_directory
        and "." not in posixpath.basename(target_path)
        and "." in posixpath.basename(sources[0])
    ):
        is_directory = target_path not in line.files.touched_contents
    for source in sources:
        path = line.files.resolve_path(source, cwd)
        destination = posixpath.join(target_path, posixpath.basename(path)) if is_directory else target_path
        for inner in [p for p in line.files.list_paths_under(path) if p != path]:
            _move_path(line, inner, destination + inner[len(path) :], keep_source)
        if "." not in posixpath.basename(path) and path not in line.files.touched_contents:
            line.files.make_directory(destination)
        else:
            _move_path(line, path, destination, keep_source)


def _move_path(line: CommandLine, path: str, target: str, keep_source: bool) -> None:
    content = line.files.content(path)
    if not keep_source:
        line.write_file(path, None)
    line.write_file(target, content)


def run_remove(line: CommandLine, part: ExpandedCommand) -> None:
    remove_paths(line, part.words, part.cwd)


def remove_paths(line: CommandLine, words: Sequence[str], cwd: str) -> None:
    for word in list_operands(words):
        path = line.files.resolve_path(word, cwd)
        for touched in line.files.list_paths_under(path):
            line.write_file(touched, None)
        if file_kinds.is_code(path) and "*" not in path and path not in line.files.touched_contents:
            line.write_file(path, None)


def run_mkdir(line: CommandLine, part: ExpandedCommand) -> None:
    is_new = line.exit_code == 0 and not any(re.match(r"-\w*p|--parents", w) for w in part.words)
    for word in list_operands(part.words):
        path = line.files.resolve_path(word, part.cwd)
        line.files.make_directory(path, new=is_new and "/" not in path)


def run_touch(line: CommandLine, part: ExpandedCommand) -> None:
    for word in list_operands(part.words):
        path = line.files.resolve_path(word, part.cwd)
        if not line.files.exists(path):
            line.write_file(path, known_content(""))


def run_printer(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply `cat`, `echo`, `printf` or `tee`, whose output may be known."""
    content = _find_output(line, part)
    if part.command.name == "tee":
        append = "-a" in part.words or "--append" in part.words
        for name in list_operands(part.words):
            line.write_output(line.files.resolve_path(name, part.cwd), content, append=append)
    write_redirects(line, part, content)


def write_redirects(line: CommandLine, part: ExpandedCommand, content: Content | None = None) -> None:
    """Write the output of a command into the files of its redirections."""
    for redirect in part.command.redirects:
        operator, target = redirect.operator, redirect.target
        is_file_output = ">" in operator and "&" not in operator.lstrip("&") and not operator.startswith("2")
        if not is_file_output or not target or target.isdigit() or target.startswith("/dev/"):
            continue
        refused = line.list_refused_targets(part.position)
        for name in line.expand_word(target):
            if name not in refused:
                line.write_output(line.files.resolve_path(name, part.cwd), content, append=">>" in operator)


def find_input_text(line: CommandLine, part: ExpandedCommand) -> str | None:
    """The standard input of a command, if known."""
    content = _find_input(line, part)
    return None if content is None else full_text(content, line.files.known_lines)


def _find_input(line: CommandLine, part: ExpandedCommand) -> Content | None:
    if part.command.stdin is not None:
        return known_content(part.command.stdin)
    for redirect in part.command.redirects:
        if redirect.operator == "<":
            return line.files.content(line.files.resolve_path(redirect.target, part.cwd))
    return _find_output(line, line.expand_command(part.position - 1)) if part.command.stage else None


def _find_output(line: CommandLine, part: ExpandedCommand) -> Content | None:
    name, words, names = part.command.name, part.words, list_operands(part.words)
    if name == "tee" or (name == "cat" and not names):
        return _find_input(line, part)
    if name == "cat" and len(names) == 1 and names == list(words) and not line.is_grouped(part):
        return line.files.content(line.files.resolve_path(names[0], part.cwd))
    if name == "echo":
        options = [w for w in words[:1] if re.fullmatch(r"-[neE]+", w)]
        text = " ".join(words[len(options) :])
        return known_content(text.replace("\\n", "\n") if options and "e" in options[0] else text)
    if name == "printf" and len(words) == 1:
        return known_content(words[0].replace("\\n", "\n").replace("\\t", "\t"))
    return None


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


def run_git(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply a Git command to the files."""
    words = list(part.words)
    while words and words[0].startswith("-"):
        if words[0] == "-C" and len(words) > 1:
            part = part._replace(cwd=resolve_path(words[1], part.cwd))
        words = words[2:] if words[0] in ("-C", "-c") else words[1:]
    if not words:
        return
    files, old_contents = line.files, dict(line.files.touched_contents)
    _run_subcommand(line, part._replace(words=tuple(words[1:])), words[0])
    line.touched_paths |= {
        p
        for p, content in files.touched_contents.items()
        if p not in old_contents or content != old_contents[p]
    }


def _run_subcommand(line: CommandLine, part: ExpandedCommand, verb: str) -> None:
    files, words = line.files, part.words
    if verb == "stash":
        _run_stash(files, words)
    elif verb in ("checkout", "restore"):
        _run_checkout(files, words, part.cwd)
    elif verb == "reset" and "--hard" in words:
        for path in files.list_paths_under(""):
            files.restore(path)
    elif verb == "clean" and any(re.fullmatch(r"-\w*f\w*|--force", w) for w in words):
        for path in files.list_paths_under(""):
            if not files.is_tracked(path):
                files.write(path, None)
    elif verb == "apply":
        _apply_patch_file(line, part)
    elif verb == "diff":
        for redirect in part.command.redirects:
            if redirect.operator in (">", "1>"):
                changed = {path: files.content(path) for path in files.list_changed_paths()}
                files.diffs[files.resolve_path(redirect.target, part.cwd)] = changed
    elif verb == "mv":
        move_paths(line, words, part.cwd, keep_source=False)
    elif verb == "rm" and "--cached" not in words:
        remove_paths(line, words, part.cwd)


def _run_stash(files: InferredFiles, words: Sequence[str]) -> None:
    verb = next(iter(list_operands(words)), "push")
    if verb in ("push", "save"):
        changed = [path for path in files.list_changed_paths() if files.is_tracked(path)]
        files.stashes.append({path: files.content(path) for path in changed})
        for path in changed:
            files.restore(path)
    elif verb in ("pop", "apply") and files.stashes:
        saved = files.stashes[-1] if verb == "apply" else files.stashes.pop()
        for path, content in saved.items():
            files.write(path, content)


def _apply_patch_file(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply a patch; a patch from an earlier `git diff` of the run restores the contents of that time."""
    names = (line.files.resolve_path(word, part.cwd) for word in list_operands(part.words))
    saved = next((line.files.diffs[name] for name in names if name in line.files.diffs), None)
    if saved is None:
        apply_patch(line, part, strip=1)
    elif not DRY_RUN_OPTIONS & set(part.words):
        for path, content in saved.items():
            line.files.restore(path) if is_reversed(part) else line.files.write(path, content)


def _run_checkout(files: InferredFiles, words: Sequence[str], cwd: str) -> None:
    if {"-b", "-B", "--orphan", "--staged", "-S"} & set(words) and "--worktree" not in words:
        return
    names = [w for w in words if w == "--" or not w.startswith("-")]
    source = next((w.partition("=")[2] for w in words if w.startswith("--source=")), "")
    if "--" in names:
        source = source or "".join(names[: names.index("--")][:1])
        names = names[names.index("--") + 1 :]
    elif len(names) > 1 and re.fullmatch(r"(?:HEAD|main|master|[0-9a-f]{7,40})[~^\d]*", names[0]):
        source, names = names[0], names[1:]
    for name in names:
        path = files.resolve_path(name, cwd)
        touched_paths = files.list_paths_under(path)
        for target in touched_paths if touched_paths or "." not in name.rpartition("/")[2] else [path]:
            if source and source != "HEAD":
                files.write(target, unknown_content(f"{source}:{target}"))
            else:
                files.restore(target)

"""Effects of Git commands on the inferred files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from langgraph_takeover.handoff.readers.inference import file_commands, patches
from langgraph_takeover.handoff.readers.inference.command_line import (
    CommandLine,
    ExpandedCommand,
    list_operands,
)
from langgraph_takeover.handoff.readers.inference.content import unknown_content
from langgraph_takeover.handoff.shell.commands import resolve_path

if TYPE_CHECKING:
    from langgraph_takeover.handoff.readers.inference.files import InferredFiles


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
        file_commands.move_paths(line, words, part.cwd, keep_source=False)
    elif verb == "rm" and "--cached" not in words:
        file_commands.remove_paths(line, words, part.cwd)


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
        patches.apply_patch(line, part, strip=1)
    elif not patches.DRY_RUN_OPTIONS & set(part.words):
        for path, content in saved.items():
            line.files.restore(path) if patches.is_reversed(part) else line.files.write(path, content)


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

"""Programs that move, copy, remove and make files and directories."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from handoff import paths
from handoff.inference import content as contents
from handoff.inference.line import CommandLine, ExpandedCommand, list_operands


def run_move(line: CommandLine, part: ExpandedCommand) -> None:
    move_paths(line, part.words, part.cwd, keep_source=part.command.name != "mv")


def move_paths(line: CommandLine, words: Sequence[str], cwd: str, *, keep_source: bool) -> None:
    """Files or directories come to another name, and stay under their own or do not."""
    names = list_operands(words)
    if len(names) < 2:
        return
    *sources, target = names
    to = line.files.resolve_path(target, cwd)
    directory = target.endswith("/") or target in (".", "..") or len(sources) > 1
    if not directory and "." not in posixpath.basename(to) and "." in posixpath.basename(sources[0]):
        directory = to not in line.files.touched_contents
    for source in sources:
        path = line.files.resolve_path(source, cwd)
        goal = posixpath.join(to, posixpath.basename(path)) if directory else to
        for inner in [p for p in line.files.list_paths_under(path) if p != path]:
            _move_path(line, inner, goal + inner[len(path) :], keep_source)
        if "." not in posixpath.basename(path) and path not in line.files.touched_contents:
            line.files.make_directory(goal)
        else:
            _move_path(line, path, goal, keep_source)


def _move_path(line: CommandLine, path: str, target: str, keep_source: bool) -> None:
    held = line.files.content(path)
    if not keep_source:
        line.write_file(path, None)
    line.write_file(target, held)


def run_remove(line: CommandLine, part: ExpandedCommand) -> None:
    remove_paths(line, part.words, part.cwd)


def remove_paths(line: CommandLine, words: Sequence[str], cwd: str) -> None:
    for word in list_operands(words):
        path = line.files.resolve_path(word, cwd)
        for touched in line.files.list_paths_under(path):
            line.write_file(touched, None)
        if paths.is_code(path) and "*" not in path and path not in line.files.touched_contents:
            line.write_file(path, None)


def run_mkdir(line: CommandLine, part: ExpandedCommand) -> None:
    fresh = line.exit_code == 0 and not any(re.match(r"-\w*p|--parents", w) for w in part.words)
    for word in list_operands(part.words):
        path = line.files.resolve_path(word, part.cwd)
        line.files.make_directory(path, new=fresh and "/" not in path)


def run_touch(line: CommandLine, part: ExpandedCommand) -> None:
    for word in list_operands(part.words):
        path = line.files.resolve_path(word, part.cwd)
        if not line.files.exists(path):
            line.write_file(path, contents.from_text(""))

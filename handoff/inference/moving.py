"""Programs that move, copy, remove and make files and directories."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from handoff import paths
from handoff.inference import content as contents
from handoff.inference.line import Line, Part, operands


def move(line: Line, part: Part) -> None:
    carry(line, part.words, part.cwd, stays=part.simple.name != "mv")


def carry(line: Line, words: Sequence[str], cwd: str, *, stays: bool) -> None:
    """Files or directories come to another name, and stay under their own or do not."""
    names = operands(words)
    if len(names) < 2:
        return
    *sources, target = names
    to = line.files.path(target, cwd)
    directory = target.endswith("/") or target in (".", "..") or len(sources) > 1
    if not directory and "." not in posixpath.basename(to) and "." in posixpath.basename(sources[0]):
        directory = to not in line.files.touched
    for source in sources:
        path = line.files.path(source, cwd)
        goal = posixpath.join(to, posixpath.basename(path)) if directory else to
        for inner in [p for p in line.files.under(path) if p != path]:
            _carry_one(line, inner, goal + inner[len(path) :], stays)
        if "." not in posixpath.basename(path) and path not in line.files.touched:
            line.files.make_directory(goal)
        else:
            _carry_one(line, path, goal, stays)


def _carry_one(line: Line, path: str, goal: str, stays: bool) -> None:
    held = line.files.content(path)
    if not stays:
        line.write(path, None)
    line.write(goal, held)


def remove_files(line: Line, part: Part) -> None:
    remove(line, part.words, part.cwd)


def remove(line: Line, words: Sequence[str], cwd: str) -> None:
    for word in operands(words):
        path = line.files.path(word, cwd)
        for touched in line.files.under(path):
            line.write(touched, None)
        if paths.is_code(path) and "*" not in path and path not in line.files.touched:
            line.write(path, None)


def make_directories(line: Line, part: Part) -> None:
    fresh = line.exit_code == 0 and not any(re.match(r"-\w*p|--parents", w) for w in part.words)
    for word in operands(part.words):
        path = line.files.path(word, part.cwd)
        line.files.make_directory(path, new=fresh and "/" not in path)


def touch(line: Line, part: Part) -> None:
    for word in operands(part.words):
        path = line.files.path(word, part.cwd)
        if not line.files.exists(path):
            line.write(path, contents.of_text(""))

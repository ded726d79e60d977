"""Which lines of which files an action showed, so that later edits of them can be followed to the letter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from handoff.command_effects import may_edit
from handoff.commands import SimpleCommand, parse

if TYPE_CHECKING:
    from handoff.inference.files import Files

_SHOWS = re.compile(r"\b(?:cat|sed|head|nl|grep|tail)\b")
_SILENT = {"cd", "rm", "mv", "cp", "mkdir", "export", "true", "touch"}
_NUMBERED = re.compile(r"^[ ]{0,6}(\d{1,6})(?:\t|[:-])(.*)$")
_TABBED = re.compile(r"^[ ]{0,6}(\d{1,6})\t(.*)$")
_PRINTS = re.compile(r"^(\d+)(?:,(\d+|\$))?p$")
_ELIDED = re.compile(r"elided_chars|characters left out|\[\.\.\. |<response clipped>|truncated")
_MOST = 3000


def learn_from_editor(files: Files, arguments: Mapping[str, str], text: str) -> None:
    """Numbered lines, as `cat -n` writes them, that an editor showed of its file."""
    path = arguments.get("path", "")
    if path:
        _learn(files, files.path(path), [m for line in text.split("\n") if (m := _TABBED.match(line))])


def learn_from_shell(files: Files, command: str, text: str) -> None:
    """What a command line showed, where one pipeline of it alone prints."""
    if len(command) > 4000 or not _SHOWS.search(command) or _ELIDED.search(text):
        return
    pipeline, lines = _printing(parse(command)), _shown(text)
    names = [word for word in pipeline[0].argv[1:] if not word.startswith("-")] if pipeline else []
    if not names or not lines:
        return
    first = pipeline[0]
    path = files.path(names[-1], _directory(files, first))
    if first.name == "grep" and _flag(first, "n"):
        if len(names) == 2:
            _learn(files, path, _numbered(lines))
    elif first.name == "nl" or (first.name == "cat" and _flag(first, "n")):
        _learn(files, path, _numbered(lines))
    else:
        _learn_from(files, path, _first_line(pipeline), lines)


def _printing(commands: Sequence[SimpleCommand]) -> Sequence[SimpleCommand]:
    """The only pipeline that prints, once and to the terminal; empty where there is none, or more than one."""
    shown = [command for command in commands if command.stage == 0 and not _silent(command)]
    if len(shown) != 1 or shown[0].repeats or any(">" in each.operator for each in shown[0].redirects):
        return ()
    first = shown[0]
    behind = commands[commands.index(first) + 1 :]
    return (first, *(command for command in behind if command.stage > 0))[: first.stages]


def _shown(text: str) -> list[str]:
    """The lines of a file that a text may be; none of one too long, or that says there was no such file."""
    lines = text.removesuffix("\n").split("\n")
    useless = not text or len(lines) > _MOST or re.search(r": No such file|: command not found", lines[0])
    return [] if useless else lines


def _directory(files: Files, command: SimpleCommand) -> str:
    cwd = files.cwd or ""
    if command.cwd is None:
        return cwd
    return f"{cwd}/{command.cwd}" if cwd else command.cwd


def _numbered(lines: Sequence[str]) -> list[re.Match[str]]:
    return [match for line in lines if (match := _NUMBERED.match(line))]


def _learn_from(files: Files, path: str, begin: int | None, lines: Sequence[str]) -> None:
    """Lines of a file from number `begin` on; 0 is the whole of it."""
    held = files.content(path)
    if begin is None or held is None:
        return
    files.known_at_base(path)
    if begin == 0:
        files.known.learn_whole(held, lines)
    else:
        files.known.learn(held, begin, lines)


def _learn(files: Files, path: str, matches: Sequence[re.Match[str]]) -> None:
    held = files.content(path)
    if held is not None and matches:
        files.known_at_base(path)
        for match in matches[:_MOST]:
            files.known.learn(held, int(match[1]), [match[2]])


def _first_line(pipeline: Sequence[SimpleCommand]) -> int | None:
    """The number of the first line that is shown; 0 for a whole file, None if that cannot be told."""
    first = pipeline[0]
    options = [w for w in first.argv[1:] if w.startswith("-")]
    if first.name == "cat" and not options:
        if len(pipeline) == 1:
            return 0 if len(first.argv) == 2 else None
        second = pipeline[1]
        if len(pipeline) == 2 and second.name == "sed":
            return _printed(second)
        return 1 if len(pipeline) == 2 and second.name == "head" else None
    if len(pipeline) > 1:
        return None
    if first.name == "sed":
        return _printed(first)
    return 1 if first.name == "head" and not _flag(first, "c") else None


def _printed(simple: SimpleCommand) -> int | None:
    if not _flag(simple, "n"):
        return None
    programs = [w for w in simple.argv[1:] if not w.startswith("-")]
    match = _PRINTS.match(programs[0]) if programs else None
    return int(match[1]) if match else None


def _flag(simple: SimpleCommand, letter: str) -> bool:
    return any(re.fullmatch(rf"-\w*{letter}\w*", w) for w in simple.argv[1:])


def _silent(simple: SimpleCommand) -> bool:
    if simple.name == "sed":
        return may_edit(simple)
    return simple.name in _SILENT or (simple.name == "cat" and simple.stdin is not None)

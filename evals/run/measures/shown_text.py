"""The lines that an observation shows: each with the file and the line number it comes from, where that is known."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from langgraph_takeover.handoff.points.outcomes import clean_output
from langgraph_takeover.handoff.shell.command_effects import list_shown_files
from langgraph_takeover.handoff.shell.syntax import SimpleCommand, resolve_path
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.trace.events import Event

_BOILERPLATE = re.compile(
    r"\[File: .*\]$|\(\d+ more lines (?:above|below)\)$|\((?:Open file|Current directory): .*\)$|bash-\$"
    r"|Here's the result of running `cat -n` on |The file .* has been (?:edited|updated|created)|File created successfully"
    r"|Review the (?:changes|file)|Review the changes and make sure|\[The command completed with exit code"
    r"|\[Current working directory: |\[Python interpreter: |</?(?:output|output_head|output_tail|elided_chars|warning)>"
    r"|The output of your last command was too long|Please try a different command that produces less output"
    r"|If you're looking at a file you can try use head|If you're using grep or find and it produced too much"
    r"|\d+ characters elided|\[… [\d,]+ characters left out|.*, lines \d+ to \d+ of \d+:$|.* has been edited\.$"
    r"|diff --git |index [0-9a-f]+\.\.[0-9a-f]+|(?:---|\+\+\+) (?:[ab]/|/dev/null)|@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@"
    r"|(?:new|deleted) file mode \d+|\\ No newline at end of file|<response clipped>"
    r"|File updated\. Please review|\(correct indentation, no duplicate lines|<<<<< (?:START|END) CURSOR >>>>>|NOTE: "
)
_ELISION = re.compile(r"elided_chars|characters (?:elided|left out)|<response clipped>|<NOTE>")
_OPEN_FILE = re.compile(r"\[File: (\S+) \(\d+ lines total\)\]")
_NUMBERED = re.compile(r"[ ]{0,6}(\d{1,6})(?:\t|[:-](?=\s|\S))(.*)", re.S)
_TABBED = re.compile(r"[ ]{0,6}(\d{1,6})\t(.*)", re.S)
_GREP_HIT = re.compile(r"((?:[\w.@+~-]*/)*[\w.@+-]+\.\w{1,8})(?:([:-])(\d{1,6}))?[:-](.*)", re.S)
_DIFF_HEAD = re.compile(r"diff --git a/.* b/(.*)")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_PRINT_RANGE = re.compile(r"(\d+)(?:,(\d+|\$))?p")
_MAX_BLANK_LINES = 3
_MAX_LINE_CHARS = 2_000
"""Longer lines are compared by their beginnings, so that patterns take little time."""
_VALUED_GREP_OPTION = re.compile(
    r"-\w*[ABCmef]|--(?:include|exclude|exclude-dir|context|max-count|regexp|file)"
)
_GREPS = {"grep", "egrep", "fgrep", "rg", "ack", "ag"}
_DISPLAYS = {"cat", "sed", "head", "tail", "nl", "less", "more", "bat"}


class ShownLine(NamedTuple):
    """One line of an observation, without boilerplate."""

    position: int
    """Index of the line in `split_output`."""
    text: str
    """The line without the number or path that its program put before it."""
    size: int
    """Characters of the line as shown."""
    paths: tuple[str, ...] = ()
    """The file that it comes from, or the files that it may come from; empty for other output."""
    number: int | None = None
    """Line number in the file."""


class Location(NamedTuple):
    """Where relative paths start: the directory of the shell, and the repository."""

    cwd: str = ""
    workspace: str = ""

    def normalize_path(self, path: str) -> str:
        """A path as file changes name it: relative inside the repository, absolute outside."""
        if not path.startswith(("/", "~")) and self.cwd:
            path = posixpath.join(self.cwd, path)
        path = posixpath.normpath(path)
        return path.removeprefix(self.workspace.rstrip("/") + "/" if self.workspace else "")


def split_output(text: str) -> list[str]:
    """The lines of an observation, without the wrapping that the tools of agents add."""
    return clean_output(text).split("\n")


def is_boilerplate(line: str) -> bool:
    """Whether a line carries no content: blank, without a letter or digit, or written by the agent's tool."""
    stripped = line.strip()
    return not any(map(str.isalnum, stripped)) or _BOILERPLATE.match(stripped) is not None


def list_shown_lines(action: Event, observation: Event, workspace: str) -> tuple[ShownLine, ...]:
    """The lines that an action showed, with their files and line numbers as far as command and output tell."""
    lines = [line[:_MAX_LINE_CHARS] for line in split_output(observation.text)]
    location = Location(observation.cwd or "", workspace)
    in_diffs, others = _read_diffs(lines)
    if action.tool == "shell":
        found = _read_shell_output(others, action.arguments.get("command", ""), location)
    else:
        path = action.arguments.get("path", "")
        found = _read_editor_output(others, location.normalize_path(path) if path else "", location)
    return tuple(
        line
        for line in sorted([*in_diffs, *found])
        if any(map(str.isalnum, line.text)) and not is_boilerplate(lines[line.position])
    )


def list_command_parts(command: str, location: Location) -> tuple[str, ...]:
    """The pipelines of a command line in a normal form, each with its directory."""
    parts = []
    for pipeline in _list_pipelines(command):
        if pipeline[0].name not in ("cd", "pushd", "popd", "export"):
            directory = location.normalize_path(pipeline[0].cwd or ".")
            directory = "." if directory in ("", location.workspace.rstrip("/")) else directory
            parts.append(f"{directory}: " + " | ".join(" ".join(each.argv) for each in pipeline))
    return tuple(parts)


def _read_editor_output(
    lines: Sequence[tuple[int, str]], path: str, location: Location
) -> Iterator[ShownLine]:
    for position, line in lines:
        if opened := _OPEN_FILE.match(line):
            path = location.normalize_path(opened[1])
        match = _TABBED.fullmatch(line) or _NUMBERED.fullmatch(line)
        if match and path:
            yield ShownLine(position, match[2], len(line), (path,), int(match[1]))
        else:
            yield ShownLine(position, line, len(line))


def _read_shell_output(
    lines: Sequence[tuple[int, str]], command: str, location: Location
) -> Iterator[ShownLine]:
    pipelines = _list_pipelines(command)
    files = tuple(location.normalize_path(path) for path in _list_displayed_files(command, pipelines))
    greps = [each for pipeline in pipelines for each in pipeline if each.name in _GREPS]
    searched = tuple(dict.fromkeys(path for grep in greps for path in _list_grep_files(grep, location)))
    is_numbered = any(
        each.name == "nl" or (each.name == "cat" and _has_flag(each, "n")) for p in pipelines for each in p
    )
    count = len(lines) - (bool(lines) and not lines[-1][1])
    numbers = _assign_numbers(pipelines, count)
    for index, (position, line) in enumerate(lines):
        if opened := _OPEN_FILE.match(line):
            files, is_numbered = (location.normalize_path(opened[1]),), True
        if _ELISION.search(line):
            numbers = {}
        hit = _GREP_HIT.fullmatch(line) if greps else None
        pattern = _NUMBERED if greps or (is_numbered and not _TABBED.fullmatch(line)) else _TABBED
        match = pattern.fullmatch(line) if greps or is_numbered else None
        if hit and (hit[3] or _may_name_files(greps)):
            text, number = _strip_number(hit[4], int(hit[3]) if hit[3] else None)
            yield ShownLine(position, text, len(line), (location.normalize_path(hit[1]),), number)
        elif match:
            text, number = _strip_number(match[2], int(match[1]))
            yield ShownLine(position, text, len(line), files or searched, number)
        else:
            yield ShownLine(position, line, len(line), files or searched, numbers.get(index))


def _read_diffs(lines: Sequence[str]) -> tuple[list[ShownLine], list[tuple[int, str]]]:
    """The lines inside diffs, and all others with their positions."""
    found, others = [], []
    path, old, new = "", 0, 0
    for position, line in enumerate(lines):
        if head := _DIFF_HEAD.match(line):
            path, new = head[1], 0
        elif hunk := _HUNK.match(line):
            old, new = int(hunk[1]), int(hunk[2])
        elif path and new and line[:1] in ("+", "-", " "):
            number = old if line[0] == "-" else new
            found.append(ShownLine(position, line[1:], len(line), (path,), number))
            old, new = old + (line[0] != "+"), new + (line[0] != "-")
            continue
        elif path and not is_boilerplate(line):
            path = ""
        others.append((position, line))
    return found, others


def _strip_number(text: str, number: int | None) -> tuple[str, int | None]:
    """Remove the number that `nl` put between the prefix of grep and the text."""
    inner = _TABBED.fullmatch(text)
    return (inner[2], int(inner[1])) if inner else (text, number)


def _list_pipelines(command: str) -> list[list[SimpleCommand]]:
    pipelines: list[list[SimpleCommand]] = []
    for simple in parse_command(command):
        if simple.stage == 0 or not pipelines:
            pipelines.append([])
        pipelines[-1].append(simple)
    return pipelines


def _list_displayed_files(command: str, pipelines: Sequence[Sequence[SimpleCommand]]) -> Iterator[str]:
    yield from list_shown_files(command)
    for first, *filters in pipelines:
        if any(each.name in _GREPS for each in filters):
            for path in list_shown_files(shlex.join(first.argv)):
                yield resolve_path(path, first.cwd)


def _list_grep_files(grep: SimpleCommand, location: Location) -> Iterator[str]:
    words = [
        word
        for before, word in pairwise(grep.argv)
        if not word.startswith("-") and not _VALUED_GREP_OPTION.fullmatch(before)
    ]
    has_pattern = any(word in ("-e", "-f", "--regexp", "--file") for word in grep.argv)
    for word in words[not has_pattern :]:
        if "." in word.rpartition("/")[2] and "*" not in word:
            yield location.normalize_path(resolve_path(word, grep.cwd))


def _may_name_files(greps: Sequence[SimpleCommand]) -> bool:
    """Whether hits without a number may start with the name of their file."""
    return any(
        any(re.fullmatch(r"-\w*[rRH]\w*|--recursive|--with-filename", word) for word in grep.argv[1:])
        or len([word for word in grep.argv[1:] if not word.startswith("-")]) > 2
        or "*" in " ".join(grep.argv)
        for grep in greps
    )


def _assign_numbers(pipelines: Sequence[Sequence[SimpleCommand]], count: int) -> dict[int, int]:
    """Line numbers of output lines that `cat`, `head` and `sed -n` print without numbers, if the parts can be told apart."""
    printing = [p for p in pipelines if p[0].name in _DISPLAYS and p[0].shows_output]
    if any(p[0].name not in ("cd", "export", "true", ":") for p in pipelines if p not in printing):
        return {}
    ranges = [_find_range(pipeline) for pipeline in printing]
    if len(ranges) == 1 and ranges[0] is not None:
        return {position: ranges[0][0] + position for position in range(count)}
    sizes = [None if each is None or each[1] is None else each[1] - each[0] + 1 for each in ranges]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or sum(known) != count:
        return {}
    shown = [
        number for each in ranges if each and each[1] is not None for number in range(each[0], each[1] + 1)
    ]
    return dict(enumerate(shown))


def _find_range(pipeline: Sequence[SimpleCommand]) -> tuple[int, int | None] | None:
    """First and last line number that a pipeline prints; the last is None if it is unknown."""
    found: tuple[int, int | None] | None = None
    for stage, simple in enumerate(pipeline):
        operands = [word for word in simple.argv[1:] if not word.startswith("-")]
        prints_all = simple.name == "cat" and stage == 0 and len(operands) == 1 == len(simple.argv) - 1
        if prints_all or (simple.name == "head" and (stage == 0 or found == (1, None))):
            found = (1, None)
        elif simple.name == "sed" and _has_flag(simple, "n") and (stage == 0 or found == (1, None)):
            match = _PRINT_RANGE.fullmatch(operands[0]) if operands else None
            if match is None:
                return None
            last = match[2] or match[1]
            found = (int(match[1]), int(last) if last.isdigit() else None)
        else:
            return None
    return found


def _has_flag(command: SimpleCommand, letter: str) -> bool:
    return any(re.fullmatch(rf"-\w*{letter}\w*", word) for word in command.argv[1:])


def join_ranges(numbers: Iterable[int], others: Container[int] | None = None) -> tuple[tuple[int, int], ...]:
    """Line numbers as ranges, both ends included.

    With `others`, the numbers of other shown lines, short gaps without any of them are part of a range: blank lines.
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and _is_continued(ranges[-1][1], number, others):
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def _is_continued(last: int, number: int, others: Container[int] | None) -> bool:
    if number == last + 1:
        return True
    gap = range(last + 1, number)
    return others is not None and len(gap) <= _MAX_BLANK_LINES and not any(each in others for each in gap)

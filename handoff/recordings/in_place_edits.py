"""Programs that edit files in place: sed, Perl and formatters."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from langgraph_takeover.handoff.recordings.command_lines import CommandLine, ExpandedCommand, list_operands
from langgraph_takeover.handoff.recordings.inferred_content import (
    Content,
    KnownLines,
    LineTransform,
    add_opaque_change,
    find_lines,
    replace_lines,
    substitute_lines,
)
from langgraph_takeover.handoff.trace import file_kinds

_MAX_LINE_CHARS = 500
_CLASSES = {
    "space": r"\s", "digit": r"\d", "alpha": "a-zA-Z", "alnum": "a-zA-Z0-9", "upper": "A-Z",
    "lower": "a-z", "punct": r"!-/:-@\[-`{-~", "blank": r" \t",
}  # fmt: skip
_ADDRESS = r"(?:\d{1,9}|\$|/(?:\\.|[^/\\\n])*/)"
_HEAD = re.compile(rf"(?:({_ADDRESS})(?:,({_ADDRESS}))?)?[ ]*([sdaic])")
_LINES = re.compile(r"[ \t]*(?:\\\n?)?((?:[^\\\n]|\\.)*)", re.S)
_TOKEN = re.compile(r"\\(.)|\[(\^?\]?(?:\[:\w+:\]|[^]])*+)(?:\]|\Z)|(.)", re.S)


class SedCommand(NamedTuple):
    """One command of a sed program."""

    name: str
    """One of `sdaic`, or `?` for an unsupported command."""
    first: str | None = None
    last: str | None = None
    """Addresses as written: a number, `$` or a pattern between slashes."""
    pattern: str = ""
    text: str = ""
    """The replacement of `s`, or the lines of `a`, `i` and `c`."""
    flags: str = ""


def apply_sed(content: Content, known_lines: KnownLines, program: str, *, extended: bool) -> Content:
    """Apply a sed program to a content."""
    commands = list(parse_sed(program))
    # Addresses count input lines, and only substitutions preserve line numbers.
    if len(commands) > 1 and any(command.name != "s" for command in commands):
        return add_opaque_change(content, repr(commands))
    for command in commands:
        content = _apply_command(content, known_lines, command, extended)
    return content


def _apply_command(content: Content, known_lines: KnownLines, command: SedCommand, extended: bool) -> Content:
    opaque = add_opaque_change(content, repr(command))
    ranges = _find_ranges(content, known_lines, command, extended)
    if ranges is None:
        return opaque
    end = _count_lines(content, known_lines)
    if end is not None:
        ranges = [(first, None if last is None else min(last, end)) for first, last in ranges if first <= end]
    if command.name == "s":
        change = _compile_substitution(command, extended)
        if change is None:
            return opaque
        old = _find_literal_text(command.pattern)
        mark = ("do", repr(command[3:])) if old is None else (old, command.text)
        for first, last in ranges:
            content = substitute_lines(content, known_lines, change, mark, first, last)
        return content
    lines = command.text.split("\n")
    for first, last in reversed(ranges):
        if command.name == "d":
            content = replace_lines(content, first, last, ())
        elif command.name == "c":
            content = replace_lines(content, first, last, lines)
        elif command.name == "i":
            content = replace_lines(content, first, first - 1, lines)
        else:
            content = replace_lines(content, first + 1, first, lines)
    return content


def _find_ranges(
    content: Content, known_lines: KnownLines, command: SedCommand, extended: bool
) -> list[tuple[int, int | None]] | None:
    """The line ranges of a command; None if unknown."""
    name, first, last = command[:3]
    if name == "?":
        return None
    if first is None:
        return [(1, None)] if name in "sd" else None
    if first == "$":
        end = _count_lines(content, known_lines)
        return None if end is None else [(end, end)]
    if first.isdigit():
        start = int(first)
        if last is None or last.isdigit():
            return [(start, max(start, int(last or 0)))]
        return [(start, None)] if last == "$" else None
    starts = _find_matching_lines(content, known_lines, first, extended)
    if not starts:
        # No known line matches, so a substitution may still match any unknown line.
        return [(1, None)] if name == "s" and last is None else None
    if last is None:
        return [(start, start) for start in starts]
    return (
        _pair_ranges(starts, _find_matching_lines(content, known_lines, last, extended))
        if last.startswith("/")
        else None
    )


def _pair_ranges(starts: list[int], stops: list[int]) -> list[tuple[int, int | None]] | None:
    ranges: list[tuple[int, int | None]] = []
    end = 0
    for start in starts:
        if start > end:
            end = next((stop for stop in stops if stop > start), 0)
            if not end:
                return None
            ranges.append((start, end))
    return ranges


def _count_lines(content: Content, known_lines: KnownLines) -> int | None:
    total = 0
    for piece in content.pieces:
        if isinstance(piece, str):
            total += 1
            continue
        end = piece.end if piece.end is not None else known_lines.end(content.origin)
        if end is None:
            return None
        total += end - piece.start
    return total


def _find_matching_lines(
    content: Content, known_lines: KnownLines, address: str, extended: bool
) -> list[int]:
    compiled = compile_pattern(address[1:-1].replace("\\/", "/"), extended)
    return find_lines(content, known_lines, compiled) if compiled is not None else []


def _compile_substitution(command: SedCommand, extended: bool) -> LineTransform | None:
    """Compile an `s` command into a function of one line; None if it is unsupported."""
    pattern = compile_pattern(command.pattern, extended, "i" in command.flags.lower())
    escapes = re.findall(r"\\([a-zA-Z])|\\.", command.text, re.S)
    if pattern is None or set(command.flags) - set("gIi") or set(escapes) - {"n", "t", ""}:
        return None
    template = re.sub(r"\\(.)|&", _convert_escape, command.text, flags=re.S)
    count = 0 if "g" in command.flags else 1
    try:
        pattern.sub(template, "")
    except (re.error, IndexError):
        return None
    return lambda line: line if len(line) > _MAX_LINE_CHARS else pattern.sub(template, line, count=count)


def _convert_escape(match: re.Match[str]) -> str:
    escaped = match[1]
    if escaped is None or escaped.isdigit():
        return rf"\g<{escaped or 0}>"
    return {"n": "\n", "t": "\t", "\\": r"\\"}.get(escaped, escaped)


def compile_pattern(pattern: str, extended: bool, ignore_case: bool = False) -> re.Pattern[str] | None:
    """Compile a sed pattern; None if it is invalid or may backtrack excessively."""
    if len(pattern) > _MAX_LINE_CHARS:
        return None
    translated = _translate_pattern(pattern, extended)
    unbounded_repeats = len(re.findall(r"(?<!\\)[*+]|\{\d*,\d*\}", translated))
    if unbounded_repeats > 2 or re.search(r"\)[*+{?]", translated):
        return None
    try:
        return re.compile(translated, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError):
        return None


def _translate_pattern(pattern: str, extended: bool) -> str:
    def translate_token(match: re.Match[str]) -> str:
        escaped, body, char = match.groups()
        if escaped is not None:
            if escaped in "(){}|+?":
                return "\\" + escaped if extended else escaped
            if escaped in "<>":
                return r"\b"
            return "\\" + escaped if escaped in "nstwWSbB123456789" else re.escape(escaped)
        if body is not None:
            for name, written in _CLASSES.items():
                body = body.replace(f"[:{name}:]", written)
            return "[" + body.replace("[", "\\[") + "]"
        first, last = match.start() == 0, match.end() == len(pattern)
        literal = char in "(){}|+?" or (char == "^" and not first) or (char == "$" and not last)
        is_literal_star = char == "*" and (first or pattern[: match.start()] == "^")
        return (
            char
            if char in "^$.*[](){}|+?" and not is_literal_star and (extended or not literal)
            else re.escape(char)
        )

    return _TOKEN.sub(translate_token, pattern)


def _find_literal_text(pattern: str) -> str | None:
    """The literal text of a pattern that contains only anchors and escapes; else None."""
    body = pattern.removeprefix("^")
    body = body[:-1] if body.endswith("$") and not body.endswith("\\$") else body
    if re.search(r"(?<!\\)[*\[]|\\[(|+?wsdSWb{<>1-9]|\.\*", body):
        return None
    return re.sub(r"\\(.)", r"\1", body)


def parse_sed(program: str) -> Iterator[SedCommand]:
    """Parse a sed program; unreadable text ends it with one command `?`."""
    program = program.replace(r"\x27", "'").replace(r"\x22", '"')
    position = len(program) if r"\x" in program else 0
    if position:
        yield SedCommand("?", text=program)
    while position < len(program):
        if program[position] in " \t\n;":
            position += 1
            continue
        head = _HEAD.match(program, position)
        if head is None:
            yield SedCommand("?", text=program[position:])
            return
        first, last, name = head.groups()
        position = head.end()
        if name == "s":
            stop = re.escape(program[position : position + 1])
            part = rf"((?:\\.|[^\\{stop}])*){stop}"
            match = re.compile(rf"{stop}{part}{part}(\w*)", re.S).match(program, position) if stop else None
            if match is None:
                yield SedCommand("?", text=program[position:])
                return
            pattern, text = (match[n].replace(f"\\{program[position]}", program[position]) for n in (1, 2))
            position = match.end()
            yield SedCommand("s", first, last, pattern, text, match[3])
        elif name == "d":
            yield SedCommand("d", first, last)
        else:
            text, position = _read_text_argument(program, position)
            yield SedCommand(name, first, last, text=text)


def _read_text_argument(program: str, position: int) -> tuple[str, int]:
    r"""The text of `a`, `i` or `c`, in one-line form or `a\` form, and the position after it."""
    match = _LINES.match(program, position)
    assert match is not None
    escapes = {"n": "\n", "t": "\t"}
    return re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[1]), match[1], flags=re.S), match.end()


FORMATTERS = {
    "black": "", "isort": "", "pyupgrade": "", "rustfmt": "", "ed": "", "ex": "", "dos2unix": "",
    "autopep8": "-i", "yapf": "-i", "autoflake": "-i", "gofmt": "-w", "2to3": "-w", "prettier": "--write",
    "ruff": "--fix format", "eslint": "--fix", "awk": "inplace", "gawk": "inplace",
}  # fmt: skip
"""Formatter -> arguments of which one makes it write; empty if it always writes."""
_CHECK_OPTIONS = {"--check", "--diff", "--dry-run", "--check-only", "-c"}
_UNCHANGED_REPORT = re.compile(r"\b(?:left )?unchanged\b|No changes", re.I)
_IN_PLACE = re.compile(r"-[\dEalnprsuwz]*i(\.\S+|~)?|--in-place")
_ONE_SUBSTITUTION = re.compile(r"s(?:/[^\n]*/|\|[^\n]*\|)\w*")


def edit_in_place(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply `sed -i` and `perl -pi`, also inside `find -exec`."""
    words = part.words
    if part.command.name != "find":
        _run_in_place_edit(line, part, part.command.name, words)
    elif "-exec" in words and words[words.index("-exec") + 1 :][:1] == ("sed",):
        _run_in_place_edit(
            line, part, "sed", [w for w in words[words.index("-exec") + 2 :] if w not in ("{}", ";", "+")]
        )


def _run_in_place_edit(line: CommandLine, part: ExpandedCommand, name: str, words: Sequence[str]) -> None:
    options, program, names = _parse_arguments(words)
    in_place = next(filter(None, map(_IN_PLACE.match, options)), None)
    if in_place is None or program is None:
        return
    is_perl = name in ("perl", "ruby")
    if is_perl:
        program = program.rstrip(";")
    is_supported = not is_perl or (_ONE_SUBSTITUTION.fullmatch(program) and "-0" not in "".join(options))
    is_extended = is_perl or any(re.match(r"-\w*[Er]|--regexp-extended", option) for option in options)
    for path in [
        line.files.resolve_path(name, part.cwd) for name in names or _list_searched_files(line, part)
    ]:
        old_content = line.content_or_empty(path)
        if in_place[1]:
            line.write_file(path + in_place[1], old_content)
        new_content = apply_sed(old_content, line.files.known_lines, program, extended=is_extended)
        line.edit_file(path, new_content if is_supported else add_opaque_change(old_content, program))


def format_files(line: CommandLine, part: ExpandedCommand) -> None:
    """Apply a formatter with an unknown effect to the files that it names."""
    write_options = set(FORMATTERS[part.command.name].split())
    if _CHECK_OPTIONS & set(part.words) or (write_options and not write_options & set(part.words)):
        return
    if _UNCHANGED_REPORT.search(line.text) and "reformatted" not in line.text:
        return
    for word in list_operands(part.words):
        path = line.files.resolve_path(word, part.cwd)
        if file_kinds.is_code(path):
            line.edit_file(path, add_opaque_change(line.content_or_empty(path), line.command))


def _list_searched_files(line: CommandLine, part: ExpandedCommand) -> list[str]:
    """Paths that a search passes to an editing command; a glob stands for all files of a directory."""
    search = line.commands[part.position - part.command.stage]
    if part.command.stage == 0 and search.name != "find":
        return []
    words = search.argv[1:]
    globs = [w.partition("=")[2] for w in words if w.startswith("--include=")]
    globs += [following for word, following in pairwise(words) if word in ("-name", "--include")]
    operands = [word for word in list_operands(words) if word not in globs]
    if files := [operand for operand in operands if file_kinds.is_code(operand)]:
        return files
    if search.name == "find":
        directory = words[0] if words and not words[0].startswith("-") else "."
    else:
        directory = [".", *operands[2 if search.name == "git" else 1 :]][-1]
    return [posixpath.join(directory, globs[0] if globs else "*.py")]


def _parse_arguments(words: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Split arguments into options, program and files; a program in a file counts as unreadable."""
    options: list[str] = []
    programs: list[str] = []
    names: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word.startswith("-") and len(word) > 1:
            options.append(word)
            if re.fullmatch(r"-\w*e|--expression", word):
                programs.append(next(remaining, ""))
            elif re.fullmatch(r"-\w*f|--file", word):
                programs.append(f"?{next(remaining, '')}")
            elif word.startswith("--expression="):
                programs.append(word.partition("=")[2])
        else:
            names.append(word)
    if not programs and names:
        programs.append(names.pop(0))
    return options, "\n".join(programs) if programs else None, names

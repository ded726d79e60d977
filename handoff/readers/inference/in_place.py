"""Programs that edit files in place: sed, Perl and formatters."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise

from langgraph_takeover.handoff.readers.inference import sed
from langgraph_takeover.handoff.readers.inference.command_line import (
    CommandLine,
    ExpandedCommand,
    list_operands,
)
from langgraph_takeover.handoff.readers.inference.content import add_opaque_change
from langgraph_takeover.handoff.trace import file_kinds

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
        new_content = sed.apply_sed(old_content, line.files.known_lines, program, extended=is_extended)
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

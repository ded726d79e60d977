"""Programs that change files in place: sed, perl, and formatters."""

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
"""Their names, and the words of which one lets them write; none where they always do."""
_CHECK_OPTIONS = {"--check", "--diff", "--dry-run", "--check-only", "-c"}
_UNCHANGED_REPORT = re.compile(r"\b(?:left )?unchanged\b|No changes", re.I)
_IN_PLACE = re.compile(r"-[\dEalnprsuwz]*i(\.\S+|~)?|--in-place")
_ONE_SUBSTITUTION = re.compile(r"s(?:/[^\n]*/|\|[^\n]*\|)\w*")


def edit_in_place(line: CommandLine, part: ExpandedCommand) -> None:
    """`sed -i` and `perl -pi`, whether named themselves or by `find -exec`."""
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
    followed = not is_perl or (_ONE_SUBSTITUTION.fullmatch(program) and "-0" not in "".join(options))
    extended = is_perl or any(re.match(r"-\w*[Er]|--regexp-extended", option) for option in options)
    for path in [
        line.files.resolve_path(name, part.cwd) for name in names or _list_searched_files(line, part)
    ]:
        before = line.content_or_empty(path)
        if in_place[1]:
            line.write_file(path + in_place[1], before)
        after = sed.apply_sed(before, line.files.known_lines, program, extended=extended)
        line.edit_file(path, after if followed else add_opaque_change(before, program))


def format_files(line: CommandLine, part: ExpandedCommand) -> None:
    """The files that a formatter names, with whatever it makes of them."""
    needed = set(FORMATTERS[part.command.name].split())
    if _CHECK_OPTIONS & set(part.words) or (needed and not needed & set(part.words)):
        return
    if _UNCHANGED_REPORT.search(line.text) and "reformatted" not in line.text:
        return
    for word in list_operands(part.words):
        path = line.files.resolve_path(word, part.cwd)
        if file_kinds.is_code(path):
            line.edit_file(path, add_opaque_change(line.content_or_empty(path), line.command))


def _list_searched_files(line: CommandLine, part: ExpandedCommand) -> list[str]:
    """What a search gives to an editing command: one name for all the files in a directory."""
    search = line.commands[part.position - part.command.stage]
    if part.command.stage == 0 and search.name != "find":
        return []
    words = search.argv[1:]
    named = [w.partition("=")[2] for w in words if w.startswith("--include=")]
    named += [after for word, after in pairwise(words) if word in ("-name", "--include")]
    places = [word for word in list_operands(words) if word not in named]
    if files := [place for place in places if file_kinds.is_code(place)]:
        return files
    if search.name == "find":
        where = words[0] if words and not words[0].startswith("-") else "."
    else:
        where = [".", *places[2 if search.name == "git" else 1 :]][-1]
    return [posixpath.join(where, named[0] if named else "*.py")]


def _parse_arguments(words: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Options, program and files; a program that is in a file counts as one that cannot be read."""
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

"""Programs that change files in place: sed, perl, and formatters."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise

from handoff import paths
from handoff.inference import content as contents
from handoff.inference import sed
from handoff.inference.line import Line, Part, operands

FORMATTERS = {
    "black": "", "isort": "", "pyupgrade": "", "rustfmt": "", "ed": "", "ex": "", "dos2unix": "",
    "autopep8": "-i", "yapf": "-i", "autoflake": "-i", "gofmt": "-w", "2to3": "-w", "prettier": "--write",
    "ruff": "--fix format", "eslint": "--fix", "awk": "inplace", "gawk": "inplace",
}  # fmt: skip
"""Their names, and the words of which one lets them write; none where they always do."""
_ONLY_LOOKS = {"--check", "--diff", "--dry-run", "--check-only", "-c"}
_LEFT_ALONE = re.compile(r"\b(?:left )?unchanged\b|No changes", re.I)
_IN_PLACE = re.compile(r"-[\dEalnprsuwz]*i(\.\S+|~)?|--in-place")
_ONE_SUBSTITUTION = re.compile(r"s(?:/[^\n]*/|\|[^\n]*\|)\w*")


def edit_in_place(line: Line, part: Part) -> None:
    """`sed -i` and `perl -pi`, whether named themselves or by `find -exec`."""
    words = part.words
    if part.simple.name != "find":
        _edit(line, part, part.simple.name, words)
    elif "-exec" in words and words[words.index("-exec") + 1 :][:1] == ("sed",):
        _edit(line, part, "sed", [w for w in words[words.index("-exec") + 2 :] if w not in ("{}", ";", "+")])


def _edit(line: Line, part: Part, name: str, words: Sequence[str]) -> None:
    options, program, names = _arguments(words)
    in_place = next(filter(None, map(_IN_PLACE.match, options)), None)
    if in_place is None or program is None:
        return
    is_perl = name in ("perl", "ruby")
    if is_perl:
        program = program.rstrip(";")
    followed = not is_perl or (_ONE_SUBSTITUTION.fullmatch(program) and "-0" not in "".join(options))
    extended = is_perl or any(re.match(r"-\w*[Er]|--regexp-extended", option) for option in options)
    for path in [line.files.path(name, part.cwd) for name in names or _searched(line, part)]:
        before = line.existing(path)
        if in_place[1]:
            line.write(path + in_place[1], before)
        after = sed.edited(before, line.files.known, program, extended=extended)
        line.change(path, after if followed else contents.opaque(before, program))


def format_files(line: Line, part: Part) -> None:
    """The files that a formatter names, with whatever it makes of them."""
    needed = set(FORMATTERS[part.simple.name].split())
    if _ONLY_LOOKS & set(part.words) or (needed and not needed & set(part.words)):
        return
    if _LEFT_ALONE.search(line.text) and "reformatted" not in line.text:
        return
    for word in operands(part.words):
        path = line.files.path(word, part.cwd)
        if paths.is_code(path):
            line.change(path, contents.opaque(line.existing(path), line.command))


def _searched(line: Line, part: Part) -> list[str]:
    """What a search gives to an editing command: one name for all the files in a directory."""
    search = line.commands[part.position - part.simple.stage]
    if part.simple.stage == 0 and search.name != "find":
        return []
    words = search.argv[1:]
    named = [w.partition("=")[2] for w in words if w.startswith("--include=")]
    named += [after for word, after in pairwise(words) if word in ("-name", "--include")]
    places = [word for word in operands(words) if word not in named]
    if files := [place for place in places if paths.is_code(place)]:
        return files
    if search.name == "find":
        where = words[0] if words and not words[0].startswith("-") else "."
    else:
        where = [".", *places[2 if search.name == "git" else 1 :]][-1]
    return [posixpath.join(where, named[0] if named else "*.py")]


def _arguments(words: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
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

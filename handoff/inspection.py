"""Which files a command line shows, and whether it searches."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise

from handoff.commands import SimpleCommand, parse, resolve

_SHOWERS = {
    "cat": "", "bat": "", "batcat": "", "tac": "", "nl": "bdfhilnpsvw", "less": "", "more": "", "head": "nc",
    "tail": "nc",
    "od": "AjNStw", "xxd": "lsc", "hexdump": "nsCe", "strings": "n", "pygmentize": "lfO", "view": "",
}  # fmt: skip
"""Programs that print files, with their one-letter options that take a word as value."""
_FILTERS = {
    *_SHOWERS,
    "sed",
    "awk",
    "gawk",
    "cut",
    "sort",
    "uniq",
    "tr",
    "tee",
    "fold",
    "column",
    "expand",
    "fmt",
}
_SEARCHERS = {"rg", "ag", "ack", "fd", "fdfind", "locate", "tree", "zgrep", "pcregrep"}
_GREPS = {"grep", "egrep", "fgrep"}


def reads(command: str) -> tuple[str, ...]:
    """The files whose content the command shows, as paths from where the shell stood; a grep is a search."""
    commands = parse(command)
    shown: list[str] = []
    for position, simple in enumerate(commands):
        if simple.shows_output and _reaches_the_end(commands, position):
            fed = [r.target for r in simple.redirects if r.operator == "<" and simple.name in _FILTERS]
            shown += [resolve(p, simple.cwd) for p in (*_shown(simple), *fed) if p not in ("-", "/dev/null")]
    return tuple(dict.fromkeys(shown))


def is_search(command: str) -> bool:
    """Whether a part of the command looks for names or text in files, not in a program's output."""
    commands = parse(command)
    for position, simple in enumerate(commands):
        piped_file = simple.stage > 0 and _shown(commands[position - simple.stage])
        if _searches(simple) or (simple.name in _GREPS and piped_file):
            return True
    return False


def _reaches_the_end(commands: Sequence[SimpleCommand], position: int) -> bool:
    """What a pipe hands on is shown only if every later stage lets content through."""
    simple = commands[position]
    rest = commands[position + 1 : position + simple.stages - simple.stage]
    return all(later.name in _FILTERS and later.shows_output for later in rest)


def _shown(simple: SimpleCommand) -> list[str]:
    name, words = simple.name, simple.argv[1:]
    if name in _SHOWERS:
        return _operands(words, _SHOWERS[name])
    if name == "sed":
        return _after_program(words, "ef", ("-i", "--in-place"))
    if name in ("awk", "gawk", "mawk"):
        return [p for p in _after_program(words, "fFv", ("-i",)) if "=" not in p]
    return []


def _operands(words: Sequence[str], valued: str) -> list[str]:
    found: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-") and len(word) > 1:
            skip = len(word) == 2 and word[1] in valued
        elif not word.startswith("+"):
            found.append(word)
    return found


def _after_program(words: Sequence[str], valued: str, in_place: tuple[str, ...]) -> list[str]:
    """The files of `sed` or `awk`: everything after the program, unless an option brings the program."""
    if any(w.startswith(in_place) or re.fullmatch(r"-[nrEsz]*i\S*", w) for w in words):
        return []
    found = _operands(words, valued)
    brings = any(w in ("-e", "-f", "--expression", "--file") for w in words)
    return found if brings else found[1:]


def _searches(simple: SimpleCommand) -> bool:
    name, words = simple.name, simple.argv[1:]
    flags = "".join(w[1:] for w in words if re.fullmatch(r"-[A-Za-z]+", w))
    if name in _GREPS:
        recursive = bool({"r", "R"} & set(flags)) or "--recursive" in words
        brings = "e" in flags or "f" in flags
        files = _operands(words, "ABCmef")[0 if brings else 1 :]
        return recursive or bool(files)
    if name == "find":
        acts = [posixpath.basename(b) for a, b in pairwise(words) if a in ("-exec", "-execdir", "-ok")]
        return "-delete" not in words and all(
            a in (*_GREPS, *_FILTERS - {"sed"}, "ls", "wc", "echo") for a in acts
        )
    if name == "git":
        return words[:1] in (("grep",), ("ls-files",)) or (
            words[:1] == ("log",) and any(w.startswith(("-S", "-G", "--grep")) for w in words)
        )
    if name == "ls":
        return "R" in flags or "--recursive" in words
    return name in _SEARCHERS and (simple.stage == 0 or name != "rg")

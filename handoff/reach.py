"""How far the effects of a command line can reach: nowhere, to the shell's directory, or anywhere.

It reads the text by itself and knows few words: whatever it does not know can do anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

Reach = Literal["nothing", "shell", "anything"]

_LOOKERS = {
    ":", "basename", "cat", "cmp", "cut", "df", "diff", "dirname", "du", "echo", "egrep", "false", "fgrep", "grep",
    "head", "id", "ls", "nl", "pwd", "readlink", "realpath", "stat", "tac", "tail", "tr", "true", "type", "uname", "wc",
    "whereis", "which", "whoami",
}  # fmt: skip
"""Programs that change nothing, whatever they are given."""
_GIT = {"blame", "diff", "grep", "log", "ls-files", "rev-parse", "shortlog", "show", "status"}
# Git takes beginnings of long options for the whole.
_GIT_WRITES = re.compile(r"--o(?!neline$|nly-matching$|thers$)|--e|--tex|-[a-zA-Z]*O")
_FIND_ACTS = ("-delete", "-exec", "-ok", "-fprint", "-fls")
_SED_PRINTS = re.compile(r"[\d,$ ;]*p(;[\d,$ ]*p)*")
_ASSIGNS = re.compile(r"%[^a-zA-Z%]*[hjlLtz]*n")
_DATE = re.compile(r"\+.*|-[uR]|-I\w*", re.DOTALL)
_LONGEST = 4_000

_SPACE = re.compile(r"[ \t]+|#[^\n]*")
_TO_NOWHERE = re.compile(r"(>>?|&>>?)[ \t]*/dev/null(?=[\s;|]|$)|>&[12](?=[\s;|]|$)")
_FROM_FILE = re.compile(r"<(?![<>&(])[ \t]*(?=[\w./'\"-])")
_BETWEEN = re.compile(r"&&|\|\||;(?!;)|\n|\|(?!&)")
_PLAIN = re.compile(r"[^\s\\'\"`$;&|<>(){}#!*?\[\]~\x00-\x1f]+")
_GLOB = re.compile(r"[*?\[\]~{}!#]")
_ESCAPED = re.compile(r"\\([^\n\x00-\x1f])")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"((?:[^"\\`$]|\\[^\n]|\$[A-Za-z_]\w*|\$(?=["\s]))*)"')
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[?#0-9])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")


class _Word(NamedTuple):
    text: str
    literal: bool = True
    """It is what it says: nothing in it is expanded that could be an option or a second word."""


def reach(command: str) -> Reach:
    """Never too little, but for programs, functions and settings of git that the agent gave the names of others."""
    commands = _simple_commands(command)
    if not commands:
        return "anything"
    reached = {_of(words) for words in commands}
    if "anything" in reached:
        return "anything"
    return "shell" if "shell" in reached else "nothing"


def _simple_commands(text: str) -> list[list[_Word]]:
    """The words of each simple command; empty where anything stands that is not known here."""
    if len(text) > _LONGEST or _CONTROL.search(text):
        return []
    found: list[list[_Word]] = [[]]
    place = 0
    while place < len(text):
        if space := _SPACE.match(text, place):
            place = space.end()
        elif between := _BETWEEN.match(text, place):
            place = between.end()
            if found[-1]:
                found.append([])
            elif between[0] != "\n":
                return []
        elif nowhere := _TO_NOWHERE.match(text, place):
            place = nowhere.end()
        else:
            source = _FROM_FILE.match(text, place)
            word, end = _word(text, source.end() if source else place)
            if word is None:
                return []
            # A number that stands right before a redirection belongs to it.
            redirected = text[end : end + 1] in ("<", ">")
            if redirected and word.text.endswith("}"):
                return []  # `{name}>` sets a variable
            if source is None and not (redirected and re.fullmatch("[0-9]+", text[place:end])):
                found[-1].append(word)
            place = end
    return [words for words in found if words]


def _word(text: str, place: int) -> tuple[_Word | None, int]:
    parts: list[str] = []
    literal, start = True, place
    while place < len(text) and text[place] not in " \t\n;&|<>":
        if plain := _PLAIN.match(text, place):
            parts.append(plain[0])
            place = plain.end()
        elif quoted := _SINGLE.match(text, place) or _ESCAPED.match(text, place):
            parts.append(quoted[1])
            place = quoted.end()
        elif double := _DOUBLE.match(text, place):
            parts.append(re.sub(r'\\([\\"$`])', r"\1", double[1]))
            # A dollar sign without its backslash stands for what nobody here knows.
            literal = literal and "$" not in double[1].replace(r"\$", "")
            place = double.end()
        elif variable := _VARIABLE.match(text, place):
            parts.append(variable[0])
            literal, place = False, variable.end()
        elif glob := _GLOB.match(text, place):
            # What a pattern stands for begins as the pattern does: with a path, it is no option.
            literal = literal and place > start and text[start] not in "-'\"\\{" and glob[0] not in "{}"
            parts.append(glob[0])
            place = glob.end()
        else:
            return None, place
    literal = literal or parts in (["["], ["]"])  # alone, a bracket is no pattern
    return (_Word("".join(parts), literal), place) if place > start else (None, place)


def _of(words: Sequence[_Word]) -> Reach:
    first, rest = words[0], words[1:]
    if not first.literal:
        return "anything"
    if first.text in _LOOKERS:
        return "nothing"
    if first.text in ("cd", "pushd", "popd"):
        return "shell"
    known = _WITH_OPTIONS.get(first.text)
    if known is None or not all(word.literal for word in rest):
        return "anything"
    return "nothing" if known([word.text for word in rest]) else "anything"


def _git(words: Sequence[str]) -> bool:
    return words[:1] != [] and words[0] in _GIT and not any(map(_GIT_WRITES.match, words))


def _find(words: Sequence[str]) -> bool:
    return not any(word.startswith(_FIND_ACTS) for word in words)


def _sed(words: Sequence[str]) -> bool:
    return words[:1] == ["-n"] and not any(word.startswith("-") for word in words[1:]) and _prints(words)


def _prints(words: Sequence[str]) -> bool:
    return len(words) > 1 and _SED_PRINTS.fullmatch(words[1]) is not None


def _sort(words: Sequence[str]) -> bool:
    return not any(word.startswith("--") or re.match(r"-.*[oT]", word) for word in words)


def _uniq(words: Sequence[str]) -> bool:
    return all(re.fullmatch(r"-[cduiz]+", word) for word in words)  # the second file would be written to


def _rg(words: Sequence[str]) -> bool:
    return not any(re.match(r"--(pr|hos|se)|-[a-zA-Z]*z", word) for word in words)


def _test(words: Sequence[str]) -> bool:
    return not any(word == "-v" or "[" in word for word in words)  # subscripts are computed, and can assign


_WITH_OPTIONS: dict[str, Callable[[Sequence[str]], bool]] = {
    "[": _test,
    "date": lambda words: all(map(_DATE.fullmatch, words)),
    "file": lambda words: not any(word.startswith("-") and word not in ("-b", "-i") for word in words),
    "find": _find,
    "git": _git,
    "printf": lambda words: (
        not words[0].startswith("-") and not _ASSIGNS.search(words[0]) if words else False
    ),
    "rg": _rg,
    "sed": _sed,
    "sort": _sort,
    "test": _test,
    "uniq": _uniq,
}
"""Programs of which some options write or run something: whether these words are none of them."""

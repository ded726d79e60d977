"""The state of an agent's shell, parsed from bash's output."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from langgraph_takeover.sandbox.interface import MAX_SHELL_STATE_CHARS
from langgraph_takeover.sandbox.shell.state import (
    ALIAS_NAME,
    FATAL_OPTIONS,
    FIXED_SHOPTS,
    FUNCTION_NAME,
    RESERVED_SIGNAL,
    RESERVED_WORDS,
    SHELL_VARIABLES,
    TO_TEXT,
    ShellFunction,
    ShellState,
    ShellVariable,
)

_WORD = re.compile(
    r"""(?:'[^']*+'|"(?:[^"\\$`]++|\\.)*+"|\$'(?:[^'\\]++|\\.)*+'|\\.|[^\s'"\\$`()<>;&|\[\]])++""", re.DOTALL
)
_VARIABLE = re.compile(r"declare -([A-Za-z-]+) ([A-Za-z_]\w*)(=\(|=|(?=\n|\Z))", re.ASCII)
_KEYWORD = "function "
"""Before a function's name, if that is a reserved word."""
_FUNCTION = re.compile(r"^declare -(f[a-z]*) (\S+)$", re.MULTILINE)
_SHOPT = re.compile(r"^shopt -([su]) (\w+)$", re.MULTILINE)
_OPTION = re.compile(r"^set ([+-])o ([\w-]+)$", re.MULTILINE)
_TRAP, _TRAP_SIGNAL = re.compile("trap -- "), re.compile(r" ([\w+-]+)(?=\n|\Z)")
_PIECE = re.compile(
    r"""'([^']*+)'|"((?:[^"\\]++|\\.)*+)"|\$'((?:[^'\\]++|\\.)*+)'|\\(.)|([^'"\\$]+)""", re.DOTALL
)
_IN_DOUBLE_QUOTES = re.compile(r'\\([$`"\\])|\\\n')
_ANSI_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_ANSI = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "E": "\x1b",
    "e": "\x1b",
}

# The parts of a shell's state, each after a mark that no variable can contain, because of its NUL; no single quotes,
# because it also becomes the text of a trap.
PRINT_STATE = (
    '\\unset -f builtin; \\builtin printf "\\0%s" {mark}; \\builtin shopt -p; \\builtin printf "\\0%s" {mark}; '
    '\\builtin declare -p; \\builtin printf "\\0%s" {mark}; \\builtin declare -p BASH_ALIASES; '
    '\\builtin printf "\\0%s" {mark}; \\builtin declare -F; \\builtin printf "\\0%s" {mark}; \\builtin declare -f; '
    '\\builtin printf "\\0%s" {mark}; \\builtin umask; \\builtin printf "\\0%s" {mark}; '
    '\\builtin printf "%s\\0%s\\0" "$PWD" "${{OLDPWD:-$PWD}}"; \\builtin printf "\\0%s" {mark}; '
    '\\builtin set +o; \\builtin printf "\\0%s" {mark}; '
    # In POSIX mode, bash lists other names, of every signal.
    '\\builtin set +o posix; \\builtin trap -p; \\builtin printf "\\0%s" {mark}'
)
_PART_COUNT = 11


def parse_printed_state(printed: str, mark: str) -> ShellState | None:
    """Parse the state that a shell printed by `PRINT_STATE`; None if it is missing or too long.

    Parts that cannot be data, such as a reference to an array's element, are left out.
    """
    parts = printed.split(f"\0{mark}")
    if len(parts) != _PART_COUNT:
        return None
    _, shopts, variables, aliases, names, functions, umask, directories, options, traps, _ = parts
    try:
        directory, previous, _ = directories.split("\0")
        state = ShellState(
            directory=parse_directory(directory),
            previous_directory=parse_directory(previous),
            umask=umask.strip() or None,
            variables=dict(_parse_variables(variables)),
            functions=dict(_parse_functions(names, functions)),
            aliases=dict(_parse_aliases(aliases)),
            shopt={name: sign == "s" for sign, name in _SHOPT.findall(shopts) if name not in FIXED_SHOPTS},
            options={
                name: sign == "-" for sign, name in _OPTION.findall(options) if name not in FATAL_OPTIONS
            },
            traps={name: code for name, code in _parse_traps(traps) if name != RESERVED_SIGNAL},
        )
    except ValueError:
        return None
    return state if len(state.to_json()) <= MAX_SHELL_STATE_CHARS else None


class _StateScanner:
    """Shell output, read once from start to end, whatever it contains."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def find_statements(self, head: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yield the starts of statements, each at the start of a line that no earlier statement has used."""
        while self._at < len(self._text):
            if (found := self.match(head)) is not None:
                yield found
            self._at = (self._text.find("\n", self._at) + 1) or len(self._text)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found is not None else self._at
        return found

    def skip(self, expected: str) -> bool:
        is_there = self._text.startswith(expected, self._at)
        self._at += len(expected) if is_there else 0
        return is_there

    def read_word(self) -> str | None:
        """Return the value of the next word; None if it is missing or needs expansion."""
        found = self.match(_WORD)
        return None if found is None else _to_json_text(_unquote(found[0]))

    def read_elements(self) -> dict[str, str] | None:
        """Return the elements of an array up to its closing parenthesis; None if something else comes first."""
        found: dict[str, str] = {}
        while self.skip("["):
            key = self.read_word()
            if key is None or not self.skip("]="):
                return None
            value = self.read_word()
            if value is None:
                return None
            found[key] = value
            self.skip(" ")
        return found if self.skip(")") else None

    def is_at_end_of_line(self) -> bool:
        return self._at == len(self._text) or self._text[self._at] == "\n"


def _parse_variables(printed: str) -> Iterator[tuple[str, ShellVariable]]:
    text = _StateScanner(printed)
    for head in text.find_statements(_VARIABLE):
        letters, name, assigned = head.groups()
        value = text.read_word() if assigned == "=" else None
        elements = text.read_elements() if assigned == "=(" else None
        is_whole = not assigned or value is not None or elements is not None
        if is_whole and text.is_at_end_of_line() and not SHELL_VARIABLES.fullmatch(name):
            with contextlib.suppress(ValueError):
                attributes = letters.replace("-", "")
                yield name, ShellVariable(attributes=attributes, value=value, elements=elements)


def _parse_aliases(printed: str) -> Iterator[tuple[str, str]]:
    text = _StateScanner(printed)
    for head in text.find_statements(_VARIABLE):
        for name, value in ((text.read_elements() if head[3] == "=(" else None) or {}).items():
            if ALIAS_NAME.fullmatch(name):
                yield name, value


def _parse_traps(printed: str) -> Iterator[tuple[str, str]]:
    text = _StateScanner(printed)
    for _ in text.find_statements(_TRAP):
        code, signal = text.read_word(), text.match(_TRAP_SIGNAL)
        if code is not None and signal is not None:
            yield signal[1], code


def _parse_functions(names: str, printed: str) -> Iterator[tuple[str, ShellFunction]]:
    """Return the functions, whose definitions bash prints in the order of their names."""
    known = _FUNCTION.findall(names)
    heads: list[tuple[int, int]] = []
    for _, name in known:
        head = _find_head(printed, name, heads[-1][1] if heads else 0)
        if head is None:
            return
        heads.append(head)
    heads.append((len(printed), len(printed)))
    for (letters, name), (_, begin), (end, _) in zip(known, heads, heads[1:], strict=False):
        definition = printed[begin:end].rstrip("\n")
        attributes = letters.removeprefix("f")
        if attributes:
            definition = definition.removesuffix(f"declare -{letters} {name}").rstrip("\n")
        if FUNCTION_NAME.fullmatch(name) and name not in RESERVED_WORDS and set(attributes) <= set("rtx"):
            inside = re.fullmatch(r"\{ ?\n(.*)\n\}", definition, re.DOTALL)
            yield (
                _to_json_text(name),
                ShellFunction(
                    attributes=attributes, commands=_to_json_text(inside[1] if inside else definition)
                ),
            )


def _find_head(printed: str, name: str, start: int) -> tuple[int, int] | None:
    """Return where the first line of a function's definition starts and ends; None if no definition follows `start`."""
    head = f"{name} () \n"
    while (found := printed.find(head, start)) >= 0:
        begin = found - len(_KEYWORD) if printed.endswith(_KEYWORD, 0, found) else found
        if begin == 0 or printed[begin - 1] == "\n":
            return begin, found + len(head)
        start = found + 1
    return None


def _unquote(word: str) -> str:
    """Return the value of a bash word that needs no expansion."""
    return "".join(_unquote_piece(match) for match in _PIECE.finditer(word))


def _unquote_piece(match: re.Match[str]) -> str:
    single, double, ansi, escaped, plain = match.groups()
    if double is not None:
        return _IN_DOUBLE_QUOTES.sub(r"\1", double) if "\\" in double else double
    if ansi is not None:
        # As bytes, because several of them can form one character.
        raw = _ANSI_ESCAPE.sub(_unescape_ansi, ansi).encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "surrogateescape")
    return next(part for part in (single, escaped, plain) if part is not None)


def _unescape_ansi(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] in "01234567":
        return bytes([int(escape, 8) & 0xFF]).decode("utf-8", "surrogateescape")
    return _ANSI.get(escape, escape)


def parse_directory(printed: str) -> str | None:
    """Return the directory that a shell names as its own; None if it names none, because an agent can set `PWD`."""
    return _to_json_text(printed) if printed.startswith("/") and "\0" not in printed else None


def _to_json_text(printed: str) -> str:
    """Convert shell output, decoded with `surrogateescape`, to text that JSON can hold."""
    return printed if printed.isascii() else printed.translate(TO_TEXT)

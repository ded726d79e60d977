"""The state of an agent's shell: as data, parsed from bash's output, and as code that restores it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox.interface import MAX_SHELL_STATE_CHARS, SnapshotCorruptError

SHELL_VARIABLES = re.compile(
    r"""BASH(?:OPTS|PID|_(?:ALIASES|ARG[CV]|ARGV0|CMDS|COMMAND|EXECUTION_STRING|LINENO|SOURCE|SUBSHELL|VERSINFO
    |VERSION|XTRACEFD))? | COMP_WORDBREAKS | DIRSTACK | EPOCH(?:REALTIME|SECONDS) | EUID | FUNCNAME | GROUPS | HISTCMD
    | LINENO | OLDPWD | PIPESTATUS | PPID | PWD | S?RANDOM | SECONDS | SHELLOPTS | SHLVL | UID | _ | __command
    | __exit_code""",
    re.VERBOSE,
)
"""Variables that bash, or the frame of a command, sets itself: assigning them is an error or affects the shell."""
RESERVED_WORDS = frozenset({"builtin", "eval", "unset"})
"""The frame of every command uses these words; no function has such a name in a restored shell."""
FATAL_OPTIONS = frozenset({"noexec", "onecmd", "privileged"})
FIXED_SHOPTS = frozenset({"login_shell", "restricted_shell"})
RESERVED_SIGNAL = "SIGRTMAX"

# JSON holds no bytes that are not UTF-8: byte N becomes the code point that is this much above it, which no character
# uses; a character with such a code point is written as its bytes.
_BYTE_OFFSET = 0x10FF00
TO_TEXT = {0xDC00 + byte: chr(_BYTE_OFFSET + byte) for byte in range(0x80, 0x100)} | {
    _BYTE_OFFSET + byte: "".join(chr(_BYTE_OFFSET + part) for part in chr(_BYTE_OFFSET + byte).encode())
    for byte in range(0x80, 0x100)
}
FROM_TEXT = {_BYTE_OFFSET + byte: 0xDC00 + byte for byte in range(0x80, 0x100)}


def _reject_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a shell's text cannot contain NUL")
    return text


Text = Annotated[str, AfterValidator(_reject_nul)]
"""Any text of a shell; bytes that are not UTF-8 are written as in `TO_TEXT`."""
Directory = Annotated[Text, Field(pattern="^/")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.:@%+,][A-Za-z0-9_.:@%+,-]*")
ALIAS_NAME = re.compile(r"""[^\s\x00/$`='"\\|&;()<>]+""")
FunctionName = Annotated[str, Field(pattern=f"^{FUNCTION_NAME.pattern}$")]
AliasName = Annotated[str, Field(pattern=f"^{ALIAS_NAME.pattern}$")]
OptionName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
SignalName = Annotated[str, Field(pattern=r"^(?:EXIT|DEBUG|ERR|RETURN|SIG[A-Z0-9]+(?:[+-][0-9]+)?)$")]
_REFERENCE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INDEX = re.compile(r"[0-9]{1,18}")


class ShellVariable(Frozen):
    """One variable: its attributes as the letters of `declare`, and its value or elements, if any."""

    attributes: str = Field(default="", pattern="^[aAcilnrtux]*$")
    value: Text | None = None
    elements: dict[Text, Text] | None = None

    @model_validator(mode="after")
    def _require_consistent(self) -> Self:
        if "n" in self.attributes and not _REFERENCE.fullmatch(self.value or ""):
            raise ValueError("a reference names a variable, not an element")
        if self.elements is not None:
            if not {"a", "A"} & set(self.attributes) or self.value is not None:
                raise ValueError("only arrays have elements")
            if "A" not in self.attributes and not all(map(_INDEX.fullmatch, self.elements)):
                raise ValueError("the index of an array is a number")
            if "" in self.elements:
                raise ValueError("the key of an array is not empty")
        return self


class ShellFunction(Frozen):
    """One function: its attributes as the letters of `declare`, and its list of commands."""

    attributes: str = Field(default="", pattern="^[rtx]*$")
    commands: Text


class ShellState(Frozen):
    """The state of a shell. Only functions, aliases and traps hold code; nothing here is run to restore it."""

    directory: Directory | None = None
    previous_directory: Directory | None = None
    umask: str | None = Field(default=None, pattern="^[0-7]{3,4}$")
    variables: dict[VariableName, ShellVariable] = Field(default_factory=dict)
    functions: dict[FunctionName, ShellFunction] = Field(default_factory=dict)
    aliases: dict[AliasName, Text] = Field(default_factory=dict)
    shopt: dict[OptionName, bool] = Field(default_factory=dict)
    options: dict[OptionName, bool] = Field(default_factory=dict)
    traps: dict[SignalName, Text] = Field(default_factory=dict)

    def to_json(self) -> str:
        return self.model_dump_json(exclude_defaults=True)

    def relocate(self, new_directories: Mapping[str, str]) -> ShellState:
        """Replace directories in the shell's own and in values; code stays unchanged."""
        replace_directories = build_relocation(new_directories)
        if replace_directories is None:
            return self

        def relocate_variable(variable: ShellVariable) -> ShellVariable:
            if variable.elements is not None:
                elements = {key: replace_directories(value) for key, value in variable.elements.items()}
                return variable.model_copy(update={"elements": elements})
            return (
                variable
                if variable.value is None
                else variable.model_copy(update={"value": replace_directories(variable.value)})
            )

        return self.model_copy(
            update={
                "directory": self.directory and replace_directories(self.directory),
                "previous_directory": self.previous_directory
                and replace_directories(self.previous_directory),
                "variables": {name: relocate_variable(each) for name, each in self.variables.items()},
            }
        )


def build_relocation(new_directories: Mapping[str, str]) -> Callable[[str], str] | None:
    """Return a function that replaces directories in a text; None if none has another name."""
    pairs = {
        before: after for before, after in new_directories.items() if before != after and before.strip("/")
    }
    if not pairs:
        return None
    longest_first = sorted(pairs, key=len, reverse=True)
    found = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])")
    return lambda text: found.sub(lambda match: pairs[match[0]], text)


def parse_state(text: str) -> ShellState:
    """Parse the state in a snapshot, which is JSON. Raises SnapshotCorruptError."""
    if len(text) > MAX_SHELL_STATE_CHARS:
        raise SnapshotCorruptError(
            f"the snapshot's shell state is longer than {MAX_SHELL_STATE_CHARS:,} characters"
        )
    if not text.startswith("{"):
        raise SnapshotCorruptError("the snapshot's shell state is not JSON (take a new snapshot)")
    try:
        return ShellState.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SnapshotCorruptError(
            f"the snapshot's shell state is malformed at {where!r:.80}: {first['msg']:.120}"
        ) from None


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
        return None if found is None else to_json_text(_unquote(found[0]))

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
                to_json_text(name),
                ShellFunction(
                    attributes=attributes, commands=to_json_text(inside[1] if inside else definition)
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
    return to_json_text(printed) if printed.startswith("/") and "\0" not in printed else None


def to_json_text(printed: str) -> str:
    """Convert shell output, decoded with `surrogateescape`, to text that JSON can hold."""
    return printed if printed.isascii() else printed.translate(TO_TEXT)


def render_restore_code(state: ShellState) -> str:
    """Render code that gives a new bash this state; no code of the state runs meanwhile.

    Each line is independent, because bash skips the rest of a line after a failed assignment.
    """
    return "\n".join(_render_lines(state)).translate(FROM_TEXT)


def _render_lines(state: ShellState) -> Iterator[str]:
    quoted = _quote
    yield "\\builtin shopt -u expand_aliases"
    variables = {name: each for name, each in state.variables.items() if not SHELL_VARIABLES.fullmatch(name)}
    for name, variable in variables.items():
        # Without the attributes that make bash evaluate an assignment: they come after.
        if "n" in variable.attributes:
            continue
        array = re.sub("[^aA]", "", variable.attributes)[:1]
        if variable.elements is not None:
            # Bash reads elements behind the plain word alone, which names no function yet, and no alias; and
            # `+i` before them it takes for `-i`.
            elements = " ".join(f"[{quoted(key)}]={quoted(each)}" for key, each in variable.elements.items())
            yield f"declare -{array} {name}=({elements})"
        elif variable.value is None:
            yield f"\\builtin declare -{array or '-'} {name}"
        else:
            yield f"\\builtin declare +i -- {name}={quoted(variable.value)}"
    for letter in "ciluxt":
        having = [
            name
            for name, each in variables.items()
            if letter in each.attributes and "n" not in each.attributes
        ]
        if having:
            yield f"\\builtin declare -{letter} {' '.join(having)}"
    for name, variable in variables.items():
        if "n" in variable.attributes:
            yield f"\\builtin declare -n {name}={quoted(variable.value or '')}"
    readonly = [name for name, each in variables.items() if "r" in each.attributes]
    if readonly:
        yield f"\\builtin declare -r {' '.join(readonly)}"
    # How functions are read depends on some options.
    yield "\\builtin set +o posix +o errexit; \\builtin shopt -s extglob"
    for name, function in state.functions.items():
        yield from _render_definition(name, function)
    for name, value in state.aliases.items():
        yield f"\\builtin alias -- {quoted(f'{name}={value}')}"
    if state.umask is not None:
        yield f"\\builtin umask {state.umask}"
    for directory in (state.previous_directory, state.directory):
        if directory is not None:
            yield f"\\builtin cd -- {quoted(directory)}"
    for sign, on in (("-u", False), ("-s", True)):
        names = [name for name, each in state.shopt.items() if each == on and name not in FIXED_SHOPTS]
        # Each option for compatibility with an older bash is off at first, and unsetting it sets a variable.
        names = [name for name in names if on or not name.startswith("compat")]
        if names:
            yield f"\\builtin shopt {sign} {' '.join(names)}"
    options = {name: on for name, on in state.options.items() if name not in FATAL_OPTIONS}
    # An option that this bash lacks would hide those after it; `xtrace` and the like come last.
    for name, on in options.items():
        yield f"\\builtin set {'-' if on else '+'}o {name} || \\builtin :"
    for name in sorted(state.traps, key=lambda name: name == "DEBUG"):
        if name != RESERVED_SIGNAL:
            yield f"\\builtin trap -- {quoted(state.traps[name])} {name} || \\builtin :"


def _render_definition(name: str, function: ShellFunction) -> Iterator[str]:
    """Render the definition of a function, unless its commands would end the definition early.

    Bash decides, in subshells that parse and run nothing: it must be able to parse the commands both between braces
    and between parentheses. Commands that close either are invalid in the other.
    """
    if name in RESERVED_WORDS:
        return
    # The text is written once, because each nested quotation would be several times as long.
    yield f"__command={_quote(function.commands)}"
    trials = " && ".join(
        f"( \\builtin eval $'\\\\builtin set -n\\n__trial () {begin}\\n'\"$__command\"$'\\n{end}' )"
        for begin, end in ("{}", "()")
    )
    letters = "".join(f" && \\builtin declare -f{each} {name}" for each in function.attributes)
    yield f"{trials} && \\builtin eval $'function {name} {{\\n'\"$__command\"$'\\n}}'{letters}"
    yield "\\builtin unset -v __command"


def _quote(text: str) -> str:
    """Quote the text as one word of bash, at most twice as long."""
    if "'" not in text:
        return f"'{text}'"
    return "$'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

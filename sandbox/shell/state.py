"""The state of an agent's shell as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from langgraph_takeover.sandbox.interface import MAX_SHELL_STATE_CHARS, Frozen, SnapshotCorruptError

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
        pairs = {
            before: after
            for before, after in new_directories.items()
            if before != after and before.strip("/")
        }
        if not pairs:
            return self
        longest_first = sorted(pairs, key=len, reverse=True)
        found = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])")

        def replace_directories(text: str) -> str:
            return found.sub(lambda match: pairs[match[0]], text)

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

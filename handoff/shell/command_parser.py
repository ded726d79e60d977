"""Parse a shell command line into the simple commands that it runs."""

from __future__ import annotations

import re
from functools import lru_cache

from langgraph_takeover.handoff.shell import wrappers
from langgraph_takeover.handoff.shell.commands import Place, SimpleCommand
from langgraph_takeover.handoff.shell.syntax_reader import Context, ExitCodeMeaning, SyntaxReader
from langgraph_takeover.handoff.shell.windows import (
    WINDOWS_SHELLS,
    find_program_name,
    is_powershell,
    translate,
)

_PLAIN_COMMAND = re.compile(r" *[\w./@%+,:-]+(?: +[\w./=:,@%+-]+)*[ \n]*")
"""A single command without quotes, operators or expansions, for which splitting at spaces is enough."""
_SHELL_KEYWORDS = {
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "function", "select",
    "in", "coproc", "bash", "sh", "zsh", "dash", "ksh", "eval", "export", "declare", "local", "readonly", "typeset",
    "unset", "unsetenv", *WINDOWS_SHELLS,
}  # fmt: skip


def parse_command(command: str) -> tuple[SimpleCommand, ...]:
    """The simple commands of a command line, in order; unparsable parts are omitted."""
    return read_line(command)[0]


def find_place_after(command: str) -> Place:
    """The directory of the shell after a command line."""
    return read_line(command)[1]


@lru_cache(maxsize=256)
def read_line(command: str) -> tuple[tuple[SimpleCommand, ...], Place]:
    """The simple commands, and the place of the shell after them."""
    if is_powershell(command):
        command = translate(command, "powershell")
    reader = SyntaxReader()
    if _PLAIN_COMMAND.fullmatch(command):
        unwrapped = wrappers.unwrap_command(command.split())
        if find_program_name(unwrapped.argv[0]).lower() not in _SHELL_KEYWORDS:
            reader.apply_builtin(unwrapped.argv)
            return (SimpleCommand(argv=unwrapped.argv, environment=unwrapped.environment),), reader.place
    reader.read_text(command, Context("", 0, 1, ExitCodeMeaning.ALL))
    return tuple(reader.commands), reader.place


_SYNTAX_ERROR = re.compile(
    r"^(?:\S*sh|\S+\.sh): (?P<eval>eval: )?(?:-c: )?line (?P<number>\d{1,6}): (?:syntax error|unexpected EOF|`)",
    re.M,
)
_QUOTED_LINE = re.compile(r"^\S+: (?:eval: |-c: )?line \d+: `(.*)'$", re.M)


def find_executed_part(command: str, output: str) -> str:
    """The part of a command line that ran: Bash reads line by line and stops at a syntax error."""
    reports_error = "syntax error" in output or "unexpected EOF" in output
    error = _SYNTAX_ERROR.search(output) if reports_error else None
    if error is None:
        return command
    lines = command.split("\n")
    quoted = _QUOTED_LINE.search(output)
    error_lines = [number for number, line in enumerate(lines) if quoted and line == quoted[1]]
    if error_lines:
        return "\n".join(lines[: error_lines[0]])
    if error["eval"]:
        return ""  # a long-lived shell counts the lines of all of its earlier commands
    before = int(error["number"]) - 1
    return "\n".join(lines[:before]) if before < len(lines) else command

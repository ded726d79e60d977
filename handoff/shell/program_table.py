"""Tables of programs: their arguments that name files, and their other spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from langgraph_takeover.handoff.shell.runners import find_python_target
from langgraph_takeover.handoff.shell.syntax import SimpleCommand
from langgraph_takeover.handoff.shell.syntax_reader import parse_command
from langgraph_takeover.handoff.shell.windows import find_program_name


class Program(NamedTuple):
    """The file effects of one program, by its arguments."""

    harmless_patterns: tuple[re.Pattern[str], ...] = ()
    """Arguments with which it provably changes nothing: one pattern per word, the last for all further words."""
    edit_pattern: re.Pattern[str] | None = None
    """Matches the start of an argument that makes it change files; empty if it always does."""
    is_mostly_read_only: bool = False
    """It rarely changes a file, although some arguments could make it."""
    valued_options: str | None = None
    """One-letter options that take a value, if it prints the files named by its operands; else None."""
    is_filter: bool = False
    """It prints the content of its standard input."""


def _row(
    names: str,
    *harmless: str,
    edits: str | None = None,
    read_only: bool = False,
    valued: str | None = None,
    filters: bool = False,
) -> dict[str, Program]:
    patterns = tuple(re.compile(pattern, re.DOTALL) for pattern in harmless)
    edit_pattern = None if edits is None else re.compile(edits)
    shows_files = valued is not None
    return dict.fromkeys(
        names.split(),
        Program(patterns, edit_pattern, read_only or shows_files, valued, filters or shows_files),
    )


_ANY = ".*"
ALWAYS_HARMLESS = (re.compile(_ANY, re.DOTALL),)
_GIT_READS = "blame|diff|grep|log|ls-files|rev-parse|shortlog|show|status"
# Git accepts abbreviated long options.
_GIT_WRITES = r"--o(?!(?:neline|nly-matching|thers)\Z)|--e|--tex|-[a-zA-Z]*O"
GIT_RESTORES = {"stash", "checkout", "restore", "reset", "clean"}
_GIT_EDITS = (
    r"(?:am|apply|checkout|cherry-pick|clean|merge|mv|pull|rebase|reset|restore|revert|rm|stash|switch)\Z"
)
_FIND_ACTIONS = "-delete|-exec|-ok|-fprint|-fls"
_NO_SUBSCRIPT = r"(?!-v\Z)[^[]*"  # Bash evaluates a subscript as arithmetic, which can assign variables.
PROGRAMS: dict[str, Program] = {
    **_row(": basename cmp df diff dirname du echo false id ls pwd readlink realpath", _ANY),
    **_row("stat true type uname wc whereis which whoami egrep fgrep grep", _ANY),
    **_row("cat tac", _ANY, valued=""),
    **_row("nl", _ANY, valued="bdfhilnpsvw"),
    **_row("head tail", _ANY, valued="nc"),
    **_row("cut tr", _ANY, filters=True),
    **_row("sort", r"(?!--|-.*[oT]).*", filters=True),
    **_row("uniq", r"-[cduiz]+", filters=True),  # a second operand is an output file
    **_row("column expand fmt fold", filters=True),
    **_row("bat batcat less more view", valued=""),
    **_row("od", valued="AjNStw"),
    **_row("xxd", valued="lsc"),
    **_row("hexdump", valued="nsCe"),
    **_row("strings", valued="n"),
    **_row("pygmentize", valued="lfO"),
    **_row("sed", "-n", r"[\d,$ ;]*p(;[\d,$ ]*p)*", r"(?!-).*", edits="-[nrEsz]*i|--in-place", valued="ef"),
    **_row("awk gawk mawk", edits="-i", valued="fFv"),
    **_row("[ test", _NO_SUBSCRIPT, read_only=True),
    **_row("date", r"\+.*|-[uR]|-I\w*", read_only=True),
    **_row("printf", r"(?!-)(?!.*%[^a-zA-Z%]*[hjlLtz]*n).*", _ANY, read_only=True),
    **_row("file", r"(?!-).*|-[bi]"),
    **_row("rg", r"(?!--(?:pr|hos|se)|-[a-zA-Z]*z).*"),
    **_row("find", rf"(?!{_FIND_ACTIONS}).*", edits=_FIND_ACTIONS, read_only=True),
    **_row("git", _GIT_READS, rf"(?!{_GIT_WRITES}).*", edits=_GIT_EDITS),
    **_row("cd pushd popd export set sleep source . exit", read_only=True),
    **_row("perl ruby", edits=r"-\w*[ie]"),
    **_row("tee", edits="", filters=True),
    **_row("patch apply_patch mv cp rm ln install rsync tar unzip ed ex vim vi dd truncate touch", edits=""),
    **_row("black autopep8 yapf isort autoflake pyupgrade 2to3 prettier gofmt rustfmt", edits=""),
    **_row("dos2unix unix2dos shutil", edits=""),
}  # fmt: skip
_UNKNOWN_PROGRAM = Program()


def find_program(name: str) -> Program:
    """The row of a program; an empty row for an unknown program."""
    return PROGRAMS.get(name, _UNKNOWN_PROGRAM)


_NOT_FOUND = re.compile(
    r"(?:^|: )(?P<program>[^\s:]+): (?:command )?not found\b"
    r"|^(?:\S*/)?env: [‘'](?P<env>[^’'\n]+)[’']: No such file or directory"
    r"|^\S*(?:python|pypy)[\d.]*: No module named (?P<module>[\w.]+)",
    re.MULTILINE,
)
_HINTS = ("not found", "No such file or directory", "No module named")
_MAX_CHARS = 20_000
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_HAS_NOT_STARTED = re.compile(r"not (?:be )?found|No such file|No module named|syntax error|\bcd: ")
"""Output of a failed command line whose program may not have started."""
_NO_TOOLS = frozenset({
    ".", ":", "[", "alias", "cd", "command", "date", "echo", "eval", "exec", "export", "false", "file", "history", "printf",
    "pwd", "read", "set", "source", "test", "time", "trap", "true", "type", "umask", "unset", "wait", "which",
})  # fmt: skip
"""Builtins of shells, and programs that are always there."""


class ProgramLaunch(NamedTuple):
    """One program that a command line starts."""

    program: str
    """Its name, without a directory and without the version of an interpreter."""
    spelling: str
    """How the line names it: `pylint`, `python -m pylint`, `./bin/pylint`."""


def list_launches(command: str) -> tuple[ProgramLaunch, ...]:
    """List the programs that a command line starts, in order; a Python module counts as a program."""
    if len(command) > _MAX_CHARS:
        return ()
    return tuple(launch for simple in parse_command(command) for launch in _name_programs(simple))


def list_missing_programs(command: str, output: str) -> tuple[ProgramLaunch, ...]:
    """List the programs of a command line that its output reports as missing.

    Only a program that the line names counts: the output may quote the failure of another line.
    """
    if not any(hint in output for hint in _HINTS):
        return ()
    names = {
        name: kind
        for found in _NOT_FOUND.finditer(output)
        for kind, name in found.groupdict().items()
        if name
    }
    return tuple(
        launch
        for launch in dict.fromkeys(list_launches(command))
        if (names.get(launch.spelling) in ("program", "env") or _is_missing_module(launch, names))
    )


def _is_missing_module(launch: ProgramLaunch, names: Mapping[str, str]) -> bool:
    module = launch.spelling.partition(" -m ")[2]
    return bool(module) and names.get(module) == "module"


def find_running_spellings(steps: Iterable[tuple[str, str, int | None]]) -> dict[str, str]:
    """Map each program to a spelling by which it certainly ran; the latest counts.

    `steps` are command lines, each with its output and its exit code.
    """
    found: dict[str, str] = {}
    for command, output, exit_code in steps:
        missing = list_missing_programs(command, output)
        found |= {
            launch.program: launch.spelling
            for simple in _list_started(command, output, exit_code)
            for launch in _name_programs(simple)
            if launch not in missing and launch.program not in _NO_TOOLS
        }
    return found


def _list_started(command: str, output: str, exit_code: int | None) -> list[SimpleCommand]:
    """List the commands of a line that started for certain.

    If the line succeeded, those whose success this implies; if it failed, only its first one after `cd`.
    """
    if len(command) > _MAX_CHARS or exit_code in (None, 126, 127):
        return []
    commands = parse_command(command)
    if any(simple.connector == "||" or simple.name in ("exit", "return") for simple in commands):
        return []
    if exit_code == 0:
        return [simple for simple in commands if simple.success_is_own and simple.stages == 1]
    first = next((simple for simple in commands if simple.name != "cd"), None)
    if first is None or not first.exit_code_is_own or first.stages > 1 or _HAS_NOT_STARTED.search(output):
        return []
    hides_errors = any(">" in each.operator and each.operator != "2>&" for each in first.redirects)
    return [] if hides_errors else [first]


def _name_programs(command: SimpleCommand) -> Iterable[ProgramLaunch]:
    if not command.argv:
        return
    spelling = command.argv[0]
    name = find_program_name(spelling)
    if not _PYTHON.fullmatch(name):
        yield ProgramLaunch(name, spelling)
        return
    yield ProgramLaunch(name.rstrip("0123456789."), spelling)
    target = find_python_target(command.argv[1:])
    if target is not None and target[0] == "-m":
        yield ProgramLaunch(target[1], f"{spelling} -m {target[1]}")
